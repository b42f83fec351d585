// What may be done, to one or to many at once: each after its dry run. And why nothing may be done.
import { ask, state } from "./feed.js";
import { button, byId, clean, count, counted, el, hasNews, moment, zone } from "./parts.js";

const TOGETHER = 4, LINES = 20;
export const MOST = 200;
export const mayForce = () => state.role === "force";
const isAllowed = () => state.role === "operate" || mayForce();
export const mayAct = () => isAllowed() && hasNews();
// Empty where actions are there.
export function whyNot(isPast) {
  if (isPast) return "No actions in the past: “Live” brings them back.";
  if (!hasNews()) return "No actions while there is no news of the cluster.";
  if (isAllowed()) return "";
  const way = sessionStorage.getItem("token") ? `The token of ${clean(state.caller)} has the role ${state.role}; actions take the role operate.` : "Start the process with --set http.open_role=operate, or write an http.access_file.";
  return `No actions: you may only read. ${way}`;
}

const of = (text) => encodeURIComponent(text);
const PATHS = {
  transfer: ({ bundle }) => ["POST", `v1/bundles/${bundle}/transfer`],
  unload: ({ bundle }) => ["POST", `v1/bundles/${bundle}/unload`],
  assign: () => ["POST", "v1/lookup"],
  split: ({ bundle }) => ["POST", `v1/bundles/${bundle}/split`],
  drain: ({ broker }) => ["POST", `v1/brokers/${of(broker)}/drain`],
  uncordon: ({ broker, cordon }) => ["DELETE", cordon.override ? `v1/overrides/cordon/${of(broker)}` : `v1/brokers/${of(broker)}/drain`],
  dismiss: ({ broker }) => ["POST", `v1/brokers/${of(broker)}/dismiss`],
  resume: () => ["POST", "v1/repair/resume"],
};

// Brokers that take bundles, the least loaded first.
function destinations() {
  return state.brokers.filter((row) => row.accepting && row.state === "alive").sort((a, b) => (a.load ?? 0) - (b.load ?? 0) || a.bundles - b.bundles);
}

// First what would happen; only then the button that does it.
export function act(action, subjects) {
  const dialog = byId("dialog"), body = byId("dialog-body"), word = `${action[0].toUpperCase()}${action.slice(1)}`;
  const [first] = subjects, kind = first.bundle ? "bundles" : "brokers", name = first.bundle ?? first.broker ?? "repair";
  byId("dialog-title").textContent = `${word} ${subjects.length > 1 ? `${count(subjects.length)} ${kind}` : clean(name)}`;
  const form = el("form"), answered = el("div", null, "", { role: "status" });
  for (const { broker, cordon } of subjects.filter((one) => one.cordon)) form.append(el("p", `${broker}: Cordoned by ${cordon.by || "an unknown user"}${cordon.drain === null ? "" : ", for a drain"}, ${moment(cordon.since_ms)} ${zone()}${cordon.why ? `: ${cordon.why}` : ""}`));
  let destination = null;
  if (action === "transfer") {
    destination = el("select", null, "", { id: "act-to", required: "" });
    destination.append(el("option", "choose a broker", "", { value: "" }));
    for (const row of destinations()) destination.append(el("option", `${row.broker}: ${[row.load == null ? "" : `load ${Math.round(row.load)} %`, counted(row.bundles)].filter(Boolean).join(", ")}`, "", { value: row.broker }));
    form.append(el("label", "Destination, the least loaded first", "", { for: "act-to" }), destination);
  }
  const reason = el("input", null, "", { id: "act-reason", autocomplete: "off" });
  form.append(el("label", "Reason", "", { for: "act-reason" }), reason);
  const dry = el("button", "Show what would happen", "", { type: "submit" }), really = button(`${word} now`, () => {}, "");
  really.disabled = true;
  form.append(dry);
  const bodyOf = (subject, dryRun) => ({
    ...(action === "assign" ? { name: subject.bundle } : {}),
    ...(subject.cordon?.drain === null && !subject.cordon.override ? { force: true } : {}),
    ...(destination?.value ? { destination: destination.value } : {}), ...(reason.value ? { reason: reason.value } : {}), dry_run: dryRun,
  });
  const wantedNow = () => JSON.stringify([destination?.value, reason.value]);
  let asked = "", key = "", passed = [], turn = 0;
  const run = async (dryRun) => {
    really.disabled = true;
    const wanted = wantedNow(), own = ++turn, queue = [...(dryRun ? subjects : passed).entries()], all = queue.length, done = [], refused = [];
    // The same request again has the same key, and acts once; another one has another.
    if (wanted !== asked) key = crypto.getRandomValues(new Uint32Array(4)).join("-");
    asked = wanted;
    const say = () => answered.replaceChildren(el("p", `${dryRun ? "Asking" : "Requested"} … ${all > 1 ? `${done.length + refused.length} of ${all}` : ""}`, "note"));
    say();
    const work = async () => {
      while (queue.length && own === turn && dialog.open) {
        const [, subject] = queue.shift(), [method, path] = PATHS[action](subject);
        const headers = dryRun ? { Prefer: "wait=20" } : { Prefer: "wait=20", "Idempotency-Key": `${key}-${subjects.indexOf(subject)}` };
        try {
          done.push([subject, await ask(path, method, bodyOf(subject, dryRun), headers)]);
        } catch (error) {
          refused.push([subject, error]);
        }
        if (all > 1 && own === turn) say();
      }
    };
    await Promise.all(Array.from({ length: dryRun && action === "drain" ? 1 : TOGETHER }, work));  // each reads topics
    if (own !== turn) return;
    answered.replaceChildren(...results(dryRun, all, done, refused, queue.length));
    if (dryRun) passed = done.map(([subject]) => subject);
    // What was changed meanwhile has had no dry run.
    really.disabled = !dryRun || !passed.length || wanted !== wantedNow();
    really.textContent = `${word}${all > passed.length && passed.length ? ` ${passed.length}` : ""} now`;
    if (!really.disabled) really.focus();
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); run(true); });
  really.addEventListener("click", () => run(false));
  for (const input of [destination, reason]) input?.addEventListener("input", () => { really.disabled = true; });
  const tools = el("div", null, "tools");
  tools.append(really, button("Close", () => dialog.close(), ""));
  body.replaceChildren(form, answered, tools);
  dialog.showModal();
}

function results(dryRun, all, done, refused, left) {
  const nodes = [];
  if (done.length) nodes.push(el("p", `${dryRun ? "It would do this" : "Done, or under way"}${all > 1 ? ` (${done.length} of ${all})` : ""}:`));
  if (all === 1) nodes.push(...done.flatMap(([, answer]) => readable(answer)));
  else nodes.push(listed(done.flatMap(([subject, answer]) => answer.would ?? `${subject.bundle ?? subject.broker}: ${answer.answer ?? "accepted"}`)));
  if (left) nodes.push(el("p", `${left} were not begun.`, "note"));
  const reasons = new Map();
  for (const [, error] of refused) reasons.set(error.problem?.reason ?? error.message, [...(reasons.get(error.problem?.reason ?? error.message) ?? []), error]);
  for (const [error, ...others] of reasons.values()) {
    nodes.push(el("p", `${error.message}${others.length ? ` (and ${others.length} more are refused)` : ""}`, "bad"));
    if (error.problem?.hint) nodes.push(el("p", error.problem.hint, "note"));
  }
  return nodes;
}

function listed(lines) {
  const list = el("ul");
  for (const line of lines.slice(0, LINES)) list.append(el("li", line));
  if (lines.length > LINES) list.append(el("li", `and ${lines.length - LINES} more`));
  return list;
}

// Fields of answers with a text for people.
const SENTENCES = new Set(["message", "why", "hint", "sentence", "verdict", "text", "would", "messages", "because", "now", "result"]);

export function readable(answer) {
  const lines = [];
  const walk = (value, depth, name) => {
    if (value === null || depth > 4) return;
    if (Array.isArray(value)) value.slice(0, 30).forEach((item) => walk(item, depth + 1, name));
    else if (typeof value === "object") Object.entries(value).forEach(([key, item]) => walk(item, depth + 1, key));
    else if (typeof value === "string" && SENTENCES.has(name)) lines.push(value);
  };
  walk(answer, 0, "");
  if (!lines.length) lines.push([answer.outcome ?? answer.answer, answer.broker].filter(Boolean).join(": "));
  const nodes = lines.slice(0, 30).map((line) => el("p", line));
  const details = el("details"), summary = el("summary", "All of it, as JSON"), json = el("pre", JSON.stringify(answer, null, 1));
  json.tabIndex = 0;
  details.append(summary, json);
  return [...nodes, details];
}
