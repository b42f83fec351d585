// All bundles over time: a row each, cells coloured by owner or by the time without service.
const heat = {
  rows: [], height: 3, gutter: 0, row: 0, column: 0,
  host: document.getElementById("heat-scroll"), map: document.getElementById("heat-map"), cell: document.getElementById("heat-cell"),
};
const HEAT_LABEL = 12, GAP_STEPS = [[100, "up to 100 ms", 0.25], [1e3, "up to 1 s", 0.45], [10e3, "up to 10 s", 0.65], [60e3, "up to 1 min", 0.85], [Infinity, "longer", 1]];
const heatField = (name) => document.getElementById(`heat-${name}`).value;
const heatGap = (row) => row.gaps.reduce((total, one) => total + one[1], 0);

function heatOwner(row, column) {
  const run = row.runs.findLast((one) => one[0] <= column);
  return run ? run[1] : -1;
}

function ownerName(index) { return index < 0 ? null : report.area.brokers[index]?.name ?? report.others; }

function heatRows() {
  const wanted = heatField("find").trim().toLowerCase(), order = heatField("order");
  const rows = report.heat.rows.filter((row) => row.name.toLowerCase().includes(wanted));
  if (order === "gaps") rows.sort((a, b) => heatGap(b) - heatGap(a));
  if (order === "owner") rows.sort((a, b) => String(ownerName(a.runs.at(-1)?.[1] ?? -1) ?? "~").localeCompare(String(ownerName(b.runs.at(-1)?.[1] ?? -1) ?? "~")));
  return rows;
}

function drawHeat() {
  const { map, host } = heat, { columns, first_ms: first, width_ms: width } = report.heat, rows = (heat.rows = heatRows());
  document.getElementById("heat-count").textContent = rows.length === report.heat.rows.length ? "" : `${rows.length} of ${report.heat.rows.length} bundles`;
  heat.height = rows.length <= 40 ? 16 : rows.length <= 80 ? 9 : rows.length <= 250 ? 4 : rows.length <= 500 ? 3 : 2;
  const space = host.clientWidth;
  const narrow = space < 560;
  heat.gutter = heat.height < HEAT_LABEL ? 0 : narrow ? 112 : 250;
  map.dataset.gutter = heat.gutter;
  const wide = Math.max(10, space - heat.gutter - (narrow ? 0 : RIGHT)), scale = devicePixelRatio || 1, tall = Math.max(1, rows.length * heat.height);
  heat.cellWidth = wide / columns;
  [map.width, map.height] = [Math.round(space * scale), Math.round(tall * scale)];
  map.style.height = `${tall}px`;
  const pen = map.getContext("2d"), styles = getComputedStyle(document.documentElement), paint = (name) => styles.getPropertyValue(`--${name}`).trim();
  pen.scale(scale, scale);
  pen.clearRect(0, 0, space, tall);
  const byOwner = heatField("mode") === "owner", bad = paint("bad"), faint = paint("faint"), names = report.area.brokers.map((one) => paint(colour(one.name)));
  const line = heat.height > 4 ? heat.height - 1 : heat.height;
  rows.forEach((row, index) => {
    const y = index * heat.height;
    row.runs.forEach(([column, owner], at) => {
      if (owner < 0) return;
      const end = row.runs[at + 1]?.[0] ?? columns, x = heat.gutter + column * heat.cellWidth;
      pen.fillStyle = byOwner ? names[owner] ?? paint("others") : faint;
      pen.fillRect(x, y, (end - column) * heat.cellWidth, line);
    });
    pen.fillStyle = bad;
    for (const [column, ms] of row.gaps) {
      const x = heat.gutter + column * heat.cellWidth;
      if (byOwner && ms < width / 4) continue;  // the owner has most of the cell
      pen.globalAlpha = byOwner ? 1 : GAP_STEPS.find(([most]) => ms <= most)[2];
      pen.fillRect(x, y, Math.max(heat.cellWidth, byOwner ? 1.5 : 3), line);
      pen.globalAlpha = 1;
    }
    if (heat.gutter) {
      pen.fillStyle = paint("soft");
      pen.font = "11px ui-monospace, DejaVu Sans Mono, monospace";
      pen.textAlign = "right";
      const text = narrow ? row.name.split("/").slice(1).join("/").split("_0x")[0] : row.name, most = narrow ? 18 : 36;
      pen.fillText(text.length > most ? `\u2026${text.slice(1 - most)}` : text, heat.gutter - 6, y + 12, heat.gutter - 8);
    }
  });
  heatAxis(first, first + columns * width, wide);
  heatLegend(byOwner);
  heat.cell.hidden = true;
}

function heatAxis(from, to, wide) {
  const host = document.getElementById("heat-axis"), root = canvas(host, 34);
  const x = timeAxis(root, from, to, 22, 34, { left: heat.gutter, right: WIDTH - heat.gutter - wide, above: true });
  for (const one of report.incidents) {
    const at = x(Math.min(Math.max(one.at_ms, from), to));
    root.append(sign(one.kind, at, 26));
  }
}

function heatLegend(byOwner) {
  const legend = document.getElementById("heat-legend");
  legend.replaceChildren();
  if (byOwner) {
    legend.append(...brokerKeys());
    const root = svg("svg", { viewBox: "0 0 26 14" });
    root.append(svg("rect", { class: "gap", x: 9, y: 1, width: 8, height: 12 }));
    legend.append(legendItem(root, "not served for a quarter of the cell or more"));
  } else {
    for (const [, text, strength] of GAP_STEPS) {
      const root = svg("svg", { viewBox: "0 0 26 14" });
      root.append(svg("rect", { class: "gap", x: 4, y: 1, width: 18, height: 12, "fill-opacity": strength }));
      legend.append(legendItem(root, text));
    }
    legend.append(html("span", "gaps within a cell; grey: no gap"));
  }
  legend.append(html("span", "empty: no owner, or the bundle did not exist"));
}

function heatShow(row, column, x, y) {
  heat.row = Math.min(Math.max(row, 0), heat.rows.length - 1);
  heat.column = Math.min(Math.max(column, 0), report.heat.columns - 1);
  const one = heat.rows[heat.row];
  if (!one) return;
  const at = report.heat.first_ms + heat.column * report.heat.width_ms, gap = one.gaps.find((cell) => cell[0] === heat.column);
  const left = heat.gutter + heat.column * heat.cellWidth, top = heat.row * heat.height, style = heat.cell.style;
  [style.left, style.top, style.width, style.height] = [left - 1, top - 1, Math.max(3, heat.cellWidth) + 2, heat.height + 2].map((one) => `${one}px`);
  heat.cell.hidden = false;
  const owner = ownerName(heatOwner(one, heat.column));
  const lines = [one.name, `${moment(at)}, ${duration(report.heat.width_ms)}`, owner === null ? "no owner" : `owner ${owner}`];
  if (gap) lines.push(`not served for ${duration(gap[1])}`);
  lines.push(byName.has(one.name) ? "Enter or a click shows its timeline" : "it has no timeline in this page (--bundle)");
  const box = heat.map.getBoundingClientRect();
  showTip(lines, x ?? box.left + left, y ?? box.top + top + heat.height);
}

function heatOpen() {
  const one = heat.rows[heat.row];
  if (!one || !byName.has(one.name)) return;
  const at = report.heat.first_ms + heat.column * report.heat.width_ms, width = report.heat.width_ms;
  showTimeline(one.name, [at - width, at + 2 * width]);
}

function heatCell(event) {
  const box = heat.map.getBoundingClientRect();
  return [Math.floor((event.clientY - box.top) / heat.height), Math.floor((event.clientX - box.left - heat.gutter) / heat.cellWidth)];
}

for (const name of ["find", "mode", "order"]) document.getElementById(`heat-${name}`).oninput = drawHeat;
document.getElementById("heat-form").onsubmit = (event) => event.preventDefault();
heat.host.onpointermove = (event) => heatShow(...heatCell(event), event.clientX, event.clientY);
heat.host.onpointerleave = heat.host.onblur = () => { heat.cell.hidden = true; hideTip(); };
heat.host.onclick = (event) => { heatShow(...heatCell(event), event.clientX, event.clientY); heatOpen(); };
heat.host.onkeydown = (event) => {
  const { row, column } = heat;
  const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, report.heat.columns - 1], PageUp: [row - 20, column], PageDown: [row + 20, column] }[event.key];
  if (event.key === "Enter") heatOpen();
  else if (!to) return;
  else {
    const top = Math.min(Math.max(to[0], 0), heat.rows.length - 1) * heat.height;
    if (top < heat.host.scrollTop || top > heat.host.scrollTop + heat.host.clientHeight - 20) heat.host.scrollTop = top - heat.host.clientHeight / 2;
    heatShow(...to);
  }
  event.preventDefault();
};
