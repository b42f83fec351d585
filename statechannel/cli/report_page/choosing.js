// Which bundle is shown, over which time, and the record under the keys.
const select = document.getElementById("bundle"), find = document.getElementById("find"), host = document.getElementById("lanes");

function fillChoice() {
  const wanted = find.value.trim().toLowerCase();
  const owner = (lane) => bands(lane).at(-1)?.[2];
  const fits = (lane) => !wanted || lane.name.toLowerCase().includes(wanted) || String(owner(lane)?.[1] ?? "").toLowerCase().includes(wanted);
  const groups = new Map();
  for (const lane of report.lanes.filter(fits).sort((a, b) => a.name.localeCompare(b.name))) {
    if (!groups.has(lane.namespace)) groups.set(lane.namespace, []);
    groups.get(lane.namespace).push(lane);
  }
  select.replaceChildren();
  for (const [namespace, lanes] of groups) {
    const group = html("optgroup");
    group.label = namespace;
    for (const lane of lanes) {
      const last = owner(lane), now = last ? `${last[0]}${last[1] ? ` ${last[1]}` : ""}` : "gone";
      const option = html("option", `${lane.lower === null ? "the whole namespace" : lane.name.slice(namespace.length + 1)}   ${now}, ${lane.records} records`);
      option.value = lane.name;
      group.append(option);
    }
    select.append(group);
  }
  if (select.querySelector(`option[value="${CSS.escape(chosen.name ?? "")}"]`)) select.value = chosen.name;
  else if (select.options.length) choose(select.value);
}

function choose(name, span = null) {
  const lane = byName.get(name);
  if (!lane) return;
  const { shown } = family(lane);
  [chosen.from, chosen.to] = span ?? wholeSpan(shown);
  Object.assign(chosen, { name, line: Math.max(0, shown.indexOf(lane)), mark: -1 });
  select.value = name;
  drawLanes();
}

function zoom(how) {
  const [first, last] = wholeSpan(family(byName.get(chosen.name)).shown), size = chosen.to - chosen.from;
  const held = byName.get(chosen.name) && chosen.mark >= 0 ? family(byName.get(chosen.name)).shown[chosen.line]?.marks[chosen.mark]?.ms : null;
  const middle = held ?? chosen.from + size / 2;
  const spans = { in: [middle - size / 4, middle + size / 4], out: [middle - size, middle + size], all: [first, last],
    left: [chosen.from - size / 3, chosen.to - size / 3], right: [chosen.from + size / 3, chosen.to + size / 3] };
  let [from, to] = spans[how];
  if (to - from < 2) [from, to] = [Math.floor(middle) - 1, Math.floor(middle) + 1];
  if (to - from >= last - first) [from, to] = [first, last];
  if (from < first) [from, to] = [first, first + (to - from)];
  if (to > last) [from, to] = [last - (to - from), last];
  [chosen.from, chosen.to] = [Math.round(from), Math.round(to)];
  drawLanes();
}

function step(key) {
  const { shown } = family(byName.get(chosen.name));
  if (key === "ArrowUp" || key === "ArrowDown") {
    chosen.line = Math.min(Math.max(chosen.line + (key === "ArrowUp" ? -1 : 1), 0), shown.length - 1);
    chosen.mark = Math.max(0, Math.min(chosen.mark, shown[chosen.line].marks.length - 1));
  } else {
    const last = shown[chosen.line].marks.length - 1;
    const to = { ArrowLeft: chosen.mark - 1, ArrowRight: chosen.mark + 1, Home: 0, End: last }[key];
    chosen.mark = Math.min(Math.max(to, 0), last);
  }
  const lane = shown[chosen.line], mark = lane.marks[chosen.mark];
  if (!mark) return;
  const size = chosen.to - chosen.from;
  if (mark.ms < chosen.from || mark.ms > chosen.to) [chosen.from, chosen.to] = [Math.round(mark.ms - size / 2), Math.round(mark.ms + size / 2)];
  drawLanes();
  const at = LANE_LEFT + ((mark.ms - chosen.from) / (chosen.to - chosen.from)) * (host.firstChild.viewBox.baseVal.width - LANE_LEFT - RIGHT);
  showTip(told(lane, mark), ...onScreen(host.firstChild, at, chosen.line * LINE + 50));
}

const RECORDS_MOST = 500;
function drawRecords(lanes) {
  const every = lanes.flatMap((lane) => lane.marks.map((mark) => [lane, mark])).sort((a, b) => a[1].ms - b[1].ms || a[1].offset - b[1].offset);
  const inside = every.filter(([, mark]) => mark.ms >= chosen.from && mark.ms <= chosen.to), details = document.getElementById("records");
  const left = inside.length - RECORDS_MOST;
  details.querySelector("summary").textContent = `The ${inside.length} records of this span as a table${left > 0 ? ` (the first ${RECORDS_MOST}; zoom in for the others)` : ""}`;
  details.querySelector("tbody").replaceChildren(...inside.slice(0, RECORDS_MOST).map(([lane, mark]) => {
    const row = html("tr"), why = [mark.reason, mark.note].filter(Boolean).join("; ");
    const cells = [moment(mark.ms), mark.offset, lane.name, mark.n ? `${mark.n} records` : mark.verdict, mark.kind, mark.version, mark.state, mark.band?.[1], mark.by, mark.action, why];
    row.append(...cells.map((cell, index) => html("td", String(cell ?? "-"), index === 0 ? "t" : index === 2 ? "k" : index === 1 || index === 5 ? "n" : "")));
    return row;
  }));
}

function drawLegend() {
  const legend = document.getElementById("legend");
  const samples = [["Assigned", "b"], ["Releasing", "b"], ["Splitting", "b"], ["Assigning", null, "b"], ["Unassigned"]];
  for (const [state, owner = null, to = null] of samples) {
    const root = svg("svg", { viewBox: "0 0 26 14" });
    const shape = bandShape([0, 1, [state, owner, to, 1]], (at) => at * 26, -3);
    shape.querySelectorAll("text").forEach((text) => text.remove());
    root.append(shape);
    legend.append(legendItem(root, state === "Assigning" ? "Assigning (colour: who is to own it)" : state));
  }
  const red = svg("svg", { viewBox: "0 0 26 14" });
  red.append(svg("rect", { class: "gap", x: 0, y: 5, width: 26, height: 5 }));
  legend.append(legendItem(red, "gap in service"));
  const twice = svg("svg", { viewBox: "0 0 26 14" });
  twice.append(svg("rect", { class: "overlap", x: 0, y: 5, width: 26, height: 5 }));
  legend.append(legendItem(twice, "a lost owner may have served it, too"));
  for (const [kind, text] of [["accepted", "accepted, in the band: changed the state"], ["derived", "follows from another key's record"], ["rejected", "rejected"], ["plain", "assert, duplicate"], ["accepted many", "several records"]]) {
    const root = svg("svg", { viewBox: "0 0 26 14" });
    root.append(svg("line", { class: `mark ${kind}`, x1: 13, x2: 13, y1: 1, y2: 13 }));
    legend.append(legendItem(root, text));
  }
}
