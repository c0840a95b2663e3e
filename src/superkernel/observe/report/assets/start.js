// Draws everything, and again when the theme, the width or a choice changes.

const DRAW = {
  calls: drawCalls, totals: drawTotals, types: drawTypes, timeline: drawTimeline, graph: drawGraph,
  roofline: drawRoofline,
};

const LARGE_GRAPH = 300; // ops; a larger graph is drawn when it comes near the window, so that the page opens at once

const nearWindow = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    nearWindow.unobserve(target);
    DRAW[target.dataset.chart](target);
  }
}, { rootMargin: "600px" });

function drawAll() {
  for (const element of document.querySelectorAll("[data-chart]")) {
    const waits = element.dataset.chart === "graph" && chosenGraph().ops.length > LARGE_GRAPH && !charts[element.id];
    if (waits) nearWindow.observe(element);
    else DRAW[element.dataset.chart](element);
  }
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
