// The page: takes sections as they come, and draws what has changed once a frame.
import { act, mayAct, showBundle } from "./bundle.js";
import { Cursor } from "./cursor.js";
import { ask, follow } from "./feed.js";
import { Heat } from "./heat.js";
import { Sections, drawHead, drawLight, drawProblems } from "./sections.js";
import { byId, clean, now, setColours, silence } from "./parts.js";

const shown = {};
const dirty = new Set();
let frame = 0;
const show = (name) => {
  history.replaceState(null, "", `#bundle=${encodeURIComponent(name)}`);
  showBundle(name);
};
const cursor = new Cursor(show);
const heat = new Heat(show, (atMs, isNewest) => { if (!isNewest) cursor.go(`time_ms=${atMs}`); });
const sections = new Sections(show, act, mayAct);
let cells = [], namespace = "";

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
  if (dirty.has("colours")) setColours(shown.colours);
  if (dirty.has("decisions") || dirty.has("loads")) takeLoads();
  if (dirty.has("head")) { drawHead(shown.head); cursor.newest = shown.head.place; }
  if (dirty.has("problems")) drawProblems(shown.problems, show);
  if (dirty.has("brokers") || dirty.has("decisions") || dirty.has("loads") || dirty.has("colours")) sections.drawBrokers(shown.brokers ?? [], shown.head?.mean ?? 0);
  if (shown.between) sections.drawBetween(shown.between);
  if (dirty.has("events")) { sections.drawEvents(shown.events); cursor.events = shown.events.map((row) => row.at_ms); }
  if (dirty.has("decisions")) sections.drawDecisions(shown.decisions);
  if (namespace === "") {
    if (dirty.has("heat")) heat.load(shown.heat);
    for (const change of cells) heat.change(change);
  }
  if (dirty.has("loads") || dirty.has("heat")) heat.takeLoads(shown.loads?.bundles ?? []);
  cells = [];
  dirty.clear();
  const root = document.documentElement;
  root.dataset.ready = "yes";
  root.dataset.place = shown.head?.place ?? "";
  root.dataset.delayMs = shown.head?.newest_ms ? String(Math.round(now() - shown.head.newest_ms)) : "";
}

// What brokers report of their resources; the newest decision has the score by which the balancer compares them.
function takeLoads() {
  const decisions = shown.decisions?.decisions ?? [];
  cursor.decisions = decisions.map((row) => row.at_ms);
  const newest = decisions.findLast((row) => row.scores && Object.keys(row.scores).length);
  sections.loads = {};
  for (const [broker, score] of Object.entries(newest?.scores ?? {})) if (score !== null) sections.loads[broker] = { score };
  for (const report of shown.loads?.brokers ?? []) sections.loads[report.broker] = { ...sections.loads[report.broker], report };
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = byId("search-name").value.trim();
  if (name) show(name);
});
byId("heat-namespace").addEventListener("change", async (event) => {
  namespace = event.target.value.trim();
  if (!namespace) { heat.load(shown.heat); return; }
  try {
    heat.load(await ask(`v1/page/heat?namespace=${encodeURIComponent(namespace)}`));
  } catch (error) {
    byId("heat-tip").textContent = clean(error.message);
  }
});
addEventListener("hashchange", fromHash);
function fromHash() {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("bundle");
  if (wanted) showBundle(wanted);
}
setInterval(() => {
  drawLight(shown.head, silence());
  if (shown.between) sections.drawBetween(shown.between);
}, 1000);
follow(take, () => drawLight(shown.head, silence()));
fromHash();
