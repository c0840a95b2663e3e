// The time of each call, in the order of the calls: a slow phase or a slow first call shows at once.

function drawCalls(element) {
  const symbols = data.runs.length === 2 ? ["diamond", "circle"] : ["circle"];
  element.style.height = "240px";
  chartIn(element, {
    legend: legend(data.runs, { show: data.runs.length === 2 }),
    grid: { left: 48, right: 24, top: 34, bottom: 34, containLabel: true },
    tooltip: tooltip(({ value, seriesName }) => tip("call " + number(value[0] + 1), [seriesName, timeText(value[1])])),
    xAxis: axis("calls in their order", { type: "value", nameGap: 26, minInterval: 1, min: 0, max: "dataMax" }),
    yAxis: axis("time (" + data.unit + ")", { type: "value", min: 0, nameGap: narrow(element) ? 56 : 68 }),
    series: data.calls.map((points, at) => ({
      name: data.runs[at],
      type: "scatter",
      symbol: symbols[at],
      symbolSize: points.length > 500 ? 4 : 7,
      itemStyle: { color: colourOfRun(at), opacity: 0.8 },
      data: points,
    })),
  });
}
