// Owners of bundles over time, on a canvas, for the live page and the audit report: namespaces are bands with names, below them is
// the axis of time. Where rows are too many to be seen, a band shows the shares of its owners; a part of it can be zoomed into.
// The model: {rows, columns, room, from, width, first_ms, owners, bands, by, cell, strength}. `from` is the number of the first column,
// whose time is `from * width` ms (and `first_ms` more); `room` is how many columns are drawn at least. `cell(column, row)` is
// {parts, changes, gap}: `parts` are pairs of an owner and how many bundles of the row it has, the worst and the largest first; an
// owner of -1 waits for a lookup, -2 is not served; `gap` is the part of the time without service. A row is named by its first
// bundle; `each` is how many bundles a row has at most.
// `by` is "owner", or something of which `strength(column, row)` is 0 to 1, or undefined where it is not known.
class HeatChart {
  constructor(canvas, { clock, colourOf, move, open, drawn = () => {} }) {
    Object.assign(this, { canvas, clock, colourOf, moved: move, opened: open, drawn });
    this.model = null;
    this.view = null;  // rows and columns; null: all
    this.marked = null;  // the owner that stands out
    this.at = null;
    this.drag = null;
    this.parts = [];
    const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointermove", (event) => { const [x, y] = place(event); this.point(x, y, event); });
    canvas.addEventListener("pointerdown", (event) => { if (event.pointerType !== "touch") this.drag = place(event); });
    canvas.addEventListener("pointerup", (event) => this.release(...place(event)));
  }

  static SHARED_BELOW = 3;
  static GAP = 0.25;
  static AXIS = 20;
  static STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3];

  set(model, view = null) {
    const before = this.model, isOther = !before || before.rows.length !== model.rows.length || before.rows[0] !== model.rows[0];
    this.model = model;
    if (isOther) {
      const row = this.at ? model.rows.indexOf(before.rows[this.at[1]]) : -1;
      [this.view, this.at] = [view, row < 0 ? null : [Math.min(this.at[0], model.columns - 1), row]];
    }
    this.draw();
    if (isOther) this.tell();
  }

  // What is at the cursor.
  tell() {
    if (this.at) this.moved(...this.at, this.parts.find((one) => one.isShared && one.start <= this.at[1] && this.at[1] < one.end) ?? null);
  }

  window() {
    const { rows, columns, room = columns } = this.model;
    const all = [0, rows.length, columns - room, columns];
    if (!this.view) return all;
    const [top, bottom, left, right] = this.view, shift = this.model.from;
    return [top, Math.min(bottom, rows.length), left - shift, right - shift];
  }

  draw() {
    const { canvas, model } = this, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!model || !width || !height) return;
    const scale = Math.min(2, devicePixelRatio || 1), style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.paint = Object.fromEntries(["card", "ink", "soft", "gap", "faint", "line", "warn"].map((name) => [name, colour(name)]));
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    const pen = (this.pen = canvas.getContext("2d", { alpha: false }));
    pen.scale(scale, scale);
    pen.fillStyle = this.paint.card;
    pen.fillRect(0, 0, width, height);
    pen.font = "11px system-ui, DejaVu Sans, sans-serif";
    this.colours = model.owners.map((owner) => this.colourOf(owner));
    this.ranks = [];
    [...model.owners.keys()].sort((a, b) => model.owners[b].localeCompare(model.owners[a], "en", { numeric: true })).forEach((owner, rank) => { this.ranks[owner] = rank; });
    this.gutter = width < 560 ? 104 : Math.min(240, width / 4);
    canvas.dataset.gutter = this.gutter;
    this.wide = width - this.gutter;
    this.tall = height - HeatChart.AXIS;
    this.parts = this.bands();
    const [, , first, last] = this.window();
    for (let column = Math.max(0, Math.floor(first)); column < Math.min(last, model.columns); column += 1) this.column(column);
    this.names();
    this.axis(first, last);
    this.cursor();
    this.drawn(this.time(first), this.time(last));
  }

  // Rows of one namespace lie together; each has the room of its rows, and enough for a name while there is room for all names.
  bands() {
    const { rows, bands } = this.model, [top, bottom] = this.window(), parts = [];
    for (let row = top; row < bottom; row += 1) {
      const name = bands ? rows[row].slice(0, rows[row].lastIndexOf("/")) : "", last = parts.at(-1);
      if (last && last.name === name) last.end = row + 1;
      else parts.push({ name, start: row, end: row + 1 });
    }
    const least = parts.length * 15 <= this.tall ? 14 : 0, left = this.tall - least * parts.length, many = Math.max(1, bottom - top);
    let y = 0;
    for (const part of parts) {
      part.y = y;
      y += least + (left * (part.end - part.start)) / many;
      part.height = Math.max(0.5, y - part.y - (parts.length * 4 < this.tall ? 1 : 0));
      part.each = part.height / (part.end - part.start);
      part.isShared = bands && part.each < HeatChart.SHARED_BELOW && this.model.by === "owner";
    }
    return parts;
  }

  x(column) {
    const [, , first, last] = this.window();
    return this.gutter + ((column - first) / (last - first)) * this.wide;
  }

  // One column of all bands.
  column(column) {
    const { pen, model, paint } = this, from = Math.floor(this.x(column)), width = Math.max(1, Math.floor(this.x(column + 1)) - from);
    pen.globalAlpha = 1;
    pen.fillStyle = paint.card;
    pen.fillRect(from, 0, width, this.tall);
    for (const part of this.parts) {
      if (part.isShared) { this.shares(part, column, from, width); continue; }
      const step = Math.max(1, Math.ceil(1 / part.each));
      for (let row = part.start; row < part.end; row += step) {
        const y = part.y + (row - part.start) * part.each, height = part.each * step - (part.each >= 6 ? 1 : 0);
        this.cell(column, row, step, from, y, width, height);
      }
    }
  }

  cell(column, row, step, x, y, width, height) {
    const { pen, model, paint } = this;
    if (model.by !== "owner") {
      let most = 0;
      for (let at = row; at < Math.min(row + step, model.rows.length); at += 1) most = Math.max(most, model.strength(column, at) ?? -1);
      if (model.strength(column, row) === undefined && !most) { pen.globalAlpha = 1; pen.fillStyle = this.hatch ??= this.hatching(); } else { pen.globalAlpha = Math.max(0, most); pen.fillStyle = model.by === "gaps" ? paint.gap : paint.warn; }
      pen.fillRect(x, y, width, height);
      return;
    }
    // Of rows that share a pixel, the worst: nobody's gap and no bundle of the broker that stands out is lost by that.
    const marked = model.owners.indexOf(this.marked);
    let sum = 0, lost = 0, own = 0, first = null, changes = 0;
    for (let at = row; at < Math.min(row + step, model.rows.length); at += 1) {
      const one = model.cell(column, at);
      if (!first) { const all = one.parts.reduce((total, [, bundles]) => total + bundles, 0), [of, bundles] = one.parts.find(([of]) => of !== -2) ?? one.parts[0]; first = [of, bundles / (all || 1)]; }
      changes = Math.max(changes, one.changes);
      for (const [owner, bundles] of one.parts) {
        sum += bundles;
        if (owner === -2) lost += bundles;
        if (owner === marked) own += bundles;
      }
      if (one.gap >= HeatChart.GAP) lost += one.gap;
    }
    const owner = own ? marked : first[0], isOther = this.marked !== null && !own, part = own ? own / sum : first[1];
    pen.globalAlpha = owner === -1 ? 0.15 : isOther ? 0.14 : 0.35 + 0.65 * part;
    pen.fillStyle = owner === -1 || isOther || owner < 0 ? paint.soft : this.colours[owner];
    pen.fillRect(x, y, width, height);
    pen.globalAlpha = 1;
    if (lost) { pen.fillStyle = paint.gap; pen.fillRect(x, y, Math.min(width, Math.max(1.5, width * Math.max(0.25, lost / (sum || 1)))), height); }
    if (!changes) return;
    const line = Math.max(1, Math.round(width / 8));
    pen.globalAlpha = 0.8;
    pen.fillStyle = paint.card;
    for (let number = 0; number < Math.min(changes, 3, Math.floor(width / (2 * line))); number += 1) pen.fillRect(x + 2 * number * line, y, line, height);
    pen.globalAlpha = 1;
  }

  // Of a band and a column: how many bundles each owner has. The one that stands out is the lowest, as one reads sizes from there.
  counted(part, column) {
    const sums = new Map(), add = (owner, amount) => sums.set(owner, (sums.get(owner) ?? 0) + amount);
    for (let row = part.start; row < part.end; row += 1) {
      const { parts, gap = 0 } = this.model.cell(column, row);
      if (gap >= HeatChart.GAP) add(-2, 1);
      else for (const [owner, bundles] of parts) add(owner, bundles);
    }
    const marked = this.model.owners.indexOf(this.marked), rank = (owner) => (owner === -2 ? 1e9 : owner < 0 ? 1e8 - owner : owner === marked ? -1 : this.ranks[owner]);
    return [...sums].filter(([, amount]) => amount).sort((a, b) => rank(a[0]) - rank(b[0]));
  }

  shares(part, column, x, width) {
    const { pen, paint, model } = this, counted = this.counted(part, column), all = counted.reduce((sum, [, amount]) => sum + amount, 0), drawn = [];
    const top = Math.round(part.y);
    let y = part.y + part.height;
    for (const [owner, amount] of counted) {
      // A small part that is not served, or of the owner that stands out, is seen still, and parts have no seams.
      const exact = (amount / all) * part.height, isMarked = this.marked !== null && model.owners[owner] === this.marked, least = owner === -2 || isMarked ? 2 : 0;
      const low = Math.max(Math.round(y), top + least);
      y -= exact;
      const high = Math.max(top, Math.min(Math.round(y), low - least));
      drawn.push([least, owner, high, low - high, this.marked !== null && !isMarked]);
    }
    for (const [, owner, high, height, isOther] of drawn.sort((a, b) => a[0] - b[0])) {
      pen.globalAlpha = owner === -2 ? 1 : owner < 0 ? 0.2 : isOther ? 0.16 : 1;
      pen.fillStyle = owner === -2 ? paint.gap : owner < 0 || isOther ? paint.soft : this.colours[owner];
      pen.fillRect(x, high, width, height);
    }
    pen.globalAlpha = 1;
  }

  hatching() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = this.paint.soft;
    pen.globalAlpha = 0.45;
    pen.moveTo(0, 6);
    pen.lineTo(6, 0);
    pen.stroke();
    return this.pen.createPattern(tile, "repeat");
  }

  names() {
    const { pen, paint, parts, model } = this;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const write = (text, y, room) => {
      if (room < 11) return;
      const most = this.gutter - 10;
      let short = text;
      while (short.length > 4 && pen.measureText(short).width > most) short = `…${short.slice(short.length > 40 ? 6 : 2)}`;
      pen.fillStyle = paint.ink;
      pen.fillText(short, 3, y, most);
    };
    for (const part of parts) {
      if (part.each >= 12) {
        for (let row = part.start; row < part.end; row += 1) write(`${model.rows[row]}${model.each > 1 ? ` +${model.each - 1}` : ""}`, part.y + (row - part.start + 0.5) * part.each, part.each);
      } else if (part.name) write(part.name, part.y + Math.min(part.height / 2, 40), part.height);
      if (part.y > 0 && part.height > 3) { pen.fillStyle = paint.ink; pen.globalAlpha = 0.5; pen.fillRect(0, Math.round(part.y) - 1, this.gutter + this.wide, 1); pen.globalAlpha = 1; }
    }
  }

  time(column) { return (this.model.first_ms ?? 0) + (this.model.from + column) * this.model.width; }

  axis(first, last) {
    const { pen, paint } = this, from = this.time(first), to = this.time(last), most = Math.max(1, Math.floor(this.wide / 96));
    const step = HeatChart.STEPS.find((one) => (to - from) / one <= most) ?? to - from;
    pen.fillStyle = paint.card;
    pen.fillRect(0, this.tall, this.gutter + this.wide, HeatChart.AXIS);
    pen.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= to && step > 0; at += step) {
      const x = this.gutter + ((at - from) / (to - from)) * this.wide;
      pen.fillStyle = paint.soft;
      pen.fillRect(Math.round(x), this.tall, 1, 4);
      pen.fillText(this.clock(at), Math.min(Math.max(x, this.gutter + 28), this.gutter + this.wide - 28), this.tall + 12);
    }
  }

  cursor() {
    if (!this.at) return;
    const [column, row] = this.at, part = this.parts.find((one) => one.start <= row && row < one.end);
    if (!part) return;
    const { pen } = this, x = this.x(column), y = part.isShared ? part.y : part.y + (row - part.start) * part.each;
    pen.strokeStyle = this.paint.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(x, y, Math.max(3, this.x(column + 1) - x), part.isShared ? part.height : Math.max(3, part.each));
  }

  point(x, y, event = null) {
    if (!this.model?.rows.length || !this.parts.length) return;
    const [, , first, last] = this.window(), column = Math.floor(first + ((x - this.gutter) / this.wide) * (last - first));
    const part = this.parts.find((one) => y < one.y + one.height + 1) ?? this.parts.at(-1);
    this.at = [Math.min(Math.max(column, 0), this.model.columns - 1), Math.min(part.end - 1, part.start + Math.max(0, Math.floor((y - part.y) / part.each)))];
    this.moved(...this.at, part.isShared ? part : null, event);
  }

  // A small movement is a click: it opens what is there; a large one zooms into it.
  release(x, y) {
    const began = this.drag;
    this.drag = null;
    if (!began || Math.hypot(x - began[0], y - began[1]) < 12) {
      this.point(x, y);
      return this.open();
    }
    this.point(...began);
    const [left, top] = this.at ?? [0, 0];
    this.point(x, y);
    const [right, bottom] = this.at, sorted = (a, b) => [Math.min(a, b), Math.max(a, b) + 1], shift = this.model.from;
    return this.zoomTo([...sorted(top, bottom), ...sorted(left + shift, right + shift)]);
  }

  open() {
    if (!this.at) return;
    const part = this.parts.find((one) => one.start <= this.at[1] && this.at[1] < one.end);
    if (part?.isShared && this.parts.length > 1) {
      const [, , left, right] = this.window();
      this.zoomTo([part.start, part.end, left + this.model.from, right + this.model.from]);
    } else this.opened(...this.at);
  }

  zoomTo(view) {
    this.view = view;
    this.draw();
    this.tell();
  }

  // By half around the cursor, in time and rows.
  zoom(by) {
    if (!this.model?.rows.length) return;
    const [top, bottom, first, last] = this.window(), [column, row] = this.at ?? [last - 1, (top + bottom) / 2];
    const around = (from, to, at, least, most) => {
      const size = Math.min(most[1] - most[0], Math.max(least, (to - from) * by)), start = Math.min(Math.max(most[0], at - size * ((at - from) / (to - from || 1))), most[1] - size);
      return [start, start + size];
    };
    const { rows, columns, room = columns, from } = this.model;
    const inRows = around(top, bottom, row, Math.min(4, rows.length), [0, rows.length]).map(Math.round), inTime = around(first, last, column, 6, [columns - room, columns]);
    const isAll = inRows[1] - inRows[0] >= rows.length && inTime[1] - inTime[0] >= room;
    this.zoomTo(isAll ? null : [...inRows, inTime[0] + from, inTime[1] + from]);
  }

  mark(owner) { this.marked = owner; this.draw(); }

  key(event) {
    if (!this.model?.rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const [column, row] = this.at ?? [this.model.columns - 1, this.window()[0]], part = this.parts.find((one) => one.start <= row && row < one.end);
    const shared = part?.isShared, up = shared ? part.start - 1 : row - 1, down = shared ? part.end : row + 1;
    const to = { ArrowLeft: [column - 1, row], ArrowRight: [column + 1, row], ArrowUp: [column, up], ArrowDown: [column, down], Home: [0, row], End: [this.model.columns - 1, row], PageUp: [column, row - 10], PageDown: [column, row + 10] }[event.key];
    if (to) {
      const [top, bottom, first, last] = this.window();
      this.at = [Math.min(Math.max(to[0], Math.ceil(first), 0), Math.ceil(last) - 1, this.model.columns - 1), Math.min(Math.max(to[1], top), bottom - 1)];
      this.draw();
      this.tell();
    } else if (event.key === "Enter") this.open();
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.zoomTo(null);
    else return;
    event.preventDefault();
  }
}
