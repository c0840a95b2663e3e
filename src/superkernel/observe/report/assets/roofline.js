// Every op by the bytes it moves and how fast, and the measured bandwidth as the roof.

function drawRoofline(element) {
  const symbols = data.runs.length === 2 ? ["diamond", "circle"] : ["circle"];
  const series = data.roofline.map((run, at) => ({
    name: data.runs[at],
    type: "scatter",
    symbol: symbols[at],
    symbolSize: 11,
    itemStyle: { color: colourOfRun(at), borderColor: colour("panel"), borderWidth: 1, opacity: 0.9 },
    data: run.points.map((point) => ({ value: [point[0], point[1]], point })),
    markLine: !hasLine(at) ? undefined : {
      silent: true,
      symbol: "none",
      lineStyle: { color: colour("text"), type: "dashed", width: 1.5 },
      label: {
        position: "insideStartTop", color: colour("text"), fontSize: 12,
        formatter: "measured read bandwidth: " + number(run.roof, 2) + " GB/s" + otherRun(at),
      },
      data: [{ yAxis: run.roof }],
    },
  }));
  const speeds = data.roofline.flatMap((run) => [...run.points.map((point) => point[1]), run.roof ?? []].flat());
  const sizes = data.roofline.flatMap((run) => run.points.map((point) => point[0]));
  chartIn(element, {
    legend: legend(data.runs, { show: data.runs.length === 2 }),
    grid: { left: 36, right: 24, top: 34, bottom: 34, containLabel: true },
    tooltip: tooltip(({ data: { point }, seriesName }) => {
      const [moved, speed, time, name, kernel] = point;
      const roof = data.roofline[data.runs.indexOf(seriesName)].roof;
      const share = roof === null ? "" : number((100 * speed) / roof, 1) + " % of the measured bandwidth";
      return tip(name, ["in " + kernel, bytes(moved) + " in " + timeText(time), number(speed, 2) + " GB/s", share]);
    }),
    xAxis: axis("bytes moved by the op", {
      type: "log", ...decades(sizes), nameGap: 28,
      axisLabel: { color: colour("text"), fontSize: 12, hideOverlap: true, formatter: bytes },
    }),
    yAxis: axis("speed (GB/s)", {
      type: "log", ...decades(speeds), nameGap: narrow(element) ? 38 : 48,
      axisLabel: { color: colour("text"), fontSize: 12, hideOverlap: true, formatter: (value) => number(value) },
    }),
    series,
  });
}

// The whole powers of ten around the values.
function decades(values) {
  const logs = values.map(Math.log10);
  const low = Math.floor(logs.reduce((a, b) => Math.min(a, b)));
  const high = Math.ceil(logs.reduce((a, b) => Math.max(a, b)));
  return { min: 10 ** low, max: 10 ** Math.max(high, low + 1) };
}

// Two runs on one machine have one roof, drawn once.
function hasLine(at) {
  const { roof } = data.roofline[at];
  return roof !== null && data.roofline.findIndex((run) => run.roof === roof) === at;
}

function otherRun(at) {
  const roofs = data.roofline.map((run) => run.roof);
  return roofs.length === 2 && roofs[0] !== roofs[1] ? " (" + data.runs[at] + ")" : "";
}
