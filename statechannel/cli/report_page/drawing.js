// What all charts share. Texts of the log only ever become text nodes and attributes, never markup.
const report = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
// Drawings have the width that they are shown in, so that their text is never scaled.
let WIDTH = 1200, LEFT = 60;
const RIGHT = 14;

function svg(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function html(name, text = null, className = "") {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function moment(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? `${ms} ms` : date.toISOString().replace("T", " ");
}

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120e3) return `${(ms / 1000).toFixed(2)} s`;
  return ms < 7200e3 ? `${(ms / 60e3).toFixed(1)} min` : `${(ms / 3600e3).toFixed(1)} h`;
}

// A power of ten of milliseconds, in few characters.
function rounded(ms) {
  for (const [unit, name] of [[3600e3, "h"], [60e3, "min"], [1e3, "s"]]) if (ms >= unit) return `${+(ms / unit).toPrecision(2)} ${name}`;
  return `${ms} ms`;
}

const colours = new Map(report.area.brokers.map((one) => [one.name, one.colour]));
function colour(owner) {
  const index = colours.get(owner);
  return index === undefined || index === null ? "others" : `o${index}`;
}

function legendItem(drawing, text) {
  const item = html("span");
  item.append(drawing, text);
  return item;
}

const KEYS_MOST = 24;
function brokerKeys() {
  const keys = report.area.brokers.slice(0, KEYS_MOST).map((one) => legendItem(html("span", "", `key ${colour(one.name)}`), one.name));
  const left = report.area.brokers.length - KEYS_MOST;
  return left > 0 ? [...keys, html("span", `and ${left} more`)] : keys;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3,
  3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3];

// Vertical lines with their times; every line of one axis has the same precision.
function timeAxis(root, from, to, top, bottom, { left = LEFT, right = RIGHT, above = false } = {}) {
  const wide = WIDTH - left - right, x = (ms) => left + (to > from ? (ms - from) / (to - from) : 0.5) * wide;
  const days = to - from > 86400e3, room = days ? 84 : to - from < 8000 ? 92 : 66;
  const lines = Math.max(2, Math.floor(wide / (room + 16))), step = STEPS.find((one) => (to - from) / one <= lines) ?? (to - from) / lines;
  let last = -Infinity;
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    root.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: bottom }));
    const text = moment(at), shown = days ? text.slice(5, 16) : text.slice(11, step < 1000 ? 23 : 19);
    const middle = Math.min(Math.max(x(at), room / 2), WIDTH - room / 2);
    if (middle - last >= room) root.append(svg("text", { x: (last = middle), y: above ? top - 8 : bottom + 15, "text-anchor": "middle" }, shown));
    if (step <= 0) break;
  }
  return x;
}

// A lightness of its own for what the log does not tell, and hatches for states in which a bundle is between two owners.
function patterns() {
  const defs = svg("defs");
  for (const [id, turn, stroke] of [["unknown", 45, "var(--line)"], ["releasing", 45, "rgb(255 255 255 / .38)"], ["splitting", 0, "rgb(255 255 255 / .38)"], ["owned", 45, "var(--bad)"], ["between", -45, "var(--soft)"]]) {
    const pattern = svg("pattern", { id: `hatch-${id}`, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` });
    pattern.append(svg("rect", { width: 3, height: 7, fill: stroke }));
    defs.append(pattern);
  }
  return defs;
}

function canvas(host, height) {
  WIDTH = Math.max(280, host.clientWidth || 1200);
  LEFT = 86;
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, "aria-hidden": "true" });
  root.append(patterns());
  host.replaceChildren(root);
  return root;
}

function showTip(lines, x, y) {
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18)}px`;
}

function hideTip() { tip.hidden = true; }

// Where something of a drawing is on the screen.
function onScreen(root, x, y) {
  const box = root.getBoundingClientRect();
  const scale = box.width / root.viewBox.baseVal.width;
  return [box.left + x * scale, box.top + y * scale];
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
