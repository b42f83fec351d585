// The time cursor: the page as of a moment, change by change, and the difference of two moments.
import { ask } from "./feed.js";
import { button, byId, clean, count, counted, el, moment, named, now, timeOf, zone } from "./parts.js";

// The question of a moment as one of the two of a difference.
const PARAMETERS = { place: "", time_ms: "_ms", partition: "_partition", offset: "_offset" };
function asOneOfTwo(which, question) {
  return new URLSearchParams([...new URLSearchParams(question)].map(([name, value]) => [which + PARAMETERS[name], value]));
}

export class Cursor {
  // `moved` gets the moment as it may be typed; null: the present.
  constructor(show, showPast, showPresent, moved) {
    this.show = show;
    this.moved = moved;
    this.showPast = showPast;
    this.showPresent = showPresent;
    this.at = null;
    this.question = "";
    this.marked = null;
    this.turn = 0;
    this.events = [];
    this.decisions = [];
    byId("time-previous").addEventListener("click", () => this.previous());
    byId("time-next").addEventListener("click", () => (this.at ? this.go(`place=${this.at.next ?? 1e15}`) : this.say("There is no later change yet.")));
    byId("time-previous-event").addEventListener("click", () => this.jump(this.events, -1, "event"));
    byId("time-next-event").addEventListener("click", () => this.jump(this.events, 1, "event"));
    byId("time-previous-decision").addEventListener("click", () => this.jump(this.decisions, -1, "decision"));
    byId("time-next-decision").addEventListener("click", () => this.jump(this.decisions, 1, "decision"));
    byId("time-live").addEventListener("click", () => this.live());
    byId("time-mark").addEventListener("click", () => this.mark());
    byId("time-form").addEventListener("submit", (event) => { event.preventDefault(); this.typed(byId("time-at").value.trim()); });
  }

  say(text) { byId("time-text").textContent = clean(text); }

  typed(text) {
    const offset = /^(?:(\d+):)?(\d{1,15})$/.exec(text), isClock = /^([01]\d|2[0-3])(:[0-5]\d){1,2}(\.\d+)?$/.test(text);
    if (isClock) { // as tables have it: the last time that it was so late
      const at = timeOf(`${moment(now()).slice(0, 10)}T${text}`);
      return this.go(`time_ms=${at > now() ? at - 86_400_000 : at}`);
    }
    if (offset) return this.go(`offset=${offset[2]}&partition=${offset[1] ?? 0}`);
    const at = /^\d{4}-\d\d-\d\d/.test(text) ? (/Z|[+-]\d\d:?\d\d$/.test(text) ? Date.parse(text) : timeOf(text.replace(" ", "T"))) : NaN;
    if (Number.isNaN(at)) return this.say(`${text} is no time and no offset. Use 12:17:34, 2026-01-01T12:00:00, OFFSET, or PARTITION:OFFSET.`);
    return this.go(`time_ms=${at}`);
  }

  previous() {
    if (this.at === null) return this.go("place=1000000000000000", -1);
    if (this.at.previous !== null) return this.go(`place=${this.at.previous}`);
    return this.at.at_ms ? this.go(`time_ms=${this.at.at_ms - 1}`) : this.say("There is no earlier change in memory.");
  }

  jump(times, way, what) {
    const from = this.at?.at_ms ?? (way < 0 ? Infinity : 0);
    const fits = times.filter((at) => (way < 0 ? at < from : at > from)).sort((a, b) => (a - b) * way);
    return fits.length ? this.go(`time_ms=${fits[0]}`) : this.say(`No ${what} ${way < 0 ? "before" : "after"} this moment.`);
  }

  async go(question, back = 0) {
    const turn = ++this.turn;
    try {
      let at = await ask(`v1/page/at?${question}`);
      if (back && at.previous !== null) at = await ask(`v1/page/at?place=${at.previous}`);
      if (turn !== this.turn) return; // another moment was asked for meanwhile, or the present
      this.at = at;
      this.question = at.place === null ? question : `place=${at.place}`;
      this.draw();
      this.showPast(at);
      const step = at.steps.at(-1);
      this.moved(step && question.startsWith("place") ? `${step.partition}:${step.offset}` : at.at_ms ? new Date(at.at_ms).toISOString() : "0");
    } catch (error) {
      if (turn === this.turn) this.say(error.message);
    }
  }

  live() {
    this.turn += 1;
    this.at = null;
    document.documentElement.dataset.past = "no";
    byId("time-live").disabled = true;
    byId("time-body").replaceChildren();
    this.say("The page shows the present.");
    this.showPresent();
    this.moved(null);
  }

  async mark() {
    const place = this.at ? this.at.place : this.newest, here = { place, at: this.at?.at_ms ?? 0, question: this.at ? this.question : `place=${place}` };
    const marked = this.marked;
    if (marked === null) {
      if (place === undefined) return;
      this.marked = here;
      byId("time-mark").textContent = "Compare with the mark";
      this.say(`${place === null ? `${moment(here.at)} ${zone()}` : `Change ${count(place)}`} is marked: go to another moment, and compare.`);
      return;
    }
    this.marked = null;
    byId("time-mark").textContent = "Mark, to compare";
    // What was read from the log has no number, and is older than what is in memory.
    const isLater = here.place === null ? marked.place === null && here.at >= marked.at : marked.place === null || here.place >= marked.place;
    this.say("Reading …");
    try {
      const found = await ask(`v1/page/difference?${asOneOfTwo("first", marked.question)}&${asOneOfTwo("second", here.question)}`);
      // The page is that of the later moment, and stays there: nothing that comes later is beside the difference.
      await this.go((isLater ? here : marked).question);
      this.difference(found);
    } catch (error) {
      this.say([error.message, error.problem?.hint].filter(Boolean).join(". "));
    }
  }

  difference(found) {
    const body = byId("time-body"), list = el("ul");
    for (const pair of found.pairs) {
      const item = el("li");
      item.append(`${count(pair.bundles)} from `, named(pair.from), " to ", named(pair.to));
      list.append(item);
    }
    const bundles = el("ul");
    for (const row of found.bundles.slice(0, 50)) {
      const item = el("li");
      item.append(button(row.bundle, () => this.show(row.bundle)), `: ${clean(row.from ?? "no broker")} to ${clean(row.to ?? "no broker")}`);
      bundles.append(item);
    }
    const brokers = el("ul"), when = (ms) => (ms === null ? "" : ` (${moment(ms)} ${zone()})`);
    const change = (place, ms) => (place === null ? `${moment(ms)} ${zone()}, read from the log,` : `change ${count(place)}${when(ms)}`);
    for (const row of found.brokers) {
      const by = row.after - row.before, item = el("li");
      item.append(named(row.broker), `: ${count(row.before)} to ${counted(row.after)}${by ? ` (${by > 0 ? "+" : ""}${count(by)})` : ""}`);
      brokers.append(item);
    }
    this.say(`Between ${change(found.first, found.first_ms)} and ${change(found.second, found.second_ms)}: ${counted(found.all, "bundle has", "bundles have")} another owner, ${counted(found.gone, "is", "are")} gone. The page shows the later moment.`);
    body.replaceChildren(el("h3", "Moves"), list, el("h3", "Brokers"), brokers, el("h3", "Bundles"), bundles);
  }

  draw() {
    const at = this.at, body = byId("time-body");
    document.documentElement.dataset.past = "yes";
    byId("time-live").disabled = false;
    const where = at.at_ms ? `${moment(at.at_ms)} ${zone()}` : "before the first change that is in memory";
    this.say(`As of ${where}${at.place === null ? ", read from the log" : `, change ${count(at.place)}`}${at.whole ? "" : "; compaction has removed records before it, so that bundles without a later record are missing"}.`);
    const facts = el("dl", null, "facts");
    for (const [owner, number] of Object.entries(at.owners)) {
      const dt = el("dt");
      dt.append(named(owner));
      facts.append(dt, el("dd", counted(number)));
    }
    facts.append(el("dt", "between owners"), el("dd", at.between.rows.map((row) => `${row.bundle}: ${row.state} ${row.from ?? ""} to ${row.to ?? "?"}`).join("; ") || "none"));
    const steps = el("ol", null, "steps");
    const last = at.steps.at(-1)?.place;
    for (const step of at.steps.slice(-8).reverse()) {
      const item = el("li", null, step.place === last ? "here" : "");
      const from = step.before?.owner, to = step.after?.owner;
      const text = step.after === null ? "ended by a split, or deleted" : from === to ? step.after.state : `${from ?? "no broker"} to ${to ?? "no broker"} (${step.after.state})`;
      item.append(`${moment(step.at_ms).slice(11)} offset ${step.partition}:${step.offset} `, button(step.bundle, () => this.show(step.bundle)), `: ${clean(text)}, by ${clean(step.by)}${step.flow ? `, ${clean(step.flow)}` : ""}${step.reason ? `: ${clean(step.reason)}` : ""}`);
      steps.append(item);
    }
    body.replaceChildren(facts, el("h3", "The change here, and those before it"), steps);
  }
}
