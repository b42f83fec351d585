// The sections of the present: header, problems, brokers, between two owners, events, decisions.
import { act, whyNot } from "./actions.js";
import { ask } from "./feed.js";
import { Choice, Table, asOf, button, byId, bytes, clean, clock, colourClass, count, counted, duration, el, moment, named, now, silence, STALE_MS, zone } from "./parts.js";

// Of the past, null is what is not known.
const FULL_PERCENT = 90;

export function drawHead(head, replicas, brokers, past = null) {
  const some = (value) => value ?? "unknown";
  const lost = brokers.filter((row) => row.state === "lost").length;
  // The first four are what matters at night; the others are small.
  const tiles = [
    ["not served", `${count(head.unserved)} of ${count(head.bundles)}`, head.unserved ? (past || head.health === "healthy" ? "warn" : "bad") : "good"],
    ["brokers alive", head.brokers === null ? "unknown" : `${count(head.brokers)}${lost ? ` of ${count(head.brokers + lost)}` : ""}`, lost ? "bad" : ""],
    ["leader", past && !head.known ? "unknown" : head.leader ?? "none", head.leader || past ? "" : "bad"],
    ["replicas", ...replicaTile(replicas, brokers, past)],
    ["wait for a lookup", count(head.unasked), ""],
    ["mode", some(head.mode), head.mode === "normal" || past ? "" : "warn"],
    ["term", past ? some(head.term) : head.term ?? "-", ""],
    ["mean per broker", head.mean === null ? "-" : count(head.mean), ""],
    [past ? "change" : "changes read", past && head.place === null ? "from the log" : count(head.place), ""],
  ];
  const host = byId("head");
  tiles.forEach(([name, value, tone, title], index) => {
    let tile = host.children[index];
    if (!tile) {
      tile = el("div");
      tile.append(el("dt", name), el("dd"));
      host.append(tile);
    }
    const dd = tile.lastChild, text = clean(value);
    if (tile.firstChild.textContent !== name) tile.firstChild.textContent = name;
    if (dd.textContent !== text) dd.textContent = text;
    if (dd.className !== tone) dd.className = tone;
    if (tile.title !== (title ?? "")) tile.title = title ?? "";
  });
  byId("title").textContent = `statechannel${head.broker ? ` at ${clean(head.broker)}` : ", console"}`;
}

// By the heartbeats of all brokers: who holds other accepted states, and who is not compared, and why. Lost ones do not count.
function replicaTile(replicas, brokers, past) {
  if (past || !replicas) return ["unknown", ""];
  const differ = differingIn(replicas), title = clean(replicas.differing.map((row) => row.message).join("; ").slice(0, 1500));
  if (differ.length) return [`${differ.slice(0, 3).join(", ")}${differ.length > 3 ? ` and ${differ.length - 3} more` : ""} ${differ.length > 1 ? "differ" : "differs"}`, "bad", title];
  const alive = brokers.filter((row) => !["lost", "left"].includes(row.state));
  const others = alive.filter((row) => row.phase !== "caught-up" || row.silent), all = alive.length;
  const why = others.slice(0, 3).map((row) => `${row.broker} (${row.silent ? "silent" : row.phase ?? "it does not say whether it is caught up"})`);
  const more = others.length > 3 ? ` and ${others.length - 3} more` : "";
  return [`${all - others.length} of ${all} caught up, none differs${others.length ? `; not compared: ${why.join(", ")}${more}` : ""}`, others.length ? "" : "good"];
}

export function differingIn(replicas) {
  return [...new Set((replicas?.differing ?? []).flatMap((row) => row.brokers))];
}

// The age that is printed decides the colour. Without news nothing looks live, and other brokers' pages are offered.
export function drawLight(head, brokers, past = null) {
  const lag = silence(), age = Math.max(lag, head?.lag_ms ?? 0), isStale = Boolean(head) && lag > STALE_MS;
  let tone = age > STALE_MS ? "bad" : age > 2000 ? "warn" : "good", text = `${age > STALE_MS ? "Late" : "Live"}, ${duration(age)} old`;
  if (past) [tone, text] = ["warn", `The past: ${past.at_ms ? `${moment(past.at_ms)} ${zone()}` : "before the first change"}`];
  else if (!head) [tone, text] = ["warn", "Connecting"];
  else if (isStale) [tone, text] = ["bad", `No news from ${head.broker || "the console"} for ${duration(lag)}`];
  else if (head.away_since_ms !== null) [tone, text] = ["bad", `Kafka away since ${clock(head.away_since_ms)} ${zone()}, ${duration(now() - head.away_since_ms)}`];
  byId("light").className = `light ${tone}`;
  write("light-text", text);
  const root = document.documentElement.dataset, others = byId("elsewhere");
  root.away = !past && head?.away_since_ms != null ? "yes" : "no";
  root.stale = isStale ? "yes" : "no";
  if (others.hidden !== isStale) return;
  others.hidden = !isStale;
  const pages = brokers.filter((row) => row.api && row.broker !== head.broker && !["lost", "left"].includes(row.state)).slice(0, 5);
  const links = pages.flatMap((row) => [" ", el("a", row.broker, "", { href: row.api })]);
  others.replaceChildren(...(links.length ? ["The page of another broker:", ...links] : ["No other broker is known to serve this page."]));
}

function write(id, text) {
  if (byId(id).textContent !== clean(text)) byId(id).textContent = clean(text);
}

// The first word: the verdict of `status` with its first cause, since the oldest of its causes began.
let verdict = "", changedMs = null, sinceMs = 0;
export function drawVerdict(head, problems, past = null) {
  const lag = silence(), severe = problems.filter((problem) => problem.severe), host = byId("verdict");
  let word = "Connecting", cause = "", tone = "unknown";
  if (head && !past && lag <= STALE_MS && head.health !== verdict) [verdict, changedMs] = [head.health, verdict ? now() : null];
  if (past) [word, cause] = ["The past", "“Live” shows what is wrong now."];
  else if (head && lag > STALE_MS) [word, cause] = ["UNKNOWN", `no news from ${head.broker || "the console"}: all below is as of ${clock(asOf())} ${zone()}`];
  else if (head) {
    const began = severe.map((problem) => problem.since_ms).concat(changedMs).filter((ms) => ms), others = severe.filter((problem) => !problem.due_to).length - 1;
    const oldest = Math.min(...began);
    if (Math.abs(oldest - sinceMs) > 3000) sinceMs = oldest;  // by clocks of several processes
    word = head.health.toUpperCase() + (began.length ? ` since ${clock(sinceMs)} ${zone()}` : "");
    const first = severe[0]?.message ?? (problems.length ? `warning: ${problems[0].message}` : "");
    cause = `${first}${others > 0 ? `; and ${others} more` : ""}`;
    tone = head.health;
  }
  if (host.dataset.health !== tone) host.dataset.health = tone;
  write("verdict-word", word);
  write("verdict-cause", cause);
  const title = `${word.split(" ")[0]}: ${byId("title").textContent}`;
  if (document.title !== title) document.title = title;
}

// Remedies that are named, where they can be had by a click.
const REMEDIES = {
  "broker-lost": (brokers) => brokers.filter((row) => row.state === "lost").slice(0, 10).map((row) => [`Dismiss ${row.broker}…`, "dismiss", { broker: row.broker }]),
  "repair-paused": () => [["Resume repair…", "resume", {}]],
};

// Their words change each second: a button that is pressed or has the focus stays what it is.
export function drawProblems(problems, show, brokers = [], mayAct = false) {
  const host = byId("problem-rows");
  byId("fine").hidden = problems.length > 0;
  const isPaused = problems.some(({ kind }) => kind === "repair-paused");  // then first of all: are they dead?
  const remedies = problems.map(({ kind }) => (mayAct && !(isPaused && kind === "broker-lost") && REMEDIES[kind]?.(brokers)) || []);
  const stamp = JSON.stringify(problems.map((one, index) => [one.kind, one.due_to, one.subject, one.severe, remedies[index]]));
  if (host.dataset.stamp !== stamp) {
    host.dataset.stamp = stamp;
    host.replaceChildren(...problems.map((problem, index) => {
      const item = el("li", null, `${problem.severe ? "severe" : ""} ${problem.due_to ? "due" : ""}`, { "data-kind": problem.kind });
      item.append(el("strong"), el("span"), el("small"));
      for (const [text, action, subject] of remedies[index]) item.append(button(text, () => act(action, [subject])), " ");
      if (problem.subject?.includes("/")) item.append(button(`Timeline of ${problem.subject}`, () => show(problem.subject)));
      return item;
    }));
  }
  problems.forEach(({ message, hint, since_ms }, index) => {
    const since = since_ms && !message.includes(" since ") ? `. Since ${clock(since_ms)} ${zone()}.` : "";
    [message, since, hint].forEach((text, at) => {
      const part = host.children[index].children[at];
      if (part.textContent !== clean(text)) part.textContent = clean(text);
    });
  });
}

export const RESOURCES = [
  ["cpu_percent", "CPU"], ["direct_memory_percent", "direct memory"], ["memory_percent", "memory"],
  ["bandwidth_in_percent", "network in"], ["bandwidth_out_percent", "network out"],
];

export class Sections {
  constructor(show, showBroker, mayAct, mayForce) {
    this.show = show;
    this.showBroker = showBroker;
    this.choice = new Choice(() => this.drawTools());
    this.toolsOf = "";
    const bundle = (row) => button(row.bundle, () => show(row.bundle));
    this.brokers = new Table("broker-rows", [
      this.choice.column((row) => row.broker, (row) => this.atMs === null && this.actionOf(row, mayAct, mayForce) === "Drain"),
      { name: "broker", text: (row) => row.broker, stamp: (row) => colourClass(row.broker), node: (row) => this.owner(row.broker) },
      { name: "state", text: (row) => this.stateOf(row), kind: "" },
      { name: "bundles", kind: "n", text: (row) => count(row.bundles) },
      { name: "against the mean", text: (row) => this.mean(row), stamp: (row) => this.most, node: (row) => this.bar(row) },
      { name: "load", text: (row) => this.loadOf(row), node: (row) => el("span", this.loadOf(row), this.isFull(row) ? "warn" : "") },
      { name: "coming", kind: "n", text: (row) => (row.coming ? count(row.coming) : "") },
      { name: "leaving", kind: "n", text: (row) => (row.leaving ? count(row.leaving) : "") },
      { name: "came / went (5 min)", kind: "n", text: (row) => (row.came === null ? "unknown" : row.came || row.went ? `${count(row.came)} / ${count(row.went)}` : "") },
      { name: "version", text: (row) => row.software ?? (this.atMs && row.state === null ? "unknown" : "") },
      { name: "actions", text: (row) => (this.atMs === null ? this.actionOf(row, mayAct, mayForce) : ""), stamp: (row) => JSON.stringify(this.cordons[row.broker]), node: (row) => this.actionButton(row) },
    ], "No broker is heard.");
    this.between = new Table("between-rows", [
      { name: "bundle", kind: "k", text: (row) => row.bundle, node: bundle },
      { name: "state", text: (row) => row.state },
      { name: "from", text: (row) => row.from ?? "" },
      { name: "to", text: (row) => row.to ?? "" },
      { name: "for", kind: "n", text: (row) => (row.since_ms ? duration((this.atMs ?? now()) - row.since_ms) : this.atMs ? "unknown" : "since before the start") },
      { name: "time limit", kind: "n", text: (row) => (row.due_ms ? duration(row.due_ms - row.since_ms) : "") },
      { name: "who must act", text: (row) => this.actor(row) },
    ], "Nothing is between two owners.");
    this.events = new Table("event-rows", [
      { name: "time", kind: "t", text: (row) => clock(row.at_ms) },
      { name: "what", text: (row) => row.message + (row.reason ? `. ${row.reason}` : "") },
      { name: "longest gap", kind: "n", text: (row) => (row.kind === "gap" ? (row.open ? `${count(row.open)} open` : duration(row.longest_ms)) : "") },
      { name: "bundle", kind: "k", text: (row) => row.bundle ?? "", node: bundle },
    ], "Nothing has happened since this process began to read.");
    this.decisions = new Table("decision-rows", [
      { name: "time", kind: "t", text: (row) => clock(row.at_ms) },
      { name: "what", text: (row) => decisionText(row), node: (row) => button(decisionText(row), () => this.numbers(row)) },
      { name: "by", text: (row) => row.leader ?? "" },
    ], "No decision in the last hour.");
    this.atMs = null;
    this.differing = [];
    this.cordons = {};
    this.most = 1;
    this.meanOf = 0;
    this.loads = {};
  }

  // The moment of what is drawn from now on; null: the present.
  begin(atMs) { this.atMs = atMs; }

  stateOf(row) {
    if (row.state === null) return "state then: unknown";
    if (row.state === "unheard") return "was not heard then";
    if (this.atMs && row.state === "lost") return "lost";
    if (row.state === "lost") return `lost ${duration(now() - row.lost_since_ms)} ago`;
    const words = [row.state === "draining" ? `shuts down${row.bundles ? `, ${count(row.bundles)} left` : ""}` : row.state];
    if (this.cordons[row.broker]) words.push(this.cordonOf(row));
    if (row.silent) words.push("silent");
    if (row.leading) words.push("leads");
    if (row.phase === "joining") words.push("joining");
    if (row.mode && row.mode !== "normal") words.push(`mode ${row.mode}`);
    if (row.state === "alive" && !row.accepting) words.push("takes no bundles");
    if (this.differing.includes(row.broker)) words.push("replica differs");
    if (row.lag_records) words.push(`${count(row.lag_records)} records behind`);
    return words.join(", ");
  }

  mean(row) {
    if (!this.meanOf || row.state === "lost") return "";
    const by = Math.round(100 * (row.bundles / this.meanOf - 1));
    return `${by > 0 ? "+" : ""}${by} %`;
  }

  bar(row) {
    const node = el("span");
    const load = el("span", null, `load ${colourClass(row.broker)}`);
    const bar = el("progress", null, "", { max: this.most, "aria-label": `bundles of ${row.broker}` });
    bar.value = row.bundles;
    load.append(bar);
    node.append(load, document.createTextNode(this.mean(row)));
    return node;
  }

  loadOf(row) {
    if (row.state === "lost") return "";
    if (this.loads === null) return "reading …";
    const { score, report } = this.loads[row.broker] ?? {};
    const parts = [];
    if (this.atMs && !report) return "load then: unknown";
    if (report) for (const [name, words] of RESOURCES) if (report[name] !== null) parts.push(`${words} ${Math.round(report[name])}\u00a0%`);
    if (report) parts.push(`${bytes(report.msg_throughput_in)} in`, `${bytes(report.msg_throughput_out)} out`);
    if (!report) parts.push(score === undefined ? "not reported" : `score ${Math.round(100 * score)} %`);
    return parts.join(", ");
  }

  isFull(row) {
    const report = this.loads?.[row.broker]?.report ?? {};
    return RESOURCES.some(([name]) => Math.round(report[name]) >= FULL_PERCENT);
  }

  // A drain is a cordon and its moves; it ends with bundles left where no other broker may take them.
  cordonOf(row) {
    const cordon = this.cordons[row.broker], left = row.bundles ? `, ${count(row.bundles)} left` : "";
    if (cordon.drain_state === "running") return `draining${left}`;
    return cordon.drain === null ? `cordoned by ${cordon.by || "an unknown user"}` : `cordoned by its drain${left}`;
  }

  // A broker that shuts down is emptied anyway; a person's cordon ends by force only.
  actionOf(row, mayAct, mayForce) {
    const cordon = this.cordons[row.broker];
    if (!mayAct() || ["lost", "left"].includes(row.state)) return "";
    if (!cordon) return row.draining ? "" : "Drain";
    return cordon.drain === null && !cordon.override && !mayForce() ? "" : "Uncordon";
  }

  actionButton(row) {
    const cordon = this.cordons[row.broker];
    return cordon ? button("Uncordon", () => act("uncordon", [{ broker: row.broker, cordon }])) : button("Drain", () => act("drain", [{ broker: row.broker }]));
  }

  // Its name leads to what it owns.
  owner(broker) {
    const node = button("", () => this.showBroker(broker));
    node.append(named(broker));
    node.title = `The bundles of ${clean(broker)}`;
    return node;
  }

  drawTools() {
    const chosen = [...this.choice.keys], why = whyNot(this.atMs !== null), stamp = JSON.stringify([chosen, why]);
    if (this.toolsOf === stamp) return;
    this.toolsOf = stamp;
    const drain = button(`Drain the chosen ${chosen.length === 1 ? "one" : count(chosen.length)}…`, () => act("drain", chosen.map((broker) => ({ broker }))), "");
    byId("broker-tools").replaceChildren(...(why ? [el("span", why, "note")] : chosen.length ? [drain] : []));
  }

  actor(row) {
    if (this.atMs) return row.who ?? "the leader";
    if (row.who === null) return row.lost ? `the leader: ${row.lost} is lost` : "the leader";
    const late = row.due_ms && now() > row.due_ms;
    return `${row.who}, hook ${row.hook}${late ? `; late: the leader repairs it ${row.repaired_ms > now() ? `in ${duration(row.repaired_ms - now())}` : "now"}` : ""}`;
  }

  drawBrokers(rows, mean) {
    this.most = Math.max(1, ...rows.map((row) => row.bundles));
    this.meanOf = mean;
    // What needs somebody comes first.
    const rank = (row) => (row.state === "lost" ? 0 : row.silent ? 1 : 2);
    this.brokers.draw([...rows].sort((a, b) => rank(a) - rank(b)), (row) => row.broker);
    this.choice.keep(new Set(rows.filter((row) => row.state === "alive").map((row) => row.broker)));
    this.drawTools();
  }

  drawBetween({ all, rows }) {
    const text = all > rows.length ? `${count(all)} bundles; the ${rows.length} oldest are listed.` : all ? `${counted(all)}.` : "";
    if (byId("between-text").textContent !== text) byId("between-text").textContent = text;
    this.between.draw(rows, (row) => row.bundle);
  }

  drawEvents(rows) { this.events.draw(rows, (row) => row.number); }

  drawDecisions(section, none = "No decision in the last hour.") {
    const text = byId("decisions-text");
    let said = "";
    if (!section) said = this.atMs ? "Decisions then: unknown, as the balancer's paths are not installed." : "The balancer's paths are not installed, or its topic was not read yet.";
    else if (section.waiting) said = "Reading …";
    else if (section.error) said = `${this.atMs ? "Decisions then: unknown. " : ""}${clean(section.error)}`;
    text.textContent = said;
    this.decisions.empty = said ? "" : none;
    if (said) { this.decisions.draw([], (row) => row.id); return; }
    this.decisions.draw([...section.decisions].reverse(), (row) => row.id ?? row.at_ms);
  }

  async numbers(row) {
    const body = byId("dialog-body");
    byId("dialog-title").textContent = `Decision ${clean(row.id)}, ${moment(row.at_ms)} ${zone()}`;
    body.replaceChildren(el("p", "Reading the topic …", "note"));
    byId("dialog").showModal();
    const close = button("Close", () => byId("dialog").close(), "");
    try {
      const whole = await ask(`v1/decisions/${encodeURIComponent(row.id)}`), list = el("dl", null, "facts");
      for (const [name, value] of Object.entries(whole.decision ?? whole)) {
        if (value === null || (Array.isArray(value) && !value.length)) continue;
        list.append(el("dt", name), typeof value === "object" ? wrapped(el("pre", JSON.stringify(value, null, 1))) : el("dd", value));
      }
      body.replaceChildren(el("p", decisionText(row)), list, close);
    } catch (error) {
      body.replaceChildren(el("p", error.message, "bad"), close);
    }
  }
}

function wrapped(node) {
  const host = el("dd");
  node.tabIndex = 0;
  host.append(node);
  return host;
}

function decisionText(row) {
  const parts = [];
  for (const [name, one, many] of [["moves", "move", "moves"], ["splits", "split", "splits"], ["placed", "placement", "placements"]]) {
    const number = row[name] ?? 0;
    if (number) parts.push(`${number} ${number === 1 ? one : many}`);
  }
  const what = row.skipped ? `skipped (${row.skipped})` : parts.join(", ") || "no move";
  return `${what}${row.why ? `: ${row.why}` : ""}`;
}
