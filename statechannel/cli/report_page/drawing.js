// What all charts share. Texts of the log only ever become text nodes and attributes, never markup.
const report = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const WIDTH = 1200, LEFT = 60, RIGHT = 14;

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

const brokers = new Map(report.area.brokers.map((one, index) => [one.name, index]));
function colour(owner) {
  const index = brokers.get(owner);
  return index === undefined || owner === report.others ? "others" : `o${index % 12}`;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3,
  3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3];

// Vertical lines with their times; every line of one axis has the same precision.
function timeAxis(root, from, to, top, bottom) {
  const x = (ms) => LEFT + (to > from ? (ms - from) / (to - from) : 0.5) * (WIDTH - LEFT - RIGHT);
  let step = STEPS.find((one) => (to - from) / one <= 9) ?? (to - from) / 8;
  const days = to - from > 86400e3;
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    root.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: bottom }));
    const text = moment(at), shown = days ? text.slice(5, 16) : text.slice(11, step < 1000 ? 23 : 19);
    root.append(svg("text", { x: x(at), y: bottom + 15, "text-anchor": x(at) > WIDTH - 60 ? "end" : "middle" }, shown));
    if (step <= 0) break;
  }
  return x;
}

// A lightness of its own for what the log does not tell, and hatches for states in which a bundle is between two owners.
function patterns() {
  const defs = svg("defs");
  for (const [id, turn, stroke] of [["unknown", 45, "var(--line)"], ["releasing", 45, "rgb(255 255 255 / .38)"], ["splitting", 0, "rgb(255 255 255 / .38)"]]) {
    const pattern = svg("pattern", { id: `hatch-${id}`, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` });
    pattern.append(svg("rect", { width: 3, height: 7, fill: stroke }));
    defs.append(pattern);
  }
  return defs;
}

function canvas(host, height) {
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
  return [box.left + (x * box.width) / WIDTH, box.top + (y * box.width) / WIDTH];
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
