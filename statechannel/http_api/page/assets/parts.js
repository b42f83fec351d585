// What all parts of the page share. Texts of the log only ever become text, never markup.
export function el(name, text = null, className = "", attributes = {}) {
  const node = document.createElement(name);
  if (text !== null) node.textContent = clean(text);
  if (className) node.className = className;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// Control and bidirectional characters are shown as a replacement character.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
export function clean(text) {
  const value = String(text ?? "");
  return (value.length > 2000 ? `${value.slice(0, 2000)}…` : value).replace(HIDDEN, "\ufffd");
}

export const byId = (id) => document.getElementById(id);

export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 120e3) return `${(ms / 1000).toFixed(ms < 10e3 ? 1 : 0)} s`;
  return ms < 7200e3 ? `${Math.round(ms / 60e3)} min` : `${(ms / 3600e3).toFixed(1)} h`;
}

export function bytes(rate) {
  const unit = rate < 1e3 ? 0 : rate < 1e6 ? 1 : rate < 1e9 ? 2 : 3;
  return `${(rate / 1e3 ** unit).toFixed(unit && rate < 10e3 ** unit ? 1 : 0)} ${["B/s", "kB/s", "MB/s", "GB/s"][unit]}`;
}
// A time of the registry may be any number: one that is no date must not end the drawing.
function iso(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? "????-??-??T??:??:??.???Z" : at.toISOString();
}
// Times are of UTC, or of this machine's zone if the reader wants that.
const isLocal = localStorage.getItem("zone") === "local";
export const zone = () => (isLocal ? new Date().toLocaleTimeString("en", { timeZoneName: "short" }).split(" ").at(-1) : "UTC");
export function changeZone() { localStorage.setItem("zone", isLocal ? "utc" : "local"); location.reload(); }
const shifted = (ms) => (isLocal ? ms - new Date(ms).getTimezoneOffset() * 60e3 : ms);
export const clock = (ms) => iso(shifted(ms)).slice(11, 19);
export const moment = (ms) => iso(shifted(ms)).replace("T", " ").slice(0, 23);
// Of a date and time without a zone.
export function timeOf(text) {
  const ms = Date.parse(`${text}Z`);
  return isLocal ? ms + new Date(ms).getTimezoneOffset() * 60e3 : ms;
}
export const count = (number) => (number ?? 0).toLocaleString("en");
export const counted = (number, one = "bundle", many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// The clock of the sender: ages are by it, whatever this machine's clock says.
let ahead = 0, heard = 0, newest = 0;
export function hear(atMs) { ahead = atMs - Date.now(); heard = performance.now(); newest = atMs; }
export const asOf = () => newest;
export const now = () => Date.now() + ahead;
export const silence = () => performance.now() - heard;
export const STALE_MS = 5000;
export const hasNews = () => silence() <= STALE_MS && document.documentElement.dataset.away !== "yes";

let colours = {};
export function setColours(map) { colours = map; }
export const colourClass = (owner) => (owner && Object.hasOwn(colours, owner) ? `o${colours[owner]}` : "others");
export function colourOf(owner) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${colourClass(owner)}`).trim();
}
export function named(owner) {
  const node = el("span");
  node.append(el("span", null, `swatch ${colourClass(owner)}`, { "aria-hidden": "true" }), document.createTextNode(clean(owner ?? "no broker")));
  return node;
}

export function button(text, act, className = "link") {
  const node = el("button", text, className, { type: "button" });
  node.addEventListener("click", act);
  return node;
}

// Rows that the reader has chosen, by key. Those that are not shown any more are not chosen.
export class Choice {
  constructor(changed) {
    this.keys = new Set();
    this.changed = changed;
  }

  column(keyOf, mayChoose) {
    return { name: "choose", text: (row) => (mayChoose(row) ? keyOf(row) : ""), stamp: (row) => this.keys.has(keyOf(row)), node: (row) => this.box(keyOf(row)) };
  }

  box(key) {
    const box = el("input", null, "", { type: "checkbox", "aria-label": `choose ${clean(key)}` });
    box.checked = this.keys.has(key);
    box.addEventListener("change", () => { this.keys[box.checked ? "add" : "delete"](key); this.changed(); });
    return box;
  }

  keep(shown) {
    const size = this.keys.size;
    for (const key of this.keys) if (!shown.has(key)) this.keys.delete(key);
    if (this.keys.size !== size) this.changed();
  }
}

// A table whose rows are kept: only cells that differ are written.
export class Table {
  constructor(id, columns, empty) {
    this.columns = columns;
    this.empty = empty;
    const head = el("tr");
    for (const column of columns) head.append(el("th", column.name, column.kind === "n" ? "n" : "", { scope: "col" }));
    const thead = el("thead");
    thead.append(head);
    this.body = el("tbody");
    byId(id).replaceChildren(thead, this.body);
    this.rows = new Map();
  }

  draw(items, keyOf) {
    const wanted = new Set(), empty = this.body.dataset.empty;
    if (empty && (items.length || empty !== this.empty)) {
      this.body.replaceChildren();
      delete this.body.dataset.empty;
    }
    let place = this.body.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      wanted.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = { node: el("tr"), texts: [] };
        for (const column of this.columns) row.node.append(el("td", null, column.kind ?? "", { "data-label": column.name }));
        this.rows.set(key, row);
      }
      this.columns.forEach((column, index) => {
        const text = clean(column.text(item));
        const stamp = column.node ? `${text}\u0001${column.stamp?.(item) ?? ""}` : text;
        if (row.texts[index] === stamp) return;
        row.texts[index] = stamp;
        const cell = row.node.children[index];
        if (column.node && text) cell.replaceChildren(column.node(item));
        else cell.textContent = text;
      });
      if (row.node !== place) this.body.insertBefore(row.node, place);
      else place = place.nextSibling;
    }
    for (const [key, row] of this.rows) if (!wanted.has(key)) { row.node.remove(); this.rows.delete(key); }
    if (!items.length && this.empty && !this.body.dataset.empty) {
      const row = el("tr");
      row.append(el("td", this.empty, "", { colspan: this.columns.length }));
      this.body.append(row);
      this.body.dataset.empty = this.empty;
    }
  }
}
