// Hash ranges over time: the map as it comes, the loads of its columns, and what is said of a cell. `HeatChart` draws it.
import { byId, bytes, clean, clock, colourClass, colourOf, count, duration, el } from "./parts.js";

const UNASKED = -1, UNSERVED = -2, COLUMNS = 120, LEAST_COLUMNS = 24, NAMED_MAX = 24;
const LEGENDS = {
  owner: "red: not served; grey: waits for a lookup, or several owners; lines in a cell: changes of owner in that time. A band with too many rows shows the shares of its owners.",
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

export class Heat {
  constructor(show, goTo) {
    this.tip = byId("heat-tip");
    this.by = "owner";
    this.map = null;
    this.loads = new Map();  // by number of the column: bytes a second of each row
    this.legendOf = "";
    const open = (column, row) => {
      show(this.map.rows[row]);
      goTo((this.map.first + column + 1) * this.map.width_ms - 1, !this.atMs && column === this.map.cells.length - 1);
    };
    const chart = (this.chart = new HeatChart(byId("heat-map"), { clock, colourOf, move: (...at) => this.describe(...at), open }));
    byId("heat-by").addEventListener("change", (event) => { this.by = event.target.value; this.redraw(); });
    byId("heat-box").addEventListener("keydown", (event) => chart.key(event));
    for (const [id, zoom] of [["heat-in", () => chart.zoom(0.5)], ["heat-out", () => chart.zoom(2)], ["heat-all", () => chart.zoomTo(null)]]) byId(id).addEventListener("click", zoom);
    new ResizeObserver(() => chart.draw()).observe(byId("heat-box"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  // Each column has only what differs from the one before.
  load(map, atMs = null) {
    if (!map) return;
    if (map.rows.join() !== this.map?.rows.join()) this.loads.clear();
    this.atMs = atMs;  // of the past: the map ends there
    this.map = { ...map, cells: [] };
    let last = map.rows.map(() => [UNASKED, 0, 0]);
    for (const column of map.columns) {
      const cells = last.map((cell) => (cell[2] ? [cell[0], cell[1], 0] : cell));
      for (const [row, owner, share, changes] of column) cells[row] = [owner, share, changes];
      this.map.cells.push(cells);
      last = cells;
    }
    this.redraw();
  }

  // The map of a moment that is not known.
  unknown(why) {
    if (!this.map) return;
    this.map = { ...this.map, rows: [], cells: [], columns: [] };
    this.redraw();
    this.tip.textContent = `Owners over time: ${clean(why)}`;
  }

  // Of the column of now; those of before are kept as long as this page is open.
  takeLoads(bundles) {
    const map = this.map;
    if (!map?.rows.length) return;
    const sums = map.rows.map(() => 0), starts = map.rows.map(order);
    for (const { bundle, msg_throughput_in, msg_throughput_out } of bundles) {
      const row = rowOf(starts, order(bundle));
      if (row >= 0) sums[row] += msg_throughput_in + msg_throughput_out;
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
    const map = this.map;
    if (!map) return;
    let newest = map.first + map.cells.length - 1, began = false;
    while (newest < column) {
      map.cells.push(map.cells.at(-1).map((cell) => (cell[2] ? [cell[0], cell[1], 0] : cell)));
      newest += 1;
      began = true;
      if (map.cells.length > COLUMNS) { map.cells.shift(); map.first += 1; }
    }
    for (const [row, owner, share, changes] of cells) map.cells.at(-1)[row] = [owner, share, changes];
    if (began) this.redraw();
    else if (cells.length && this.chart.pen) this.chart.column(map.cells.length - 1);
  }

  redraw() {
    const map = this.map;
    if (!map) return;
    const most = Math.max(1, ...[...this.loads.values()].map((sums) => sums.reduce((a, b) => Math.max(a, b), 0)));
    const strength = {
      changes: (column, row) => { const [, , changes] = map.cells[column][row]; return changes ? Math.min(1, 0.25 + Math.log2(1 + changes) / 6) : 0; },
      load: (column, row) => { const load = this.loadAt(column, row); return load === undefined ? undefined : load / most; },
    }[this.by];
    this.chart.set({
      rows: map.rows, columns: map.cells.length, room: Math.min(COLUMNS, Math.max(LEAST_COLUMNS, map.cells.length)), from: map.first, width: map.width_ms,
      owners: map.owners, bands: true, by: this.by, cell: (column, row) => map.cells[column][row], strength,
    });
    this.legend();
  }

  highlight(owner) {
    this.chart.mark(owner);
    this.legend();
  }

  // A click on a broker makes it stand out.
  legend() {
    const owners = this.by === "owner" ? (this.map?.owners ?? []) : [], { marked } = this.chart;
    const stamp = JSON.stringify([this.by, owners, marked, owners.map(colourClass)]);
    if (stamp === this.legendOf) return;
    this.legendOf = stamp;
    byId("heat-legend").replaceChildren(...[...owners].sort((a, b) => (b === marked) - (a === marked) || a.localeCompare(b)).slice(0, NAMED_MAX).map((owner) => {
      const item = el("button", null, "", { type: "button", "aria-pressed": String(owner === marked) });
      item.append(el("span", null, `swatch ${colourClass(owner)}`), document.createTextNode(clean(owner)));
      item.addEventListener("click", () => this.highlight(owner === marked ? null : owner));
      return item;
    }), el("span", LEGENDS[this.by]));
  }

  describe(column, row, band) {
    const map = this.map, from = (map.first + column) * map.width_ms, when = `${clock(from)}, ${duration(map.width_ms)}`;
    if (band) {
      const all = band.end - band.start, names = { [UNASKED]: "wait for a lookup", [UNSERVED]: "not served", [-3]: "of several owners" };
      const shares = this.chart.counted(band, column).sort((a, b) => b[1] - a[1]).map(([owner, amount]) => `${names[owner] ?? map.owners[owner]} ${Math.round((100 * amount) / all)} %`);
      this.tip.textContent = clean(`${when}: ${band.name}, ${count(all * map.bundles_per_row)} bundles: ${shares.slice(0, 12).join(", ")}`);
      return;
    }
    const [owner, share, changes] = map.cells[column][row], load = this.loadAt(column, row);
    const who = owner === UNASKED ? "no owner, waits for a lookup" : owner === UNSERVED ? "not served" : `${map.owners[owner]}${share < 100 ? ` (${share} % of its bundles)` : ""}`;
    const many = map.bundles_per_row > 1 ? ` and up to ${map.bundles_per_row - 1} bundles after it` : "";
    const back = changes > 1 && column && map.cells[column - 1][row][0] === owner ? ", back at the end of it" : "";
    const moved = changes ? `, ${changes} ${changes === 1 ? "change" : "changes"} of owner in this time${back}` : "";
    this.tip.textContent = clean(`${when}: ${map.rows[row]}${many}: ${who}${moved}${load === undefined ? ", load not known" : `, ${bytes(load)}`}`);
  }
}
