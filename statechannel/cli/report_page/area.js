// Bundles owned by each broker over time, with the gaps and rejections above, on one axis.
function drawArea() {
  const host = document.getElementById("area"), { area, gaps, rejected, complete_ms: complete } = report;
  const TOP = 62, HEIGHT = 240, BOTTOM = TOP + HEIGHT;
  const root = canvas(host, BOTTOM + 26);
  if (!area.rows.length) {
    root.append(svg("text", { class: "empty", x: LEFT, y: TOP + 40 }, "No broker owned a bundle in the time that can be told of."));
    return;
  }
  const from = area.first_ms, to = Math.max(area.last_ms, from + 1);
  const x = timeAxis(root, from, to, TOP - 46, BOTTOM);
  const clamp = (ms) => x(Math.min(Math.max(ms, from), to));
  const rows = filled(area), most = Math.max(1, ...rows.map((row) => sum(row)));
  const y = (count) => BOTTOM - (count / most) * HEIGHT;
  const tens = 10 ** Math.floor(Math.log10(most)), rise = Math.max(1, [tens / 5, tens / 2, tens, tens * 2].find((one) => most / one <= 6) ?? tens * 2);
  for (let count = 0; count <= most; count += rise) {
    root.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(count), y2: y(count) }));
    root.append(svg("text", { x: LEFT - 6, y: y(count) + 4, "text-anchor": "end" }, count.toLocaleString("en")));
  }
  if (complete !== null && complete > from) root.append(svg("rect", { class: "unknown", x: clamp(from), width: clamp(complete) - clamp(from), y: TOP, height: HEIGHT }));
  const under = rows.map(() => 0);
  area.brokers.forEach((broker, index) => {
    const top = [], bottom = [];
    rows.forEach((row, at) => {
      const left = clamp(row[0]), right = clamp(row[0] + area.width_ms), low = under[at], high = (under[at] += row[index + 1]);
      top.push(`${left},${y(high)}`, `${right},${y(high)}`);
      bottom.unshift(`${right},${y(low)}`, `${left},${y(low)}`);
    });
    root.append(svg("polygon", { class: `stack ${colour(broker.name)}`, points: [...top, ...bottom].join(" "), "data-broker": broker.name }));
  });
  strip(root, "gaps", "gap", gaps.times, 14, clamp, (row) => row[2]);
  strip(root, "rejected", "reject", rejected.times, 37, clamp, (row) => row[1]);
  follow(host, root, rows, x, clamp, TOP, BOTTOM);
}

const sum = (row) => row.slice(1).reduce((total, one) => total + one, 0);

// Buckets in which nobody owned anything are in no row.
function filled(area) {
  const known = new Map(area.rows.map((row) => [row[0], row])), every = [];
  const first = Math.floor(area.first_ms / area.width_ms) * area.width_ms;
  for (let at = first; at <= area.last_ms; at += area.width_ms) every.push(known.get(at) ?? [at, ...area.brokers.map(() => 0)]);
  return every;
}

function strip(root, label, className, times, top, clamp, weight) {
  root.append(svg("text", { x: LEFT - 6, y: top + 12, "text-anchor": "end" }, label));
  const most = Math.max(1, ...times.rows.map(weight));
  for (const row of times.rows) {
    const left = clamp(row[0]), width = Math.max(2.5, clamp(row[0] + times.width_ms) - left), height = 4 + 14 * Math.sqrt(weight(row) / most);
    root.append(svg("rect", { class: className, x: left, width, y: top + 18 - height, height, "data-count": row[1] }));
  }
}

// The figures of a moment: where the mouse is, or where the arrow keys have gone.
function follow(host, root, rows, x, clamp, top, bottom) {
  const line = svg("line", { class: "cursor", y1: top - 46, y2: bottom, visibility: "hidden" });
  root.append(line);
  let now = rows.length - 1;
  const show = (index, px, py) => {
    now = Math.min(Math.max(index, 0), rows.length - 1);
    const row = rows[now], at = clamp(row[0] + report.area.width_ms / 2);
    for (const [key, value] of [["x1", at], ["x2", at], ["visibility", "visible"]]) line.setAttribute(key, value);
    const figures = report.area.brokers.map((broker, index) => [row[index + 1], broker.name]).filter(([count]) => count > 0);
    const named = figures.slice(0, 15).map(([count, name]) => `${name}: ${Math.round(count * 100) / 100}`);
    if (figures.length > 15) named.push(`and ${figures.length - 15} more`);
    const within = (times) => times.rows.filter((one) => one[0] < row[0] + report.area.width_ms && one[0] + times.width_ms > row[0]);
    const gaps = within(report.gaps.times), rejected = within(report.rejected.times);
    if (gaps.length) named.push(`gaps here: ${gaps.reduce((n, one) => n + one[1], 0)}, longest ${duration(Math.max(...gaps.map((one) => one[2])))}`);
    if (rejected.length) named.push(`rejected here: ${rejected.reduce((n, one) => n + one[1], 0)}`);
    const [sx, sy] = px === undefined ? onScreen(root, at, top) : [px, py];
    showTip([moment(row[0]), ...named], sx, sy);
  };
  host.onpointermove = (event) => {
    const box = root.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
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
}
