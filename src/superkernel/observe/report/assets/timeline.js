// The timeline of one call of a run: launches above, then a row per core; zoom by wheel, slider, buttons and keys.
// With one scale for both runs, what is shown of one is shown of the other.

const LEAST_VISIBLE = data.unit === "ticks" ? 1 : 0.02; // the narrowest range that zooming in leads to
const COMPARABLE = 10; // a run that is so many times as long as the other gets a scale of its own
const ROW_LAUNCHES = 0;
const FIELD = { row: 0, begin: 1, end: 2, index: 3 };

function chosenCall() {
  return Number(document.getElementById("timeline-call")?.value ?? 0);
}

// The launches and spans of the chosen call of a run.
function shownCall(run) {
  const { launches, spans } = run.choices[chosenCall()] ?? { launches: [], spans: [] };
  return { ...run, launches, spans };
}

function drawTimeline(element) {
  const run = shownCall(data.timelines[Number(element.dataset.number)]);
  const rows = ["launches", ...run.cores];
  const end = axisEnd(run);
  const height = Math.max(8, Math.min(34, 900 / rows.length));
  element.style.height = 130 + height * rows.length + "px";
  const groups = groupsOf(run);
  const chart = chartIn(element, {
    legend: legend(groups.map((group) => group.name)),
    grid: { left: narrow(element) ? 62 : 78, right: 18, top: 34, bottom: 84 },
    tooltip: tooltip((item) => describe(run, item.data)),
    xAxis: axis("time since the first launch of the call (" + data.unit + ")", {
      type: "value", min: 0, max: end, nameGap: 26,
      axisLabel: {
        color: colour("text"), fontSize: 12, hideOverlap: true, showMaxLabel: false,
        formatter: (value) => number(value),
      },
    }),
    yAxis: axis("", {
      type: "category", data: rows, inverse: true, axisTick: { show: false },
      axisLabel: { color: colour("text"), fontSize: Math.min(12, Math.max(8, height - 2)) },
      splitLine: { show: true, lineStyle: { color: colour("grid") } },
    }),
    dataZoom: [
      { type: "inside", filterMode: "weakFilter", minValueSpan: LEAST_VISIBLE },
      {
        type: "slider", filterMode: "weakFilter", minValueSpan: LEAST_VISIBLE, bottom: 8, height: 22,
        showDataShadow: false, brushSelect: false, labelFormatter: (value) => number(value, 1),
        textStyle: { color: colour("quiet") }, borderColor: colour("line"),
      },
    ],
    series: groups.map((group) => seriesOf(run, group)),
  });
  chart.on("datazoom", () => {
    showRange(element, chart);
    linkOthers(element, chart);
  });
  showRange(element, chart);
}

function isShared() {
  return document.getElementById("timeline-shared")?.checked ?? false;
}

// Shows the range of one timeline in the others too; they do not answer, as they show it already.
function linkOthers(element, chart) {
  if (!isShared()) return;
  const [from, to] = rangeOf(chart);
  for (const other of document.querySelectorAll('[data-chart="timeline"]')) {
    if (other === element || !charts[other.id]) continue;
    const [otherFrom, otherTo] = rangeOf(charts[other.id]);
    if (Math.abs(from - otherFrom) + Math.abs(to - otherTo) > 1e-6 * (to - from)) setRange(other, from, to);
  }
}

// One group per legend entry: what lies behind comes first.
function groupsOf(run) {
  const groups = new Map();
  const add = (name, colourName, share, item) => {
    if (!groups.has(name)) groups.set(name, { name, fill: colourName, share, items: [] });
    groups.get(name).items.push(item);
  };
  const depth = { kernel: 0.92, op: 0.72, wait: 0.72, barrier: 0.72, "wait for ranks": 0.72, notify: 0.4 };
  const colourOfKind = (kind) => colour(kind === "wait for ranks" ? "rank-wait" : kind);
  for (const kind of ["kernel", "op", "wait", "barrier", "wait for ranks", "notify"]) {
    run.spans.forEach((span, index) => {
      const [row, begin, end, kindNumber, , type, , inside] = span;
      if (run.kinds[kindNumber] !== kind) return;
      const name = kind === "op" ? legendOfType(type) : kind === "kernel" ? "inside a launch" : kind;
      const item = [row + 1, begin, end, index];
      // a wait inside an op lies on it, and leaves its rim to be seen
      if (inside) add(name + " inside an op", colourOfKind(kind), 0.5, item);
      else add(name, kind === "op" ? colourOfType(type) : colourOfKind(kind), depth[kind], item);
    });
  }
  run.launches.forEach(([begin, end, , type], index) => {
    add(legendOfType(type), colourOfType(type), 0.72, [ROW_LAUNCHES, begin, end, index]);
  });
  // the shapes of a row that are thinner than a pixel are told apart from the left
  for (const group of groups.values()) group.items.sort((a, b) => a[FIELD.begin] - b[FIELD.begin]);
  return [...groups.values()];
}

function seriesOf(run, group) {
  let drawnUpTo = new Map(); // row -> the pixel that was drawn last
  const ink = inkOn(group.fill);
  return {
    name: group.name,
    type: "custom",
    itemStyle: { color: group.fill },
    encode: { x: [FIELD.begin, FIELD.end], y: FIELD.row },
    dimensions: ["row", "begin", "end", "index"],
    data: group.items,
    clip: true,
    renderItem: (params, api) => {
      if (params.dataIndexInside === 0) drawnUpTo = new Map();
      const row = api.value(FIELD.row);
      const [left, middle] = api.coord([api.value(FIELD.begin), row]);
      const [right] = api.coord([api.value(FIELD.end), row]);
      const width = Math.max(right - left, 1);
      const pixel = Math.floor(left + width);
      if (width <= 1 && drawnUpTo.get(row) === pixel) return null; // nobody could see it
      drawnUpTo.set(row, pixel);
      const height = api.size([0, 1])[1] * group.share;
      const area = params.coordSys;
      const shape = echarts.graphic.clipRectByRect({ x: left, y: middle - height / 2, width, height }, area);
      if (!shape) return null;
      const item = { type: "rect", shape, style: { fill: group.fill } };
      const text = nameOf(run, group.items[params.dataIndex]);
      // whole names only: what does not fit is told by hovering
      if (height > 13 && group.share === 0.72 && shape.width > 36 && shape.width > 6 + textWidth(text)) {
        item.textContent = { type: "text", silent: true, style: { text, fill: ink, fontSize: 11 } };
        item.textConfig = { position: "inside" };
      }
      return item;
    },
  };
}

const ruler = document.createElement("canvas").getContext("2d");
const textWidths = new Map();

function textWidth(text) {
  if (!textWidths.has(text)) {
    ruler.font = "11px sans-serif";
    textWidths.set(text, ruler.measureText(text).width);
  }
  return textWidths.get(text);
}

function lastEnd(run) {
  let last = 0;
  for (const launch of run.launches) last = Math.max(last, launch[1]);
  for (const span of run.spans) last = Math.max(last, span[2]);
  return last || 1;
}

// Two runs on one scale show at once which is longer.
function axisEnd(run) {
  return isShared() ? Math.max(...data.timelines.map((other) => lastEnd(shownCall(other)))) : lastEnd(run);
}

function chooseShared() {
  const box = document.getElementById("timeline-shared");
  if (!box) return;
  const ends = data.timelines.map((run) => lastEnd(shownCall(run)));
  box.checked = Math.max(...ends) <= COMPARABLE * Math.min(...ends);
}

function nameOf(run, [row, , , index]) {
  if (row === ROW_LAUNCHES) return run.names[run.launches[index][2]];
  const [, , , kind, name] = run.spans[index];
  return run.kinds[kind] === "op" ? run.names[name] : run.kinds[kind];
}

function describe(run, item) {
  const [row, begin, end, index] = item;
  const when = "from " + timeText(begin) + " to " + timeText(end);
  const length = timeText(end - begin);
  if (row === ROW_LAUNCHES) {
    const [, , name, type, scope] = run.launches[index];
    const where = run.names[scope] ? "scope " + run.names[scope] : "";
    return tip(run.names[name], ["launch, type " + data.types[type], length, when, where]);
  }
  const [, , , kind, name, type, kernel, inside, waitedFor, signalledBy] = run.spans[index];
  const what = run.kinds[kind];
  const title = run.names[name] || run.names[kernel] || what;
  const role = {
    op: "op, type " + data.types[type], wait: inside ? "waits at its wait point" : "waits before it",
    barrier: inside ? "waits in sync_all" : "barrier", notify: "notifies", kernel: "the whole launch",
    "wait for ranks": "waits for other ranks before it",
  }[what];
  const where = run.names[kernel] && run.names[kernel] !== title ? "in " + run.names[kernel] : "";
  const cause = waitedFor === undefined ? "" : run.names[waitedFor];
  const onCore = signalledBy >= 0 ? " on core " + signalledBy : "";
  return tip(title, [role + ", " + run.cores[row - 1], length, when, cause && "for " + cause + onCore, where]);
}

// The visible range, in the unit of the page.
function rangeOf(chart) {
  return chart.getModel().getComponent("xAxis", 0).axis.scale.getExtent();
}

function showRange(element, chart) {
  const [from, to] = rangeOf(chart);
  const shown = document.getElementById(element.id + "-range");
  shown.textContent = "Shown: " + number(from) + " to " + timeText(to);
}

function setRange(element, from, to) {
  const chart = charts[element.id];
  const end = axisEnd(shownCall(data.timelines[Number(element.dataset.number)]));
  const span = Math.min(end, Math.max(to - from, LEAST_VISIBLE));
  const start = Math.min(Math.max(0, from), end - span);
  chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, startValue: start, endValue: start + span });
}

const MOVES = {
  in: (from, to) => [from + (to - from) / 4, to - (to - from) / 4],
  out: (from, to) => [from - (to - from) / 2, to + (to - from) / 2],
  left: (from, to) => [from - (to - from) / 4, to - (to - from) / 4],
  right: (from, to) => [from + (to - from) / 4, to + (to - from) / 4],
  all: () => [0, Infinity],
};
const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Home: "all" };

function move(element, how) {
  setRange(element, ...MOVES[how](...rangeOf(charts[element.id])));
}

function listenToTimelines() {
  document.getElementById("timeline-shared")?.addEventListener("change", () => redraw("timeline"));
  document.getElementById("timeline-call")?.addEventListener("change", () => redraw("timeline"));
  for (const button of document.querySelectorAll("button[data-timeline]")) {
    const element = document.getElementById("timeline-" + button.dataset.timeline);
    button.addEventListener("click", () => move(element, button.dataset.do));
  }
  for (const element of document.querySelectorAll('[data-chart="timeline"]')) {
    element.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(element, KEYS[event.key]);
    });
  }
}
