// Hash ranges over time: the map as it comes, the loads of its columns, and what is said of a cell. `HeatChart` draws it.
import { byId, bytes, clean, clock, colourClass, colourOf, count, counted, duration, el } from "./parts.js";

const UNASKED = -1, UNSERVED = -2, COLUMNS = 120, LEAST_COLUMNS = 24, NAMED_MAX = 24, PART_MOST = 4096, PART_EACH_MS = 2000;
const NOBODY = { [UNASKED]: "wait for a lookup", [UNSERVED]: "not served" };
const EMPTY = { parts: [[UNASKED, 0]], changes: 0 };
const quiet = (cell) => (cell.changes ? { ...cell, changes: 0 } : cell);
const LEGENDS = {
  owner: "red: not served; grey: waits for a lookup; lines in a cell: changes of owner in that time. A band with too many rows shows the shares of its owners.",
  changes: "the stronger, the more changes of owner",
  load: "the stronger, the more bytes a second of the heaviest bundles that brokers report; hatched: not known, as this page was not open then",
};

// Rows and bundles are ordered by namespace, then by hash range.
function order(bundle) {
  const at = bundle.lastIndexOf("/");
  return [bundle.slice(0, at), bundle.slice(at + 1)];
}

function rowOf(starts, [namespace, range]) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1, [ownNamespace, ownRange] = starts[middle];
    if (ownNamespace < namespace || (ownNamespace === namespace && ownRange <= range)) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Numbers of a cell: row, owner and its bundles, changes, further owners and their bundles.
function cellOf([, owner, bundles, changes, ...more]) {
  const parts = [[owner, bundles]];
  for (let at = 0; at < more.length; at += 2) parts.push([more[at], more[at + 1]]);
  return { parts, changes };
}

export class Heat {
  // `askPart` asks for the map of some of the bundles, from one to before another.
  constructor(show, goTo, askPart) {
    this.askPart = askPart;
    this.part = null;  // the rows of `whole` of which `map` has each bundle

    this.tip = byId("heat-tip");
    this.by = "owner";
    this.map = null;
    this.loads = new Map();  // by number of the column: bytes a second of each row
    this.legendOf = "";
    const open = (column, row) => {
      if (this.map.bundles_per_row > 1) return chart.zoomTo([Math.max(0, row - 1), Math.min(row + 2, this.map.rows.length), ...chart.window().slice(2).map((at) => at + this.map.first)]);
      show(this.map.rows[row]);
      goTo((this.map.first + column + 1) * this.map.width_ms - 1, !this.atMs && column === this.map.cells.length - 1);
    };
    const chart = (this.chart = new HeatChart(byId("heat-map"), { clock, colourOf, move: (...at) => this.describe(...at), open, drawn: () => this.zoomed() }));
    byId("heat-by").addEventListener("change", (event) => { this.by = event.target.value; this.redraw(); });
    byId("heat-box").addEventListener("keydown", (event) => chart.key(event));
    for (const [id, zoom] of [["heat-in", () => chart.zoom(0.5)], ["heat-out", () => chart.zoom(2)], ["heat-all", () => chart.zoomTo(null)]]) byId(id).addEventListener("click", zoom);
    new ResizeObserver(() => chart.draw()).observe(byId("heat-box"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  load(map, atMs = null) {
    if (!map) return;
    this.atMs = atMs;  // of the past: the map ends there
    this.whole = this.read(map);
    if (this.part && map.rows[this.part[0]] === this.part[2]) this.refine();
    else this.use(this.whole);
  }

  // Each column has only what differs from the one before.
  read(map) {
    const cells = [];
    let last = map.rows.map(() => EMPTY);
    for (const column of map.columns) {
      last = last.map(quiet);
      for (const cell of column) last[cell[0]] = cellOf(cell);
      cells.push(last);
    }
    return { ...map, cells };
  }

  use(map, part = null, view = null) {
    if (map.rows.join() !== this.map?.rows.join()) this.loads.clear();
    [this.map, this.part] = [map, part];
    this.redraw(view);
    if (this.reported && !this.atMs) this.takeLoads(this.reported);  // of a past moment none are known
  }

  // Rows of many bundles become a row for each once few enough are in view; showing all of it brings them back.
  zoomed() {
    const { view } = this.chart, each = this.whole?.bundles_per_row ?? 1;
    if (this.part && !view) this.use(this.whole);
    else if (!this.part && view && each > 1 && (view[1] - view[0]) * each <= PART_MOST && this.wanted !== view) this.refine(view);
  }

  async refine(view = null) {
    const [top, bottom] = view ?? this.part, { rows } = this.whole, turn = (this.turn = (this.turn ?? 0) + 1);
    [this.asked, this.wanted] = [Date.now(), view];
    let map = null;
    try { map = await this.askPart(rows[top], rows[bottom]); } catch { if (this.part) this.use(this.whole); return; }
    if (turn !== this.turn || (view ? this.chart.view !== view : !this.part)) return;
    this.use(this.read(map), [top, bottom, rows[top]], view && [0, map.rows.length, view[2], view[3]]);
  }

  // The map of a moment that is not known.
  unknown(why) {
    if (!this.map) return;
    this.whole = { ...this.map, rows: [], cells: [], columns: [] };
    this.use(this.whole);
    this.tip.textContent = `Owners over time: ${clean(why)}`;
  }

  // Of the column of now; those of before are kept as long as this page is open.
  takeLoads(bundles) {
    const map = this.map;
    this.reported = bundles;
    if (!map?.rows.length) return;
    const sums = map.rows.map(() => 0), starts = map.rows.map(order);
    for (const { bundle, msg_throughput_in, msg_throughput_out } of bundles) {
      const row = rowOf(starts, order(bundle));
      if (row >= 0 && (map.bundles_per_row > 1 || map.rows[row] === bundle)) sums[row] += msg_throughput_in + msg_throughput_out;
    }
    this.loads.set(map.first + map.cells.length - 1, sums);
    for (const old of this.loads.keys()) if (old < map.first) this.loads.delete(old);
    if (this.by === "load") this.redraw();
  }

  // A column without reports has those of the one before.
  loadAt(column, row) {
    for (let number = this.map.first + column; number > this.map.first + column - 4; number -= 1) {
      const sums = this.loads.get(number);
      if (sums) return sums[row];
    }
    return undefined;
  }

  change({ column, cells }) {
    if (!this.map) return;
    const began = [...new Set([this.whole, this.map])].map((map) => this.begin(map, column)).some(Boolean);
    for (const cell of cells) this.whole.cells.at(-1)[cell[0]] = cellOf(cell);
    this.isLate ||= Boolean(this.part) && cells.some(([row]) => row >= this.part[0] && row < this.part[1]);
    if (this.isLate && Date.now() - this.asked > PART_EACH_MS) {
      this.isLate = false;
      this.refine();
    }
    if (began) this.redraw();
    else if (cells.length && !this.part && this.chart.pen) this.chart.column(this.map.cells.length - 1);
  }

  // Columns up to this one; whether there is a new one.
  begin(map, column) {
    const newest = map.first + map.cells.length - 1;
    for (let at = newest; at < column; at += 1) {
      map.cells.push(map.cells.at(-1).map(quiet));
      if (map.cells.length > COLUMNS) { map.cells.shift(); map.first += 1; }
    }
    return newest < column;
  }

  redraw(view = null) {
    const map = this.map;
    if (!map) return;
    const most = Math.max(1, ...[...this.loads.values()].map((sums) => sums.reduce((a, b) => Math.max(a, b), 0)));
    const strength = {
      changes: (column, row) => { const { changes } = map.cells[column][row]; return changes ? Math.min(1, 0.25 + Math.log2(1 + changes) / 6) : 0; },
      load: (column, row) => { const load = this.loadAt(column, row); return load === undefined ? undefined : load / most; },
    }[this.by];
    this.chart.set({
      rows: map.rows, columns: map.cells.length, room: Math.min(COLUMNS, Math.max(LEAST_COLUMNS, map.cells.length)), from: map.first, width: map.width_ms,
      owners: map.owners, bands: true, by: this.by, cell: (column, row) => map.cells[column][row], strength, each: map.bundles_per_row,
    }, view);
    this.legend();
  }

  highlight(owner) {
    this.chart.mark(owner);
    this.legend();
  }

  // A click on a broker makes it stand out.
  legend() {
    const owners = this.by === "owner" ? (this.map?.owners ?? []) : [], { marked } = this.chart;
    const stamp = JSON.stringify([this.by, owners, marked, owners.map(colourClass), this.map?.bundles_per_row]);
    const rows = this.map?.bundles_per_row > 1 ? ` A row is ${this.map.bundles_per_row} bundles, named by the first of them; zoom in to see each.` : "";
    if (stamp === this.legendOf) return;
    this.legendOf = stamp;
    byId("heat-legend").replaceChildren(...[...owners].sort((a, b) => (b === marked) - (a === marked) || a.localeCompare(b)).slice(0, NAMED_MAX).map((owner) => {
      const item = el("button", null, "", { type: "button", "aria-pressed": String(owner === marked) });
      item.append(el("span", null, `swatch ${colourClass(owner)}`), document.createTextNode(clean(owner)));
      item.addEventListener("click", () => this.highlight(owner === marked ? null : owner));
      return item;
    }), el("span", LEGENDS[this.by] + rows));
  }

  describe(column, row, band) {
    const map = this.map, from = (map.first + column) * map.width_ms, when = `${clock(from)}, ${duration(map.width_ms)}`;
    const shares = (counted) => {
      const all = counted.reduce((sum, [, bundles]) => sum + bundles, 0), name = (owner) => NOBODY[owner] ?? map.owners[owner];
      return [all, counted.slice(0, 12).map(([owner, bundles]) => `${name(owner)} ${bundles < all / 100 ? count(bundles) : `${Math.round((100 * bundles) / all)} %`}`).join(", ")];
    };
    if (band) {
      const [all, text] = shares(this.chart.counted(band, column).sort((a, b) => (b[0] === UNSERVED) - (a[0] === UNSERVED) || b[1] - a[1]));
      this.tip.textContent = clean(`${when}: ${band.name}, ${counted(all)}: ${text}`);
      return;
    }
    const { parts, changes } = map.cells[column][row], load = this.loadAt(column, row), [[owner]] = parts, [all, text] = shares(parts);
    const who = owner === UNASKED ? "no owner, waits for a lookup" : owner === UNSERVED ? "not served" : map.owners[owner];
    const whose = all > 1 ? ` and ${all === 2 ? "the bundle" : `the ${count(all - 1)} bundles`} after it: ${text}` : `: ${who}`;
    const back = changes > 1 && all === 1 && column && map.cells[column - 1][row].parts[0][0] === owner ? ", back at the end of it" : "";
    const moved = changes ? `, ${counted(changes, "change")} of owner in this time${back}` : "";
    this.tip.textContent = clean(`${when}: ${map.rows[row]}${whose}${moved}${load === undefined ? ", load not known" : `, ${bytes(load)}`}`);
  }
}
