// Bundles owned by each broker over time, with incidents, gaps and rejections above, on one axis.
const GAPS_HEIGHT = 54;
let showAt = () => {};

function drawArea() {
  const host = document.getElementById("area"), { area, gaps, rejected, incidents, complete_ms: complete } = report;
  const TOP = 128, HEIGHT = 240, BOTTOM = TOP + HEIGHT;
  const root = canvas(host, BOTTOM + 26);
  if (!area.rows.length) {
    root.append(svg("text", { class: "empty", x: 8, y: TOP + 40 }, "No broker owned a bundle in the time shown."));
    return;
  }
  const from = area.first_ms, to = Math.max(area.last_ms, from + 1);
  const x = timeAxis(root, from, to, 26, BOTTOM);
  const clamp = (ms) => x(Math.min(Math.max(ms, from), to));
  const rows = filled(area), idle = new Map(area.unserved.map((row) => [row[0], row]));
  const between = (at) => idle.get(at)?.at(-1) ?? 0;
  const most = Math.max(1, ...rows.map((row) => sum(row) + between(row[0])));
  const y = (count) => BOTTOM - (count / most) * HEIGHT;
  const tens = 10 ** Math.floor(Math.log10(most)), rise = Math.max(1, [tens / 5, tens / 2, tens, tens * 2].find((one) => most / one <= 6) ?? tens * 2);
  for (let count = 0; count <= most; count += rise) {
    root.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(count), y2: y(count) }));
    root.append(svg("text", { x: LEFT - 6, y: y(count) + 4, "text-anchor": "end" }, count.toLocaleString("en")));
  }
  if (complete !== null && complete > from) root.append(svg("rect", { class: "unknown", x: clamp(from), width: clamp(complete) - clamp(from), y: TOP, height: HEIGHT }));
  const under = rows.map(() => 0), hatched = svg("g", { class: "idle" });
  const hatch = (row, low, high, kind) => {
    if (y(low) - y(high) < 0.3) return;
    const left = clamp(row[0]), place = { x: left, width: Math.max(1.5, clamp(row[0] + area.width_ms) - left), y: y(high), height: y(low) - y(high) };
    hatched.append(svg("rect", { ...place, class: `under idle-${kind}` }), svg("rect", { ...place, fill: `url(#hatch-${kind})` }));
  };
  area.brokers.forEach((broker, index) => {
    const top = [], bottom = [];
    rows.forEach((row, at) => {
      const left = clamp(row[0]), right = clamp(row[0] + area.width_ms), low = under[at], high = (under[at] += row[index + 1]);
      top.push(`${left},${y(high)}`, `${right},${y(high)}`);
      bottom.unshift(`${right},${y(low)}`, `${left},${y(low)}`);
      hatch(row, high - Math.min(row[index + 1], idle.get(row[0])?.[index + 1] ?? 0), high, "owned");
    });
    root.append(svg("polygon", { class: `stack ${colour(broker.name)}`, points: [...top, ...bottom].join(" "), "data-broker": broker.name }));
  });
  rows.forEach((row, at) => hatch(row, under[at], under[at] + between(row[0]), "between"));
  root.append(hatched);
  incidentStrip(root, incidents, clamp, BOTTOM);
  gapStrip(root, gaps.times, clamp);
  rejectedStrip(root, rejected.times, clamp);
  follow(host, root, rows, idle, clamp, TOP, BOTTOM);
}

const sum = (row) => row.slice(1).reduce((total, one) => total + one, 0);
const bucket = (area, at) => Math.floor(at / area.width_ms) * area.width_ms;

// Buckets in which nobody owned anything are in no row.
function filled(area) {
  const known = new Map(area.rows.map((row) => [row[0], row])), every = [];
  for (let at = bucket(area, area.first_ms); at <= area.last_ms; at += area.width_ms) every.push(known.get(at) ?? [at, ...area.brokers.map(() => 0)]);
  return every;
}

function label(root, text, y) { root.append(svg("text", { class: "strip", x: 2, y }, text)); }

function sign(kind, x, y) {
  const [className, path] = report.signs[kind];
  return svg("path", { class: `sign ${className}`, d: path, transform: `translate(${x} ${y})`, "data-kind": kind });
}

function incidentStrip(root, incidents, clamp, bottom) {
  label(root, "incidents", 15);
  let last = -Infinity, low = false;
  for (const one of incidents) {
    const at = clamp(one.at_ms);
    low = at - last < 12 && !low;  // signs that would cover each other have two rows
    last = at;
    root.append(svg("line", { class: "incident", x1: at, x2: at, y1: 26, y2: bottom }), sign(one.kind, at, low ? 20 : 7));
  }
}

// The longest gap that began in each bucket, on a logarithmic scale of powers of ten.
function gapStrip(root, times, clamp) {
  const base = 34 + GAPS_HEIGHT, lengths = times.rows.map((row) => row[2]).filter((one) => one > 0);
  label(root, "gaps", base - 22);
  if (!lengths.length) return;
  const low = Math.floor(Math.log10(Math.min(...lengths))), high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...lengths))));
  const height = (ms) => 3 + ((Math.log10(Math.max(ms, 10 ** low)) - low) / (high - low)) * (GAPS_HEIGHT - 5);
  for (let power = low; power <= high; power += Math.ceil((high - low) / 3)) {
    const at = base - height(10 ** power);
    root.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
    root.append(svg("text", { class: "scale", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, rounded(10 ** power)));
  }
  for (const row of times.rows) {
    const left = clamp(row[0]), width = Math.max(2.5, clamp(row[0] + times.width_ms) - left - 0.5), tall = height(row[2]);
    root.append(svg("rect", { class: "gap", x: left, width, y: base - tall, height: tall, "data-count": row[1] }));
  }
}

function rejectedStrip(root, times, clamp) {
  label(root, "rejected", 110);
  const most = Math.max(1, ...times.rows.map((row) => row[1]));
  for (const row of times.rows) {
    const left = clamp(row[0]), width = Math.max(2.5, clamp(row[0] + times.width_ms) - left), height = 4 + 14 * Math.sqrt(row[1] / most);
    root.append(svg("rect", { class: "reject", x: left, width, y: 116 - height, height, "data-count": row[1] }));
  }
}

// The figures of a moment: where the mouse is, or where the arrow keys have gone.
function follow(host, root, rows, idle, clamp, top, bottom) {
  const line = svg("line", { class: "cursor", y1: 22, y2: bottom, visibility: "hidden" });
  root.append(line);
  let now = rows.length - 1;
  const show = (index, px, py) => {
    now = Math.min(Math.max(index, 0), rows.length - 1);
    const row = rows[now], at = clamp(row[0] + report.area.width_ms / 2);
    for (const [key, value] of [["x1", at], ["x2", at], ["visibility", "visible"]]) line.setAttribute(key, value);
    const figures = report.area.brokers.map((broker, index) => [row[index + 1], broker.name]).filter(([count]) => count > 0);
    const named = figures.slice(0, 15).map(([count, name]) => `${name}: ${Math.round(count * 100) / 100}`);
    if (figures.length > 15) named.push(`and ${figures.length - 15} more`);
    const without = idle.get(row[0]);
    if (without) named.push(`not served: ${Math.round(sum(without) * 100) / 100}`);
    const within = (times) => times.rows.filter((one) => one[0] < row[0] + report.area.width_ms && one[0] + times.width_ms > row[0]);
    const gaps = within(report.gaps.times), rejected = within(report.rejected.times);
    if (gaps.length) named.push(`gaps here: ${gaps.reduce((n, one) => n + one[1], 0)}, longest ${duration(Math.max(...gaps.map((one) => one[2])))}`);
    if (rejected.length) named.push(`rejected here: ${rejected.reduce((n, one) => n + one[1], 0)}`);
    const near = report.incidents.filter((one) => Math.abs(clamp(one.at_ms) - at) < 5);
    named.push(...near.slice(0, 4).map((one) => `${moment(one.at_ms).slice(11)} ${one.message}`));
    const [sx, sy] = px === undefined ? onScreen(root, at, top) : [px, py];
    showTip([moment(row[0]), ...named], sx, sy);
  };
  host.onpointermove = (event) => {
    const box = root.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * root.viewBox.baseVal.width;
    const found = rows.findIndex((row) => clamp(row[0] + report.area.width_ms) >= at);
    show(found < 0 ? rows.length - 1 : found, event.clientX, event.clientY);
  };
  const leave = () => { line.setAttribute("visibility", "hidden"); hideTip(); };
  host.onpointerleave = leave;
  host.onblur = leave;
  host.onkeydown = (event) => {
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: rows.length - 1, PageUp: now - 20, PageDown: now + 20 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  };
  showAt = (ms) => {
    document.getElementById("ownership").scrollIntoView();
    host.focus({ preventScroll: true });
    show(rows.findLastIndex((row) => row[0] <= ms));
  };
}

function drawAreaLegend() {
  const legend = document.getElementById("area-legend");
  legend.append(...brokerKeys());
  const hatch = (kind, text) => {
    const root = svg("svg", { viewBox: "0 0 26 14" });
    root.append(patterns(), svg("rect", { class: `under idle-${kind}`, width: 26, height: 14 }), svg("rect", { fill: `url(#hatch-${kind})`, width: 26, height: 14 }));
    legend.append(legendItem(root, text));
  };
  if (report.area.unserved.length) {
    hatch("owned", "owned, not served");
    hatch("between", "between two owners");
  }
  for (const [kind, [, , text]] of Object.entries(report.signs)) {
    if (!report.incidents.some((one) => one.kind === kind)) continue;
    const root = svg("svg", { viewBox: "0 0 26 14" });
    root.append(sign(kind, 13, 7));
    legend.append(legendItem(root, text));
  }
  for (const [kind, text] of [["gap", "gap, by its length"], ["reject", "rejected records, by number"]]) {
    const root = svg("svg", { viewBox: "0 0 26 14" });
    root.append(svg("rect", { class: kind, x: 11, y: 1, width: 4, height: 12 }));
    legend.append(legendItem(root, text));
  }
}
