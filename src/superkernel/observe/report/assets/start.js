// Draws everything, and again when the theme, the width or a choice changes.

const DRAW = {
  calls: drawCalls, totals: drawTotals, types: drawTypes, timeline: drawTimeline, graph: drawGraph,
  roofline: drawRoofline,
};

function drawAll() {
  for (const element of document.querySelectorAll("[data-chart]")) DRAW[element.dataset.chart](element);
}

function redraw(...kinds) {
  for (const kind of kinds) {
    for (const element of document.querySelectorAll('[data-chart="' + kind + '"]')) DRAW[kind](element);
  }
}

// The zoom of the timelines stays when only colours or sizes change.
function redrawAll() {
  const timelines = [...document.querySelectorAll('[data-chart="timeline"]')];
  const ranges = timelines.map((element) => rangeOf(charts[element.id]));
  drawAll();
  timelines.forEach((element, at) => setRange(element, ...ranges[at]));
}

function listen() {
  listenToTables();
  listenToTimelines();
  document.getElementById("bars-metric")?.addEventListener("change", () => redraw("totals", "types"));
  document.getElementById("graph-implied")?.addEventListener("change", () => redraw("graph"));
  document.getElementById("graph-kernel")?.addEventListener("change", () => {
    chooseImplied();
    redraw("graph");
  });
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  prefersDark.addEventListener("change", redrawAll);
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
    root.dataset.theme = dark ? "light" : "dark";
    redrawAll();
  });
  let width = document.documentElement.clientWidth;
  new ResizeObserver(() => {
    if (document.documentElement.clientWidth === width) return; // a fold that opened
    width = document.documentElement.clientWidth;
    redrawAll();
  }).observe(document.documentElement);
}

chooseShared();
if (document.getElementById("graph-kernel")) chooseImplied();
drawAll();
listen();
