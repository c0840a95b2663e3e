// What all charts share: the data, colours that follow the theme, and text for numbers.

const data = JSON.parse(document.getElementById("data").textContent);
const charts = {}; // element id -> chart
window.superkernelReport = { charts, data };

// A colour means one thing on the page: an op type. Okabe and Ito's colours, which people with any colour vision can
// tell apart, come first; all types beyond the palette share its last colour and one name. Runs are shades of violet,
// which no type has; waits are grey; kinds of sync are kinds of lines.
const PALETTE = [
  "#0072b2", "#e69f00", "#009e73", "#cc6677", "#56b4e9", "#d55e00", "#f0e442", "#117733", "#aa4499", "#88ccee",
  "#999933", "#882255", "#44aa99", "#a6761d", "#66a61e",
];
const OTHER_TYPES = "other types";
const OTHER_COLOUR = "#bcaa99";
const SYNC_LINES = {
  none: { type: "dotted", width: 1 }, local: { type: "solid", width: 1.5 }, flag: { type: "dashed", width: 2 },
  near: { type: "solid", width: 2 }, counter: { type: "dashed", width: 3 }, barrier: { type: "solid", width: 4 }, lock: { type: "dotted", width: 3 },
};

function colourOfType(type) {
  return PALETTE[type] ?? OTHER_COLOUR;
}

function legendOfType(type) {
  return type < PALETTE.length ? data.types[type] : OTHER_TYPES;
}

function colourOfRun(at) {
  return colour(data.runs.length === 2 && at === 0 ? "before" : "after");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// Black or white, whichever reads better on `background` (#rrggbb).
function inkOn(background) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(background.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000000" : "#ffffff";
}

// Names come from users: nothing in them is HTML.
function escaped(text) {
  const signs = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return String(text).replace(/[&<>"']/g, (sign) => signs[sign]);
}

function tip(title, lines) {
  const rest = lines.filter(Boolean).map((line) => "<br>" + escaped(line)).join("");
  return '<div class="tip"><strong>' + escaped(title) + "</strong>" + rest + "</div>";
}

function number(value, digits = 3) {
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

// A time in the unit of the page: microseconds, or ticks of an emulator.
function timeText(value) {
  return number(value) + " " + data.unit;
}

function bytes(value) {
  const [scale, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([least]) => value >= least) ?? [1, "B"];
  return number(value / scale, 2) + " " + unit;
}

function narrow(element) {
  return element.clientWidth < 600;
}

function tooltip(formatter) {
  return {
    trigger: "item",
    confine: true,
    formatter,
    backgroundColor: colour("panel"),
    borderColor: colour("line"),
    textStyle: { color: colour("text"), fontSize: 13 },
    extraCssText: "max-width: min(480px, 90vw); white-space: normal; overflow-wrap: anywhere;",
  };
}

function axis(name, more = {}) {
  return {
    name,
    nameLocation: "middle",
    nameTextStyle: { color: colour("quiet"), fontSize: 13 },
    axisLabel: { color: colour("text"), fontSize: 12, hideOverlap: true },
    axisLine: { lineStyle: { color: colour("line") } },
    splitLine: { lineStyle: { color: colour("grid") } },
    ...more,
  };
}

function legend(names, more = {}) {
  return {
    type: "scroll",
    top: 0,
    data: names,
    textStyle: { color: colour("text"), fontSize: 12, width: 170, overflow: "truncate" },
    tooltip: { show: true, formatter: (item) => tip(item.name, []) },
    pageTextStyle: { color: colour("text") },
    pageIconColor: colour("text"),
    pageIconInactiveColor: colour("line"),
    ...more,
  };
}

// A chart in an element, drawn anew when the theme changes and fitted when the element's width does.
function chartIn(element, option) {
  charts[element.id]?.dispose();
  const chart = echarts.init(element, null, { renderer: "canvas" });
  charts[element.id] = chart;
  chart.setOption({ animation: false, backgroundColor: "transparent", ...option });
  return chart;
}
