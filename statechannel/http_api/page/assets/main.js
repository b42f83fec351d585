// The page: takes sections as they come, and draws what has changed once a frame.
import { mayAct, mayForce } from "./actions.js";
import { followBundle, hideBundle, onClose, pastBundle, showBundle } from "./bundle.js";
import { Cursor } from "./cursor.js";
import { ask, follow, state } from "./feed.js";
import { Heat } from "./heat.js";
import { RESOURCES, Sections, differingIn, drawHead, drawLight, drawProblems, drawVerdict } from "./sections.js";
import { byId, changeZone, hasNews, now, setColours, zone } from "./parts.js";
import { Tables } from "./tables.js";

const shown = {};
const dirty = new Set();
let frame = 0;
// The address has what the page shows: a bundle, a broker, a moment. It works when it is opened, and on the way back.
const PARTS = ["bundle", "broker", "at"];
let here = {}, atAsked = null;
function go(changes, replaces = false) {
  const hash = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(changes)) {
    if (value) hash.set(name, value);
    else hash.delete(name);
  }
  const text = String(hash), url = text ? `#${text}` : location.pathname;
  if (`#${text}` !== (location.hash || "#")) history[replaces ? "replaceState" : "pushState"](null, "", url);
}
const show = (bundle) => { go({ bundle }); here.bundle = null; arrive(); };
const showBroker = (broker) => {
  byId("bundles-text").value = "";
  go({ broker });
  arrive();
  byId("bundles").scrollIntoView({ block: "start" });
};
function moved(at) {
  here.at = at;
  go({ at }, at !== null && atAsked !== null);
  atAsked = null;
}
const cursor = new Cursor(show, showPast, showPresent, moved);
const heat = new Heat(show, (atMs, isNewest) => { if (!isNewest) cursor.go(`time_ms=${atMs}`); }, (start, end) => ask(heatPath(past, { start, ...(end ? { end } : {}) })));
const sections = new Sections(show, showBroker, mayAct, mayForce);
const showNamespace = (namespace) => {
  showBroker(null);
  byId("bundles-text").value = `${namespace}/`;
  tables.ask(true);
};
const tables = new Tables(show, showBroker, showNamespace);
onClose(() => { go({ bundle: null }); arrive(); });
byId("bundles-broker").addEventListener("change", (event) => { go({ broker: event.target.value }); arrive(); });
let cells = [], past = null, hadNews = true;

function take(message) {
  for (const [name, section] of Object.entries(message.sections)) {
    if (name === "cells") cells.push(section);
    else shown[name] = section;
    if (name === "heat") cells = [];
    dirty.add(name);
  }
  frame ||= requestAnimationFrame(draw);
}

function draw() {
  frame = 0;
  if (dirty.has("colours")) {
    setColours(shown.colours);
    tables.recolour();
  }
  if (dirty.has("brokers") || dirty.has("loads") || dirty.has("decisions")) state.brokers = (shown.brokers ?? []).map((row) => ({ ...row, load: loadOf(row.broker) }));
  tables.drawBrokers(shown.brokers ?? []);
  if (shown.head) cursor.newest = shown.head.place;
  if (dirty.has("events")) cursor.events = shown.events.map((row) => row.at_ms);
  if (dirty.has("decisions")) cursor.decisions = (shown.decisions?.decisions ?? []).map((row) => row.at_ms);
  if (past === null) drawPresent();
  else if (dirty.has("heat")) showPast(past);  // its rows are those of another map now
  drawNow();
  followBundle(shown.head?.place, dirty.has("colours"));
  tables.follow(shown.head?.place, past?.at_ms ?? null);
  const root = document.documentElement;
  root.dataset.ready = "yes";
  root.dataset.place = shown.head?.place ?? "";
  root.dataset.delayMs = shown.head?.newest_ms ? String(Math.round(now() - shown.head.newest_ms)) : "";
  dirty.clear();
}

function drawPresent() {
  if (dirty.has("decisions") || dirty.has("loads")) sections.loads = loadsOf(shown.decisions?.decisions ?? [], shown.loads?.brokers ?? []);
  if (["head", "replicas", "brokers"].some((name) => dirty.has(name))) drawHead(shown.head, shown.replicas, shown.brokers ?? []);
  if (dirty.has("problems") || dirty.has("brokers")) drawProblems(shown.problems ?? [], show, shown.brokers ?? [], mayAct());
  if (["brokers", "decisions", "loads", "cordons", "colours", "replicas"].some((name) => dirty.has(name))) {
    sections.cordons = Object.fromEntries((shown.cordons?.cordons ?? []).map((row) => [row.broker, row]));
    sections.differing = differingIn(shown.replicas);
    sections.drawBrokers(shown.brokers ?? [], shown.head?.mean ?? 0);
  }
  if (shown.between) sections.drawBetween(shown.between);
  if (["operations", "cordons", "between"].some((name) => dirty.has(name))) tables.drawOperations(shown.operations ?? [], shown.cordons?.cordons ?? [], shown.brokers ?? [], shown.between);
  if (dirty.has("events")) sections.drawEvents(shown.events);
  if (dirty.has("decisions")) sections.drawDecisions(shown.decisions);
  if (dirty.has("heat")) heat.load(shown.heat);
  for (const change of cells) heat.change(change);
  if (dirty.has("loads") || dirty.has("heat")) heat.takeLoads(shown.loads?.bundles ?? []);
  cells = [];
}

// The load by which brokers are compared, in percent: that of the most used resource, else the balancer's score.
function loadOf(broker) {
  const { score, report } = loadsOf(shown.decisions?.decisions ?? [], shown.loads?.brokers ?? [])[broker] ?? {};
  const used = RESOURCES.map(([name]) => report?.[name]).filter((value) => value != null);
  return used.length ? Math.max(...used) : score === undefined ? null : 100 * score;
}

// What brokers report of their resources; the newest decision has the score by which the balancer compares them.
function loadsOf(decisions, reports) {
  const newest = decisions.findLast((row) => row.scores && Object.keys(row.scores).length), loads = {};
  for (const [broker, score] of Object.entries(newest?.scores ?? {})) if (score !== null) loads[broker] = { score };
  for (const report of reports) loads[report.broker] = { ...loads[report.broker], report };
  return loads;
}

// Everything as of a moment: what cannot be known of it is said, and nothing of the present stays beside it.
async function showPast(at) {
  past = at;
  sections.begin(at.at_ms);
  sections.loads = null;
  sections.differing = [];
  sections.cordons = {};
  drawHead({ ...at.head, broker: shown.head?.broker, place: at.place }, null, [], at);
  drawNow();
  drawProblems([], show);
  byId("problems-past").hidden = false;
  byId("fine").hidden = true;
  sections.drawBrokers(at.brokers, at.head.mean ?? 0);
  sections.drawBetween(at.between);
  sections.drawEvents(at.events);
  sections.drawDecisions({ waiting: true });
  pastBundle(at);
  const [map, reports] = await Promise.allSettled([
    at.place === null ? Promise.reject(new Error("not known of this moment, as it was read from the log")) : ask(heatPath(at)),
    ask(`v1/page/reports?at_ms=${at.at_ms}`),
  ]);
  if (past !== at) return;
  if (map.status === "fulfilled") heat.load(map.value, at.at_ms);
  else heat.unknown(map.reason.message);
  const found = reports.status === "fulfilled" ? reports.value : { decisions: { error: reports.reason.message }, loads: null };
  sections.loads = loadsOf([], found.loads?.brokers ?? []);
  sections.drawBrokers(at.brokers, at.head.mean ?? 0);
  sections.drawDecisions(found.decisions, "No decision in the hour before, or none that is kept still.");
}

function showPresent() {
  if (past === null) return;
  past = null;
  sections.begin(null);
  byId("problems-past").hidden = true;
  pastBundle(null);
  for (const name of Object.keys(shown)) dirty.add(name);
  cells = [];
  // Cells that came meanwhile are not in the map that was sent at first.
  ask(heatPath()).then((map) => { if (past === null) heat.load(map); }, () => {});
  frame ||= requestAnimationFrame(draw);
}

function heatPath(at = null, part = {}) {
  return `v1/page/heat?${new URLSearchParams({ ...(at === null ? {} : { place: at.place, at_ms: at.at_ms }), ...part })}`;
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = byId("search-name").value.trim();
  if (/^[^/]+\/[^/]+$/.test(name)) showNamespace(name);
  else if ((shown.brokers ?? []).some((row) => row.broker === name)) showBroker(name);
  else if (name) show(name);
});
addEventListener("popstate", arrive);
function arrive() {
  const hash = new URLSearchParams(location.hash.slice(1)), before = here;
  here = Object.fromEntries(PARTS.map((name) => [name, hash.get(name)]));
  if (here.bundle !== before.bundle) (here.bundle ? showBundle : hideBundle)(here.bundle);
  if (here.broker !== before.broker) {
    tables.ofBroker(here.broker);
    heat.highlight(here.broker);
  }
  if (here.at === (before.at ?? null)) return;
  atAsked = here.at;
  if (here.at === null) cursor.live();
  else cursor.typed(here.at);
}
byId("zone").textContent = `Times in ${zone()}`;
byId("zone").addEventListener("click", changeZone);
byId("time-at").placeholder = `12:17:34 ${zone()}`;
// What depends on the time alone, or on silence.
function drawNow() {
  drawLight(shown.head, shown.brokers ?? [], past);
  drawVerdict(shown.head, shown.problems ?? [], past);
  if (hadNews === hasNews()) return;
  hadNews = !hadNews;
  if (past === null) sections.drawBrokers(shown.brokers ?? [], shown.head?.mean ?? 0);  // no actions of a page without news
  followBundle(shown.head?.place, true);
  tables.drawTools();
}
setInterval(() => {
  drawNow();
  if (shown.between && past === null) sections.drawBetween(shown.between);
  tables.drawOperations(shown.operations ?? [], shown.cordons?.cordons ?? [], shown.brokers ?? [], shown.between);
}, 1000);
follow(take, drawNow);
arrive();
