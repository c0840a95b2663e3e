// Bars: the total of each run by op type, and each op type per run.

const METRICS = {
  time: { axis: "total time (" + data.unit + ")", text: timeText },
  count: { axis: "launches (number)", text: (value) => number(value, 0) },
};

function chosenMetric() {
  return document.getElementById("bars-metric").value;
}

function drawTotals(element) {
  const metric = chosenMetric();
  element.style.height = 110 + 56 * data.runs.length + "px";
  const series = data.bars.map((row) => ({
    name: legendOfType(row.type),
    id: String(row.type),
    typeName: data.types[row.type],
    type: "bar",
    stack: "run",
    barMaxWidth: 36,
    itemStyle: { color: colourOfType(row.type), borderColor: colour("panel"), borderWidth: 1 },
    data: row[metric],
  }));
  chartIn(element, {
    legend: legend([...new Set(series.map((bar) => bar.name))]),
    grid: { left: 8, right: narrow(element) ? 24 : 48, top: 36, bottom: 28, containLabel: true },
    tooltip: tooltip((item) => tip(series[item.seriesIndex].typeName, [item.name, METRICS[metric].text(item.value)])),
    xAxis: axis(METRICS[metric].axis, { type: "value", nameGap: 28 }),
    yAxis: axis("", { type: "category", data: data.runs, inverse: true, axisLabel: runLabels(element) }),
    series,
  });
}

function drawTypes(element) {
  const metric = chosenMetric();
  const types = data.bars.map((row) => data.types[row.type]);
  const two = data.runs.length === 2;
  element.style.height = 100 + (two ? 38 : 26) * types.length + "px";
  const series = data.runs.map((run, at) => ({
    name: run,
    type: "bar",
    barMaxWidth: 16,
    itemStyle: { color: colourOfRun(at) },
    data: data.bars.map((row) => row[metric][at]),
    label: {
      show: !narrow(element), position: "right", color: colour("quiet"), fontSize: 11,
      formatter: (item) => (item.value ? METRICS[metric].text(Number(item.value.toPrecision(4))) : ""),
    },
  }));
  chartIn(element, {
    legend: legend(data.runs, { show: two }),
    grid: { left: 8, right: narrow(element) ? 16 : 72, top: two ? 32 : 8, bottom: 28, containLabel: true },
    tooltip: tooltip((item) => tip(item.name, [item.seriesName, METRICS[metric].text(item.value)])),
    xAxis: axis(METRICS[metric].axis, { type: "value", nameGap: 28 }),
    yAxis: axis("", { type: "category", data: types, inverse: true, axisLabel: runLabels(element) }),
    series,
  });
}

function runLabels(element) {
  return {
    color: colour("text"), fontSize: 12, interval: 0,
    width: narrow(element) ? 90 : 220, overflow: "truncate",
  };
}
