// Tables of everything: bundles, by filter and order of the server; namespaces; operations and drains.
import { MOST, act, mayAct, whyNot } from "./actions.js";
import { ask } from "./feed.js";
import { Choice, Table, button, byId, bytes, clock, colourClass, count, counted, duration, el, named, now } from "./parts.js";

const EACH_MS = 3000, STEP = 100, ROWS_MAX = 1000, NAMESPACES_MAX = 5000;
const VERBS = { transfer: "Move", unload: "Unload", split: "Split" };

export class Tables {
  constructor(show, showBroker, showNamespace) {
    this.limit = STEP;
    this.atMs = null;
    this.due = 0;
    this.seen = null;
    this.turn = 0;
    this.visible = new Set();
    this.brokers = [];
    this.rows = [];
    this.stamp = "";
    this.choice = new Choice(() => this.drawTools());
    const owner = (name) => { const node = button("", () => showBroker(name)); node.append(named(name)); return node; };
    this.bundles = new Table("bundle-rows", [
      this.choice.column((row) => row.bundle, () => mayAct() && this.atMs === null),
      { name: "bundle", kind: "k", text: (row) => row.bundle, node: (row) => button(row.bundle, () => show(row.bundle)) },
      { name: "state", text: (row) => row.state + (row.next ? ` to ${row.next}` : "") },
      { name: "owner", text: (row) => row.owner ?? "", stamp: (row) => colourClass(row.owner), node: (row) => owner(row.owner) },
      { name: "load", kind: "n", text: (row) => (row.load === null ? "" : bytes(row.load)) },
    ], "No bundle is like that.");
    this.namespaces = new Table("namespace-rows", [
      { name: "namespace", kind: "k", text: (row) => row.namespace, node: (row) => button(row.namespace, () => showNamespace(row.namespace)) },
      { name: "bundles", kind: "n", text: (row) => count(row.bundles) },
      { name: "without owner", kind: "n", text: (row) => count(row.bundles - row.served) },
      { name: "between two owners", kind: "n", text: (row) => count(row.in_flight) },
    ], "There is no namespace.");
    this.operations = new Table("operation-rows", [
      { name: "time", kind: "t", text: (row) => clock(row.asked_ms) },
      { name: "what", text: (row) => row.command },
      { name: "of", kind: "k", text: (row) => row.name, node: (row) => (row.name.includes("/0x") ? button(row.name, () => show(row.name)) : el("span", row.name)) },
      { name: "asked by", text: (row) => row.by || "unknown" },
      { name: "how far", text: (row) => row.far },
    ], "Nobody has asked for anything lately.");
    for (const id of ["bundles-text", "bundles-broker", "bundles-state", "bundles-load", "bundles-sort"]) byId(id).addEventListener("input", () => { this.limit = STEP; this.ask(true); });
    byId("bundles-filter").addEventListener("submit", (event) => event.preventDefault());
    byId("bundles-more").addEventListener("click", () => { this.limit = Math.min(ROWS_MAX, this.limit + STEP); this.ask(true); });
    for (const id of ["namespaces-text", "namespaces-sort"]) byId(id).addEventListener("input", () => this.drawNamespaces());
    this.spaces = [];
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) this.visible[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      this.ask();
    });
    for (const id of ["bundles", "namespaces"]) seen.observe(byId(id));
  }

  // What has changed since; only tables that are in view are asked for.
  follow(place, atMs) {
    this.place = place;
    this.atMs = atMs;
    this.ask();
    this.drawTools();
  }

  wanted() {
    const value = (id) => byId(id).value.trim(), state = value("bundles-state"), [sort, descending] = value("bundles-sort").split(" ");
    const query = new URLSearchParams({ limit: this.limit, sort, ...(descending ? { descending: true } : {}) });
    if (value("bundles-text")) query.set("text", value("bundles-text"));
    if (value("bundles-broker")) query.set("broker", value("bundles-broker"));
    if (value("bundles-load")) query.set("load_min", value("bundles-load"));
    if (state) query.set(...(state === "unserved" ? ["unserved", true] : ["state", state]));
    return `v1/page/bundles?${query}`;
  }

  async ask(isChanged = false) {
    if (isChanged) this.seen = this.due = 0;
    if (!this.visible.size || performance.now() < this.due || (this.seen === this.place && performance.now() < this.due + 3 * EACH_MS)) return;
    [this.seen, this.due] = [this.place, performance.now() + EACH_MS];
    const turn = ++this.turn;
    try {
      if (this.visible.has("bundles") || isChanged) {
        const answer = await ask(this.wanted());
        if (turn === this.turn) this.drawBundles(answer);
      }
      if (this.visible.has("namespaces")) {
        const rows = [];
        let after = "";
        do {
          const page = await ask(`v1/namespaces?${new URLSearchParams({ limit: 1000, after })}`);
          rows.push(...page.namespaces);
          after = page.next ?? "";
        } while (after && rows.length < NAMESPACES_MAX);
        [this.spaces, this.hasMore] = [rows, Boolean(after)];
        this.drawNamespaces();
      }
    } catch (error) {
      if (turn === this.turn) byId("bundles-count").textContent = error.message;
    }
  }

  // Owners have other colours now.
  recolour() { if (this.answer) this.drawBundles(this.answer); }

  drawBundles({ all, rows }) {
    this.answer = { all, rows };
    this.rows = rows;
    byId("bundles-count").textContent = all > rows.length ? `${count(rows.length)} of ${count(all)} bundles are listed.` : `${counted(all)}.`;
    byId("bundles-more").hidden = all <= rows.length || this.limit >= ROWS_MAX;
    this.bundles.draw(rows, (row) => row.bundle);
    this.choice.keep(new Set(rows.map((row) => row.bundle)));
    this.drawTools();
  }

  drawTools() {
    const chosen = [...this.choice.keys], why = whyNot(this.atMs !== null);
    const stamp = JSON.stringify([chosen.length, why, this.rows.length]);
    if (this.stamp === stamp) return;
    this.stamp = stamp;
    const all = button("Choose all that are listed", () => this.choose(this.rows.slice(0, MOST)), ""), none = button("Choose none", () => this.choose([]), "");
    const acts = Object.entries(VERBS).map(([action, verb]) => button(`${verb} the chosen…`, () => act(action, [...this.choice.keys].map((bundle) => ({ bundle }))), ""));
    byId("bundle-tools").replaceChildren(...(why ? [el("span", why, "note")] : chosen.length ? [...acts, none, el("span", `${count(chosen.length)} chosen${chosen.length >= MOST ? ", the most at once" : ""}`)] : this.rows.length ? [all] : []));
  }

  choose(rows) {
    this.choice.keys = new Set(rows.map((row) => row.bundle));
    this.bundles.draw(this.rows, (row) => row.bundle);
    this.drawTools();
  }

  drawNamespaces() {
    const text = byId("namespaces-text").value.trim(), sort = byId("namespaces-sort").value;
    const rows = this.spaces.filter((row) => row.namespace.includes(text));
    const by = { bundles: (row) => -row.bundles, unserved: (row) => row.served - row.bundles, name: () => 0 }[sort];
    rows.sort((a, b) => by(a) - by(b));
    byId("namespaces-count").textContent = `${count(rows.length)}${this.hasMore ? " of the first" : ""} ${rows.length === 1 && !this.hasMore ? "namespace" : "namespaces"}${rows.length > ROWS_MAX ? `; ${count(ROWS_MAX)} are listed` : ""}.`;
    this.namespaces.draw(rows.slice(0, ROWS_MAX), (row) => row.namespace);
  }

  // A broker that is filtered by may be gone; then it is a choice still.
  drawBrokers(rows) {
    const names = [...new Set([...rows.map((row) => row.broker), byId("bundles-broker").value])].filter(Boolean).sort();
    if (names.join() === this.brokers.join()) return;
    this.brokers = names;
    const host = byId("bundles-broker"), chosen = host.value;
    host.replaceChildren(el("option", "any", "", { value: "" }), ...names.map((name) => el("option", name, "", { value: name })));
    host.value = chosen;
  }

  ofBroker(broker) {
    const host = byId("bundles-broker");
    if (broker && ![...host.options].some((option) => option.value === broker)) host.append(el("option", broker, "", { value: broker }));
    host.value = broker ?? "";
    this.limit = STEP;
    this.ask(true);
  }

  // Running ones first: drains by their cordons, others by their requests.
  drawOperations(operations, cordons, brokers, between) {
    const steps = new Map((between?.rows ?? []).map((row) => [row.operation, row]));
    const drains = cordons.filter((row) => row.drain !== null).map((row) => {
      const left = brokers.find((one) => one.broker === row.broker)?.bundles ?? 0, isRunning = row.drain_state === "running";
      const far = isRunning ? `running for ${duration(now() - row.since_ms)}: ${counted(left)} left` : `${row.drain_state ?? "ended"}${row.drain_message ? `: ${row.drain_message}` : ""}`;
      return { id: row.drain, asked_ms: row.since_ms, command: "drain", name: row.broker, by: row.by, far, isRunning };
    });
    const others = operations.map((row) => ({ ...row, far: farOf(row, steps.get(row.id)), isRunning: ["asked", "running"].includes(row.status) }));
    const rows = [...drains, ...others].sort((a, b) => b.isRunning - a.isRunning || b.asked_ms - a.asked_ms);
    const running = rows.filter((row) => row.isRunning).length;
    byId("operations-count").textContent = running ? `${count(running)} under way.` : "";
    this.operations.draw(rows, (row) => row.id);
  }
}

function farOf(row, step) {
  const by = row.executed_by ? `, by ${row.executed_by}` : "";
  if (row.status === "running") return `running${by}${step ? `: ${step.state}${step.to ? ` to ${step.to}` : ""}` : ""}, for ${duration(now() - row.asked_ms)}`;
  if (row.status === "asked") return `waits for a broker, for ${duration(now() - row.asked_ms)}`;
  return `${row.status}${row.result && row.result !== row.status ? `: ${row.result}` : ""}${by}${row.message ? `. ${row.message}` : ""}`;
}
