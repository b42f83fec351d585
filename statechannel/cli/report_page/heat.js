// All bundles over time: cells coloured by owner or by the time without service. `HeatChart` draws it, as on the live page.
const heat = { rows: [], host: document.getElementById("heat-box"), map: document.getElementById("heat-map") };
const HEAT_ROW = 16, HEAT_MOST = 620, HEAT_AXIS = 20;
const GAP_STEPS = [[100, "up to 100 ms", 0.25], [1e3, "up to 1 s", 0.45], [10e3, "up to 10 s", 0.65], [60e3, "up to 1 min", 0.85], [Infinity, "longer", 1]];
const heatField = (name) => document.getElementById(`heat-${name}`).value;
const heatGap = (row) => row.gaps.reduce((total, one) => total + one[1], 0);
const heatPaint = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const heatOwners = [...report.area.brokers.map((one) => one.name), report.others];
const heatDays = report.heat.columns * report.heat.width_ms > 86400e3;
heat.chart = new HeatChart(heat.map, {
  clock: (ms) => (heatDays ? moment(ms).slice(5, 16) : moment(ms).slice(11, 19)), colourOf: (name) => heatPaint(colour(name)),
  move: heatShow, open: (column, row) => heatOpen(column, row), drawn: heatAxis,
});
for (const row of report.heat.rows) {
  row.owners = new Int16Array(report.heat.columns).fill(-1);
  row.runs.forEach(([column, owner], at) => row.owners.fill(owner < 0 ? -1 : Math.min(owner, heatOwners.length - 1), column, row.runs[at + 1]?.[0] ?? report.heat.columns));
  row.gapAt = new Map(row.gaps);
}

function heatRows() {
  const wanted = heatField("find").trim().toLowerCase(), order = heatField("order"), last = (row) => String(heatOwners[row.owners.at(-1)] ?? "~");
  const rows = report.heat.rows.filter((row) => row.name.toLowerCase().includes(wanted));
  if (order === "gaps") rows.sort((a, b) => heatGap(b) - heatGap(a));
  if (order === "owner") rows.sort((a, b) => last(a).localeCompare(last(b)));
  return rows;
}

function drawHeat() {
  const { columns, first_ms, width_ms: width } = report.heat, rows = (heat.rows = heatRows()), byOwner = heatField("mode") === "owner";
  document.getElementById("heat-count").textContent = rows.length === report.heat.rows.length ? "" : `${rows.length} of ${report.heat.rows.length} bundles`;
  heat.map.style.height = `${Math.min(HEAT_MOST, Math.max(HEAT_ROW, rows.length * HEAT_ROW)) + HEAT_AXIS}px`;
  heat.chart.set({
    rows: rows.map((row) => row.name), columns, from: 0, width, first_ms, owners: heatOwners, bands: heatField("order") === "name", by: byOwner ? "owner" : "gaps",
    cell: (column, row) => ({ parts: [[rows[row].owners[column], 1]], changes: 0, gap: (rows[row].gapAt.get(column) ?? 0) / width }),
    strength: (column, row) => { const ms = rows[row].gapAt.get(column); return ms === undefined ? 0 : GAP_STEPS.find(([most]) => ms <= most)[2]; },
  });
  heatLegend(byOwner);
}

// Incidents, over their moments.
function heatAxis(from, to) {
  const root = canvas(document.getElementById("heat-axis"), 14), x = (ms) => heat.chart.gutter + ((ms - from) / (to - from || 1)) * (WIDTH - heat.chart.gutter);
  for (const one of report.incidents) if (one.at_ms <= to || to >= report.heat.first_ms + report.heat.columns * report.heat.width_ms) root.append(sign(one.kind, x(Math.min(Math.max(one.at_ms, from), to)), 7));
}

function heatLegend(byOwner) {
  const legend = document.getElementById("heat-legend");
  legend.replaceChildren();
  const box = (strength) => {
    const root = svg("svg", { viewBox: "0 0 26 14" });
    root.append(svg("rect", { class: "gap", x: 4, y: 1, width: 18, height: 12, "fill-opacity": strength }));
    return root;
  };
  if (!byOwner) {
    legend.append(...GAP_STEPS.map(([, text, strength]) => legendItem(box(strength), text)), html("span", "gaps within a cell"));
    return;
  }
  // A click on a broker makes it stand out.
  for (const one of report.area.brokers.slice(0, KEYS_MOST)) {
    const item = html("button"), { name } = one;
    item.type = "button";
    item.setAttribute("aria-pressed", String(heat.chart.marked === name));
    item.append(html("span", "", `key ${colour(name)}`), name);
    item.onclick = () => { heat.chart.mark(heat.chart.marked === name ? null : name); heatLegend(true); };
    legend.append(item);
  }
  legend.append(legendItem(box(1), "not served for a quarter of the cell or more"), html("span", "grey: no owner, or the bundle did not exist. A band with too many rows shows the shares of its owners."));
}

function heatShow(column, row, band, event) {
  const one = heat.rows[row], at = report.heat.first_ms + column * report.heat.width_ms, lines = [`${moment(at)}, ${duration(report.heat.width_ms)}`];
  if (band) {
    const names = { [-1]: "no owner", [-2]: "not served" }, all = band.end - band.start;
    lines.unshift(`${band.name}, ${all} bundles`);
    lines.push(...heat.chart.counted(band, column).sort((a, b) => b[1] - a[1]).slice(0, 12).map(([owner, amount]) => `${names[owner] ?? heatOwners[owner]} ${Math.round((100 * amount) / all)} %`), "Enter or a click shows its bundles");
  } else {
    const gap = one.gapAt.get(column), owner = heatOwners[one.owners[column]];
    lines.unshift(one.name);
    lines.push(owner === undefined ? "no owner" : `owner ${owner}`);
    if (gap !== undefined) lines.push(`not served for ${duration(gap)}`);
    lines.push(byName.has(one.name) ? "Enter or a click shows its timeline" : "it has no timeline in this page (--bundle)");
  }
  const box = heat.map.getBoundingClientRect();
  showTip(lines, event?.clientX ?? box.left + heat.chart.x(column), event?.clientY ?? box.top + 30);
}

function heatOpen(column, row) {
  const one = heat.rows[row], width = report.heat.width_ms, at = report.heat.first_ms + column * width;
  if (byName.has(one.name)) showTimeline(one.name, [at - width, at + 2 * width]);
}

for (const name of ["find", "mode", "order"]) document.getElementById(`heat-${name}`).oninput = drawHeat;
for (const [name, zoom] of [["in", () => heat.chart.zoom(0.5)], ["out", () => heat.chart.zoom(2)], ["all", () => heat.chart.zoomTo(null)]]) document.getElementById(`heat-${name}`).onclick = zoom;
document.getElementById("heat-form").onsubmit = (event) => event.preventDefault();
heat.host.onpointerleave = heat.host.onblur = hideTip;
heat.host.onkeydown = (event) => heat.chart.key(event);
