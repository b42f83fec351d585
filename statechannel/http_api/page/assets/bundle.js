// One bundle: what it is, its timeline, why it is there, why the balancer leaves it; and actions, each after its dry run.
import { Refused, ask, state } from "./feed.js";
import { button, byId, clean, clock, colourClass, el, moment, named, now } from "./parts.js";

const query = (name) => `name=${encodeURIComponent(name)}`;
export const mayForce = () => state.role === "force";
export const mayAct = () => state.role === "operate" || mayForce();

const EACH_MS = 1000;
let newest = 0, past = null, asked = "", card = null, seen = null, due = 0;

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
  if (past !== null) fact("as of", `${moment(past.at_ms)} UTC`);
  if (row === undefined) fact("owner then", "unknown: none of its changes by then is in memory");
  else if (row === null) fact("state", "it is not live: it was split or deleted");
  else {
    fact("owner", named(row.owner));
    fact("state", clean(row.state + (row.next ? `, next ${row.next}` : "")));
    const began = history.find((step) => step.after?.owner === row.owner && step.before?.owner !== row.owner);
    fact("since", began ? `${moment(began.at_ms)} UTC` : "before the changes in memory");
    if (past === null) fact("generation", String(row.generation ?? "-"));
    if (row.operation) fact("operation", el("span", row.operation, "k"));
  }
  const key = [found.bundle, mayAct(), Boolean(row), past === null].join();
  if (card?.key !== key) card = { key, answer: el("div") };
  card.tools ??= toolsOf(found.bundle, Boolean(row), card.answer);
  const { tools, answer } = card;
  const made = [facts, tools, answer, el("h3", "Timeline, the newest first")];
  if (!history.length) {
    made.push(el("p", found.whole ? "No change." : "No change among those in memory; `statechannel audit bundle` reads older ones.", "note"));
    return made;
  }
  const table = el("table"), thead = el("thead"), head = el("tr"), rows = el("tbody");
  for (const name of ["time (UTC)", "offset", "state", "owner", "by", "why"]) head.append(el("th", name, "", { scope: "col" }));
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
function toolsOf(bundle, isLive, answer) {
  const tools = el("div", null, "tools");
  if (past === null) tools.append(reader("Why here", `v1/why?${query(bundle)}`, answer), reader("Why not elsewhere", `v1/why-not?${query(bundle)}`, answer));
  if (mayAct() && isLive && past === null) {
    for (const action of ["transfer", "unload", "split"]) {
      tools.append(button(`${action[0].toUpperCase()}${action.slice(1)}…`, () => begin(action, bundle), ""));
    }
  }
  tools.append(button("Close", () => { byId("bundle").hidden = true; }, ""));
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

// Fields of answers with a text for people.
const SENTENCES = new Set(["message", "why", "hint", "sentence", "verdict", "text", "would", "messages", "because", "now", "result"]);

function readable(answer) {
  const lines = [];
  const walk = (value, depth, name) => {
    if (value === null || depth > 4) return;
    if (Array.isArray(value)) value.slice(0, 30).forEach((item) => walk(item, depth + 1, name));
    else if (typeof value === "object") Object.entries(value).forEach(([key, item]) => walk(item, depth + 1, key));
    else if (typeof value === "string" && SENTENCES.has(name)) lines.push(value);
  };
  walk(answer, 0, "");
  const nodes = lines.slice(0, 30).map((line) => el("p", line));
  const details = el("details"), summary = el("summary", "All of it, as JSON"), json = el("pre", JSON.stringify(answer, null, 1));
  json.tabIndex = 0;
  details.append(summary, json);
  return [...nodes, details];
}

const PATHS = {
  transfer: ({ bundle }) => ["POST", `v1/bundles/${bundle}/transfer`],
  unload: ({ bundle }) => ["POST", `v1/bundles/${bundle}/unload`],
  split: ({ bundle }) => ["POST", `v1/bundles/${bundle}/split`],
  drain: ({ broker }) => ["POST", `v1/brokers/${encodeURIComponent(broker)}/drain`],
  uncordon: ({ broker, cordon }) => ["DELETE", cordon.override ? `v1/overrides/cordon/${encodeURIComponent(broker)}` : `v1/brokers/${encodeURIComponent(broker)}/drain`],
};

function begin(action, bundle) { act(action, { bundle }); }

// First what would happen; only then the button that does it.
export function act(action, subject) {
  const dialog = byId("dialog"), body = byId("dialog-body"), of = subject.bundle ?? subject.broker;
  byId("dialog-title").textContent = `${action[0].toUpperCase()}${action.slice(1)} ${clean(of)}`;
  const form = el("form"), said = el("div", null, "", { role: "status" });
  let destination = null, reason = null;
  const cordon = subject.cordon;
  if (cordon) form.append(el("p", `Cordoned by ${cordon.by || "an unknown user"}${cordon.drain === null ? "" : ", for a drain"}, ${moment(cordon.since_ms)} UTC${cordon.why ? `: ${cordon.why}` : ""}`));
  if (action === "transfer") {
    destination = el("input", null, "", { id: "act-to", list: "act-brokers", autocomplete: "off", required: "" });
    const brokers = el("datalist", null, "", { id: "act-brokers" }), open = state.brokers.filter((row) => row.accepting && row.state === "alive");
    for (const row of open.sort((a, b) => a.bundles - b.bundles)) brokers.append(el("option", `${row.bundles} bundles`, "", { value: row.broker }));
    form.append(el("label", "Destination", "", { for: "act-to" }), destination, brokers);
  }
  if (subject.bundle) {
    reason = el("input", null, "", { id: "act-reason", autocomplete: "off" });
    form.append(el("label", "Reason", "", { for: "act-reason" }), reason);
  }
  const dry = el("button", "Show what would happen", "", { type: "submit" }), really = button(`${action[0].toUpperCase()}${action.slice(1)} now`, () => {}, "");
  really.disabled = true;
  form.append(dry);
  const bodyOf = (dryRun) => ({ ...(cordon?.drain === null && !cordon.override ? { force: true } : {}), ...(destination?.value ? { destination: destination.value } : {}), ...(reason?.value ? { reason: reason.value } : {}), dry_run: dryRun });
  const [method, path] = PATHS[action](subject);
  let asked = "", key = "";
  const run = async (dryRun) => {
    really.disabled = true;
    const wanted = JSON.stringify(bodyOf(true));
    // The same request again has the same key, and acts once; another one has another.
    if (wanted !== asked) key = crypto.getRandomValues(new Uint32Array(4)).join("-");
    asked = wanted;
    said.replaceChildren(el("p", dryRun ? "Asking …" : "Requested …", "note"));
    try {
      const answer = await ask(path, method, bodyOf(dryRun), dryRun ? { Prefer: "wait=20" } : { Prefer: "wait=20", "Idempotency-Key": key });
      said.replaceChildren(el("p", dryRun ? "It would do this:" : "Done, or under way:"), ...readable(answer));
      // What was typed meanwhile has had no dry run.
      really.disabled = !dryRun || wanted !== JSON.stringify(bodyOf(true));
      if (!really.disabled) really.focus();
    } catch (error) {
      said.replaceChildren(el("p", error.message, "bad"), ...(error.problem?.hint ? [el("p", error.problem.hint, "note")] : []));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); run(true); });
  really.addEventListener("click", () => run(false));
  for (const input of [destination, reason]) input?.addEventListener("input", () => { really.disabled = true; });
  const tools = el("div", null, "tools");
  tools.append(really, button("Close", () => dialog.close(), ""));
  body.replaceChildren(form, said, tools);
  dialog.showModal();
}
