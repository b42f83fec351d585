// The timeline of a bundle: a line each for its namespace, what it came from, itself, and what came of it.
const byName = new Map(report.lanes.map((lane) => [lane.name, lane]));
const MOST_LINES = 24, LINE = 58, BAND = 20, LANE_LEFT = 4;
const hits = new WeakMap();  // what the mouse finds under it
const chosen = { name: null, from: 0, to: 1, line: 0, mark: -1 };

const overlaps = (one, other) => one.namespace === other.namespace && (one.lower === null || other.lower === null ||
  (one.lower < other.upper && other.lower < one.upper));
const width = (lane) => (lane.lower === null ? Infinity : lane.upper - lane.lower);

// A namespace is shown with its bundles; a bundle with what overlaps it. The widest come first: ancestors stand above.
function family(lane) {
  const every = report.lanes.filter((one) => overlaps(one, lane)).sort((a, b) => width(b) - width(a) || a.lower - b.lower);
  return { shown: every.slice(0, MOST_LINES), left: Math.max(0, every.length - MOST_LINES) };
}

function wholeSpan(lines) {
  const marks = lines.flatMap((lane) => lane.marks), first = Math.min(report.area.last_ms, ...marks.map((mark) => mark.ms));
  const begin = lines.some((lane) => lane.start) ? Math.min(first, report.area.first_ms) : first;
  return [begin, Math.max(report.area.last_ms, begin + 1)];
}

// The states of a line as [from, to, band], to the end of the log.
function bands(lane) {
  const found = [];
  let band = lane.start, since = report.area.first_ms;
  for (const mark of lane.marks) {
    if (mark.band === null) continue;
    if (band && band[0]) found.push([since, mark.ms, band]);
    [band, since] = [mark.band, mark.last_ms ?? mark.ms];
    if (mark.n) found.push([mark.ms, since, ["several", null, null, null, null]]);
  }
  if (band && band[0]) found.push([since, report.area.last_ms, band]);
  return found;
}

function bandShape([from, to, [state, owner, target, version]], x, top) {
  const left = x(from), shape = { x: left, y: top, width: Math.max(1, x(to) - left), height: BAND, rx: 2, "data-state": state };
  const group = svg("g");
  if (state === "Deleted") return group;
  const owned = state === "Assigned" || state === "Releasing" || state === "Splitting";
  const kind = owned ? `owned ${colour(owner)}` : state === "Assigning" ? `assigning ${colour(target)}` : state.toLowerCase();
  group.append(svg("rect", { ...shape, class: state === "several" ? "unknown" : `band ${kind}` }));
  if (state === "Releasing" || state === "Splitting") group.append(svg("rect", { ...shape, class: "lay", fill: `url(#hatch-${state.toLowerCase()})` }));
  const text = owned ? `${owner} \u00b7 ${state} v${version}` : state === "Assigning" ? `to ${target}` : state;
  const visible = Math.min(WIDTH - RIGHT, left + shape.width) - Math.max(LANE_LEFT, left);
  if (visible > text.length * 6.6 + 10) group.append(svg("text", { x: Math.max(LANE_LEFT, left) + 6, y: top + 14, class: owned ? "on" : "" }, text));
  return group;
}

function markClass(mark) {
  if (mark.rejected) return "rejected";
  if (mark.verdict === "derived") return "derived";
  return mark.verdict === "accepted" || mark.verdict === "several" ? "accepted" : "plain";
}

function told(lane, mark) {
  const lines = [`${moment(mark.ms)}   offset ${mark.offset}   ${lane.name}`];
  if (mark.n) return [...lines, `${mark.n} records close together, to ${moment(mark.last_ms)}, offset ${mark.last_offset}`, mark.note];
  const wants = [mark.state, mark.version !== undefined ? `v${mark.version}` : null].filter(Boolean).join(" ");
  lines.push(`${mark.verdict}: ${mark.kind} ${wants}${mark.from ? ` from ${mark.from}` : ""}${mark.to ? ` to ${mark.to}` : ""}`);
  if (mark.by) lines.push(`by ${mark.by}${mark.action ? `, ${mark.action}` : ""}${mark.operation ? `, operation ${mark.operation}` : ""}`);
  for (const text of [mark.reason && `why: ${mark.reason}`, mark.note]) if (text) lines.push(text);
  if (mark.band) lines.push(mark.band[0] ? `then ${mark.band[0]} v${mark.band[3]}${mark.band[1] ? `, served by ${mark.band[1]}` : ""}` : "then it did not exist any more");
  return lines;
}

function drawLanes() {
  const host = document.getElementById("lanes"), lane = byName.get(chosen.name);
  if (!lane) return;
  const { shown, left } = family(lane);
  const height = shown.length * LINE + 12;
  const root = canvas(host, height + 24), x = timeAxis(root, chosen.from, chosen.to, 4, height, { left: LANE_LEFT });
  const clip = svg("clipPath", { id: "inside" });
  clip.append(svg("rect", { x: LANE_LEFT, y: 0, width: WIDTH - LANE_LEFT - RIGHT, height }));
  root.append(clip);
  const inside = svg("g", { "clip-path": "url(#inside)" });
  shown.forEach((one, index) => drawLine(root, inside, one, index, x));
  root.append(inside);
  const more = left ? `; ${left} narrower ones are not drawn, choose one of them` : "";
  document.getElementById("shown-span").textContent = `${moment(chosen.from)} to ${moment(chosen.to)} (${duration(chosen.to - chosen.from)})${more}`;
  drawRecords(shown);
}

// A name that is longer than the drawing loses its start: the range at its end tells bundles apart.
function shorten(text, most) {
  const whole = text.textContent, length = text.getComputedTextLength();
  if (length > most) text.textContent = `\u2026${whole.slice(Math.ceil(whole.length * (1 - most / length)) + 2)}`;
}

function drawLine(root, inside, lane, index, x) {
  const top = index * LINE + 22, role = lane.lower === null ? "namespace" : lane.name === chosen.name ? "chosen" : "";
  const name = svg("text", { class: lane.name === chosen.name ? "name" : "", x: LANE_LEFT, y: top - 6 });
  const merged = lane.width_ms ? `, more than fit: marks within ${duration(lane.width_ms)} are one` : "";
  name.textContent = `${lane.name}${role ? ` (${role})` : ""}: ${lane.records} records${merged}`;
  root.append(name);
  shorten(name, WIDTH - LANE_LEFT - RIGHT);
  inside.append(svg("rect", { class: "band gone", x: LANE_LEFT, y: top, width: WIDTH - LANE_LEFT - RIGHT, height: BAND }));
  const line = svg("g", { "data-lane": lane.name });
  for (const band of bands(lane)) if (band[1] >= chosen.from && band[0] <= chosen.to) line.append(bandShape(band, x, top));
  for (const [since, until, cause] of report.gap_spans[lane.name] ?? []) {
    if (until < chosen.from || since > chosen.to) continue;
    line.append(svg("rect", { class: "gap here", x: x(since), y: top - 4, width: Math.max(3, x(until) - x(since)), height: 5, "data-cause": cause }));
  }
  for (const [since, until, from] of report.overlap_spans[lane.name] ?? []) {
    if (until < chosen.from || since > chosen.to) continue;
    line.append(svg("rect", { class: "overlap", x: x(since), y: top + BAND - 1, width: Math.max(3, x(until) - x(since)), height: 5, "data-from": from }));
  }
  lane.marks.forEach((mark, number) => {
    if (mark.ms < chosen.from || mark.ms > chosen.to) return;
    const at = x(mark.ms), isAt = index === chosen.line && number === chosen.mark;
    const tick = svg("line", { x1: at, x2: at, y1: top + BAND + (mark.band ? -BAND : 2), y2: top + BAND + 11,
      class: `mark ${markClass(mark)}${mark.n ? " many" : ""}${isAt ? " at" : ""}`, "data-verdict": mark.verdict });
    const wide = svg("rect", { x: at - 4, y: top, width: 8, height: BAND + 12, fill: "transparent", class: "hit" });
    hits.set(wide, [lane, mark]);
    line.append(tick, wide);
  });
  inside.append(line);
}
