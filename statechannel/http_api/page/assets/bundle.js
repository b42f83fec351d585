// One bundle: what it is, its timeline, why it is there, why the balancer leaves it; and actions, each after its dry run.
import { act, mayAct, readable } from "./actions.js";
import { Refused, ask } from "./feed.js";
import { button, byId, clean, clock, colourClass, el, moment, named, now, zone } from "./parts.js";

const query = (name) => `name=${encodeURIComponent(name)}`;

const EACH_MS = 1000;
let closed = hideBundle;
let newest = 0, past = null, asked = "", card = null, seen = null, due = 0;

// What its button does instead of hiding it alone.
export function onClose(close) { closed = close; }
export function hideBundle() {
  newest += 1;
  byId("bundle").hidden = true;
}

// A bundle that is open is shown as of this moment; null: as of now.
export function pastBundle(at) {
  past = at;
  if (!byId("bundle").hidden && asked) showBundle(asked, false);
}

export async function showBundle(name, focuses = true) {
  const turn = ++newest;
  asked = name;
  const section = byId("bundle"), body = byId("bundle-body");
  section.hidden = false;
  body.dataset.state = "reading";
  byId("bundle-title").textContent = `Bundle of ${clean(name)}`;
  try {
    const found = await ask(`v1/page/bundle?${query(name)}`);
    if (turn !== newest) return; // another one was asked for meanwhile
    draw(found);
  } catch (error) {
    if (turn !== newest) return;
    const said = [el("p", error.message, "bad")];
    if (error instanceof Refused && error.problem.hint) said.push(el("p", error.problem.hint, "note"));
    body.replaceChildren(...said);
  }
  body.dataset.state = "shown";
  if (!focuses) return;
  section.scrollIntoView({ block: "nearest" });
  byId("bundle-title").tabIndex = -1;
  byId("bundle-title").focus({ preventScroll: true });
}

// An open card follows the log: it is read again where something has changed since.
export async function followBundle(place, isRecoloured) {
  if (isRecoloured) seen = null;
  if (past !== null || byId("bundle").hidden || place === seen || performance.now() < due) return;
  const turn = newest;
  [seen, due] = [place, performance.now() + EACH_MS];
  try {
    const found = await ask(`v1/page/bundle?${query(asked)}`);
    if (turn === newest && past === null && byId("bundle-body").dataset.state === "shown") draw(found);
  } catch {
    seen = null; // what is shown stays, and the light says how old it is
  }
}

function draw(found) {
  const body = byId("bundle-body"), active = document.activeElement, down = body.querySelector(".scroll")?.scrollTop ?? 0;
  byId("bundle-title").textContent = clean(found.bundle);
  body.replaceChildren(...parts(found));
  body.querySelector(".scroll")?.scrollTo(0, down);
  if (active?.isConnected && body.contains(active)) active.focus({ preventScroll: true });
}

function parts(found) {
  const facts = el("dl", null, "facts"), history = past === null ? found.history : found.history.filter((step) => step.at_ms <= past.at_ms);
  const row = past === null ? found.row : rowThen(history[0]);
  const fact = (name, node) => { const dd = el("dd"); dd.append(node); facts.append(el("dt", name), dd); };
  if (found.asked !== found.bundle) fact("asked for", clean(found.asked));
  if (past !== null) fact("as of", `${moment(past.at_ms)} ${zone()}`);
  if (row === undefined) fact("owner then", "unknown: none of its changes by then is in memory");
  else if (row === null) fact("state", "it is not live: it was split or deleted");
  else {
    fact("owner", named(row.owner));
    fact("state", clean(row.state + (row.next ? `, next ${row.next}` : "")));
    const began = history.find((step) => step.after?.owner === row.owner && step.before?.owner !== row.owner);
    fact("since", began ? `${moment(began.at_ms)} ${zone()}` : "before the changes in memory");
    if (past === null) fact("generation", String(row.generation ?? "-"));
    if (row.operation) fact("operation", el("span", row.operation, "k"));
  }
  const actions = !row ? [] : row.state === "Unassigned" ? ["assign"] : ["transfer", "unload", "split"], key = [found.bundle, actions, past === null].join(), may = mayAct();
  if (card?.key !== key) card = { key, answer: el("div") };
  if (card.may !== may) [card.may, card.tools] = [may, null];
  card.tools ??= toolsOf(found.bundle, actions, card.answer);
  const { tools, answer } = card;
  const made = [facts, tools, answer, el("h3", "Timeline, the newest first")];
  if (!history.length) {
    made.push(el("p", found.whole ? "No change." : `No change among those in memory; \`statechannel audit history ${found.bundle}\` reads older ones.`, "note"));
    return made;
  }
  const table = el("table"), thead = el("thead"), head = el("tr"), rows = el("tbody");
  for (const name of ["time", "offset", "state", "owner", "by", "why"]) head.append(el("th", name, "", { scope: "col" }));
  thead.append(head);
  for (const step of history) {
    const line = el("tr"), after = step.after ?? { state: "Deleted", owner: null, to: null };
    const cell = (name, node, kind = "") => { const td = el("td", null, kind, { "data-label": name }); td.append(node); line.append(td); };
    cell("time", moment(step.at_ms), "t");
    cell("offset", `${step.partition}:${step.offset}`, "n");
    cell("state", clean(after.state + (after.to ? ` to ${after.to}` : "")));
    cell("owner", named(after.owner));
    cell("by", clean(step.by));
    cell("why", clean([step.flow, step.lost && `${step.lost} was lost`, step.reason, step.decision && `decision ${step.decision}`, step.operation && `operation ${step.operation}`].filter(Boolean).join(", ")));
    rows.append(line);
  }
  table.append(thead, rows);
  const scroll = el("div", null, "scroll", { tabindex: "0", role: "region", "aria-label": "Timeline" });
  scroll.append(table);
  made.push(strip(history, past?.at_ms ?? now()), scroll);
  return made;
}

// They stay while the card is drawn again, as do the answers that they fetched.
function toolsOf(bundle, actions, answer) {
  const tools = el("div", null, "tools");
  if (past === null) tools.append(reader("Why here", `v1/why?${query(bundle)}`, answer), reader("Why not elsewhere", `v1/why-not?${query(bundle)}`, answer));
  if (mayAct() && past === null) {
    for (const action of actions) {
      tools.append(button(`${action[0].toUpperCase()}${action.slice(1)}…`, () => act(action, [{ bundle }]), ""));
    }
  }
  tools.append(button("Close", () => closed(), ""));
  return tools;
}

function rowThen(step) {
  if (!step) return undefined;
  return step.after && { owner: step.after.owner, state: step.after.state, next: step.after.to, operation: step.operation };
}

// Its owners as a band of time, oldest left: the report's colours.
function strip(history, atMs) {
  const steps = [...history].reverse(), node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const first = steps[0].at_ms, last = Math.max(atMs, steps.at(-1).at_ms + 1), x = (ms) => (1000 * (ms - first)) / (last - first);
  for (const [key, value] of [["viewBox", "0 0 1000 18"], ["preserveAspectRatio", "none"], ["role", "img"], ["class", "band"], ["aria-label", `${steps.length} changes since ${clock(first)}`]]) node.setAttribute(key, value);
  steps.forEach((step, index) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect"), end = steps[index + 1]?.at_ms ?? last;
    const owner = step.after?.owner;
    for (const [key, value] of [["x", x(step.at_ms)], ["width", Math.max(1.5, x(end) - x(step.at_ms))], ["y", owner ? 0 : 6], ["height", owner ? 18 : 6], ["class", owner ? `${colourClass(owner)} owned` : "gap"]]) rect.setAttribute(key, value);
    node.append(rect);
  });
  return node;
}

function reader(text, path, host) {
  return button(text, async () => {
    host.replaceChildren(el("p", "Reading the topics …", "note"));
    try {
      const answer = await ask(path);
      host.replaceChildren(...readable(answer));
    } catch (error) {
      host.replaceChildren(el("p", error.message, "bad"));
    }
  }, "");
}
