// A scenario is shown if its name fits, or that of one of its contenders; rows of contenders only if they fit.
const form = document.getElementById("choose");
const field = document.getElementById("find");
const found = document.getElementById("found");
const sections = [...document.querySelectorAll("section.scenario")];
form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
field.addEventListener("input", () => {
  const words = field.value.trim().toLowerCase();
  let shown = 0;
  for (const section of sections) {
    const whole = section.dataset.words.toLowerCase().includes(words);
    let any = whole;
    for (const row of section.querySelectorAll("tr[data-words]")) {
      const fits = whole || row.dataset.words.toLowerCase().includes(words);
      row.hidden = !fits;
      any ||= fits;
    }
    section.hidden = !any;
    shown += any ? 1 : 0;
  }
  found.textContent = words ? `${shown} of ${sections.length} scenarios` : "";
});
document.documentElement.dataset.ready = "yes";
