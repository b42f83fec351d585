// Tables that can be sorted, and what the page does when it is touched.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const sorted = heads.map((head) => head.getAttribute("aria-sort"));
  heads.forEach((head, column) => {
    const button = html("button", head.textContent);
    button.type = "button";
    head.replaceChildren(button);
    head.setAttribute("aria-sort", sorted[column] ?? "none");
    button.onclick = () => {
      const down = head.getAttribute("aria-sort") === "descending" ? false : head.classList.contains("n") || head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column]?.dataset.v ?? row.cells[column]?.textContent ?? "";
      const number = (text) => (text === "" || Number.isNaN(Number(text)) ? null : Number(text));
      const compare = (a, b) => {
        const [one, other] = [number(value(a)), number(value(b))];
        return one !== null && other !== null ? one - other : value(a).localeCompare(value(b));
      };
      body.append(...[...body.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))));
    };
  });
}

// Rows of the table of gaps that are asked for.
function filterGaps() {
  const [wanted, cause, least] = ["find", "cause", "least"].map((name) => document.getElementById(`gap-${name}`).value), rows = [...document.querySelectorAll("#gap-rows tbody tr")];
  const fits = (row) => (!cause || row.dataset.cause === cause) && Number(row.cells[0].dataset.v) >= Number(least) && row.textContent.toLowerCase().includes(wanted.trim().toLowerCase());
  for (const row of rows) row.hidden = !fits(row);
  document.getElementById("gap-count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}

function showTimeline(name, [from, to]) {
  choose(name, [Math.round(from), Math.round(to)]);
  document.getElementById("timeline").scrollIntoView();
  host.focus({ preventScroll: true });
}

const gapFilter = document.getElementById("gap-filter");
if (gapFilter) {
  gapFilter.hidden = false;
  gapFilter.oninput = filterGaps;
  gapFilter.onsubmit = (event) => event.preventDefault();
  filterGaps();
}
document.querySelectorAll("table.sortable").forEach(sortable);
drawArea();
drawAreaLegend();
drawHeat();
drawLegend();
let redrawing = 0, shownWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === shownWidth) return;  // on a phone the bars of the browser come and go
  cancelAnimationFrame(redrawing);
  redrawing = requestAnimationFrame(() => { shownWidth = innerWidth; drawArea(); drawHeat(); drawLanes(); });
});
matchMedia("(prefers-color-scheme: dark)").onchange = drawHeat;
document.querySelectorAll("[data-at]").forEach((button) => { button.onclick = () => showAt(Number(button.dataset.at)); });
find.oninput = fillChoice;
select.onchange = () => choose(select.value);
document.getElementById("choose").onsubmit = (event) => event.preventDefault();
document.querySelectorAll("[data-zoom]").forEach((button) => { button.onclick = () => chosen.name && zoom(button.dataset.zoom); });
document.querySelectorAll("[data-bundle]").forEach((button) => {
  button.onclick = () => {
    const from = Number(button.dataset.from), to = Number(button.dataset.to), margin = Math.max(20, (to - from) * 1.5);
    showTimeline(button.dataset.bundle, [from - margin, to + margin]);
  };
});
host.onkeydown = (event) => {
  if (!chosen.name || event.ctrlKey || event.altKey || event.metaKey) return;
  const how = { "+": "in", "=": "in", "-": "out", 0: "all" }[event.key];
  if (how) zoom(how);
  else if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) step(event.key);
  else return;
  event.preventDefault();
};
host.onpointermove = (event) => {
  const hit = hits.get(event.target);
  if (hit) showTip(told(...hit), event.clientX, event.clientY);
  else hideTip();
};
host.onpointerleave = hideTip;
host.onblur = hideTip;
const first = report.lanes.find((lane) => lane.lower !== null) ?? report.lanes[0];
if (first) chosen.name = first.name;
fillChoice();
if (first) choose(first.name);
else host.replaceChildren(html("p", "There is no bundle whose past this log tells.", "note"));
document.documentElement.dataset.ready = "yes";
