// Heat map of hash ranges over time, on a canvas: cells that have changed are drawn, all of it where a column begins.
import { byId, bytes, clean, clock, colourClass, colourOf, duration, el } from "./parts.js";

const UNASKED = -1, UNSERVED = -2;
const LEGENDS = {
  owner: "red: not served; dark lines: changes of owner within the time (three lines: three or more), also where it is back at the end",
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
    this.canvas = byId("heat-map");
    this.box = byId("heat-box");
    this.tip = byId("heat-tip");
    this.by = "owner";
    this.map = null;
    this.loads = new Map();  // by number of the column: bytes a second of each row
    this.at = null;
    this.show = show;
    byId("heat-by").addEventListener("change", (event) => { this.by = event.target.value; this.redraw(); });
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("click", (event) => { this.point(event); this.open(goTo); });
    this.goTo = goTo;
    new ResizeObserver(() => this.redraw()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  // Each column has only what differs from the one before.
  load(map, atMs = null) {
    if (!map) return;
    if (map.rows.join() !== this.map?.rows.join()) this.loads.clear();
    this.why = "";
    this.atMs = atMs;  // of the past: the map ends there
    this.map = { ...map, cells: [] };
    let last = map.rows.map(() => [UNASKED, 0, 0]);
    for (const column of map.columns) {
      const cells = last.map(([owner, share]) => [owner, share, 0]);
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
    this.why = why;
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
    const column = map.first + map.cells.length - 1;
    this.loads.set(column, sums);
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
      map.cells.push(map.cells.at(-1).map(([owner, share]) => [owner, share, 0]));
      newest += 1;
      began = true;
      if (map.cells.length > 120) { map.cells.shift(); map.first += 1; }
    }
    for (const [row, owner, share, changes] of cells) map.cells.at(-1)[row] = [owner, share, changes];
    if (began) this.redraw();
    else for (const [row] of cells) this.cell(map.cells.length - 1, row);
  }

  redraw() {
    const map = this.map;
    if (!map) return;
    const scale = Math.min(2, devicePixelRatio || 1), width = this.box.clientWidth, height = this.canvas.clientHeight;
    if (!width || !height) return;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.pen = this.canvas.getContext("2d", { alpha: false });
    const style = getComputedStyle(document.documentElement);
    this.back = style.getPropertyValue("--card").trim();
    this.soft = style.getPropertyValue("--soft").trim();
    this.none = style.getPropertyValue("--bad").trim();
    this.hot = style.getPropertyValue("--warn").trim();
    this.hatch = this.hatching(scale);
    this.colours = map.owners.map((owner) => colourOf(owner));
    this.most = Math.max(1, ...[...this.loads.values()].flat());
    this.pen.fillStyle = this.back;
    this.pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    map.cells.forEach((cells, column) => cells.forEach((_, row) => this.cell(column, row)));
    this.legend();
  }

  hatching(scale) {
    const tile = document.createElement("canvas"), side = Math.round(6 * scale);
    tile.width = tile.height = side;
    const pen = tile.getContext("2d");
    pen.strokeStyle = this.soft;
    pen.globalAlpha = 0.45;
    pen.lineWidth = scale;
    pen.moveTo(0, side);
    pen.lineTo(side, 0);
    pen.stroke();
    return this.pen.createPattern(tile, "repeat");
  }

  // A short history has wide columns.
  columns() { return Math.min(120, Math.max(24, this.map.cells.length)); }

  place(column, row) {
    const columns = this.columns(), rows = Math.max(1, this.map.rows.length), first = columns - this.map.cells.length;
    const x = Math.floor(((first + column) * this.canvas.width) / columns), x2 = Math.floor(((first + column + 1) * this.canvas.width) / columns);
    const y = Math.floor((row * this.canvas.height) / rows), y2 = Math.floor(((row + 1) * this.canvas.height) / rows);
    return [x, y, x2 - x, y2 - y - (rows <= 48 ? 1 : 0)];
  }

  cell(column, row) {
    if (!this.pen) return;
    const [owner, share, changes] = this.map.cells[column][row], [x, y, width, height] = this.place(column, row), pen = this.pen;
    pen.globalAlpha = 1;
    pen.fillStyle = this.back;
    pen.fillRect(x, y, width, height);
    const load = this.by === "load" ? this.loadAt(column, row) : 0;
    if (load === undefined) {
      pen.fillStyle = this.hatch;
    } else if (this.by === "load") {
      pen.globalAlpha = load / this.most;
      pen.fillStyle = this.hot;
    } else if (this.by === "changes") {
      pen.globalAlpha = changes ? Math.min(1, 0.25 + Math.log2(1 + changes) / 6) : 0;
      pen.fillStyle = this.hot;
    } else if (owner < 0) {
      pen.globalAlpha = owner === UNSERVED ? 1 : 0.15;
      pen.fillStyle = owner === UNSERVED ? this.none : this.soft;
    } else {
      pen.globalAlpha = 0.35 + (0.65 * share) / 100;
      pen.fillStyle = this.colours[owner] ?? this.hot;
    }
    pen.fillRect(x, y, width, height);
    if (this.by === "owner" && changes) {
      const line = Math.max(1, Math.round(width / 8));
      pen.globalAlpha = 0.8;
      pen.fillStyle = this.back;
      for (let number = 0; number < Math.min(changes, 3, Math.floor(width / (2 * line))); number += 1) pen.fillRect(x + 2 * number * line, y, line, height);
    }
    pen.globalAlpha = 1;
  }

  legend() {
    const items = this.by === "owner" ? this.map.owners.slice(0, 24).map((owner) => [colourClass(owner), owner]) : [];
    byId("heat-legend").replaceChildren(...items.map(([name, owner]) => {
      const item = el("span");
      item.append(el("span", null, `swatch ${name}`), document.createTextNode(owner));
      return item;
    }), el("span", LEGENDS[this.by]));
  }

  point(event) {
    if (!this.map?.rows.length) return;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns()) - (this.columns() - this.map.cells.length);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.map.rows.length);
    this.move(column, row);
  }

  move(column, row) {
    const map = this.map;
    if (!map?.rows.length) return;
    this.at = [Math.min(Math.max(column, 0), map.cells.length - 1), Math.min(Math.max(row, 0), map.rows.length - 1)];
    const [owner, share, changes] = map.cells[this.at[0]][this.at[1]];
    const from = (map.first + this.at[0]) * map.width_ms;
    const who = owner === UNASKED ? "no owner, waits for a lookup" : owner === UNSERVED ? "not served" : `${map.owners[owner]}${share < 100 ? ` (${share} % of its bundles)` : ""}`;
    const load = this.loadAt(...this.at);
    const many = map.bundles_per_row > 1 ? ` and up to ${map.bundles_per_row - 1} bundles after it` : "";
    const back = changes > 1 && this.ownerBefore() === owner ? ", back at the end of it" : "";
    const moved = changes ? `, ${changes} ${changes === 1 ? "change" : "changes"} of owner in this time${back}` : "";
    this.tip.textContent = `${clock(from)}, ${duration(map.width_ms)}: ${map.rows[this.at[1]]}${many}: ${who}${moved}${load === undefined ? ", load not known" : `, ${bytes(load)}`}`;
  }

  ownerBefore() {
    const [column, row] = this.at;
    return column ? this.map.cells[column - 1][row][0] : null;
  }

  key(event) {
    if (!this.map?.rows.length) return;
    const [column, row] = this.at ?? [this.map.cells.length - 1, 0];
    const to = { ArrowLeft: [column - 1, row], ArrowRight: [column + 1, row], ArrowUp: [column, row - 1], ArrowDown: [column, row + 1], Home: [0, row], End: [1e9, row], PageUp: [column, row - 10], PageDown: [column, row + 10] }[event.key];
    if (to) this.move(...to);
    else if (event.key === "Enter") this.open(this.goTo);
    else return;
    event.preventDefault();
  }

  open(goTo) {
    if (!this.at || !this.map.rows.length) return;
    this.show(this.map.rows[this.at[1]]);
    goTo((this.map.first + this.at[0] + 1) * this.map.width_ms - 1, !this.atMs && this.at[0] === this.map.cells.length - 1);
  }
}
