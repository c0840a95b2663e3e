// The ops of one super kernel, producers above consumers, each edge with the sync that keeps it.

const MANY_EDGES = 100; // from here on, edges that others imply are hidden at first
const LEAST_BOX = 80;
const MARGIN = 50;

function chosenGraph() {
  return data.graphs[Number(document.getElementById("graph-kernel").value)];
}

function drawGraph(element) {
  const graph = chosenGraph();
  const implied = document.getElementById("graph-implied").checked;
  const edges = graph.edges.filter(([, , sync]) => implied || sync !== "none");
  const box = boxOf(graph.ops);
  const height = Math.max(220, Math.min(900, box.bottom + 2 * MARGIN));
  element.style.height = height + "px";
  const small = narrow(element);
  const labelWidth = small ? 110 : 165;
  chartIn(element, {
    tooltip: tooltip((item) => (item.dataType === "edge" ? describeEdge(graph, item.data) : describeOp(item.data))),
    series: [{
      type: "graph",
      layout: "none",
      ...viewOf(element, box),
      // on a touch screen one finger scrolls the page
      roam: matchMedia("(pointer: coarse)").matches ? "scale" : true,
      scaleLimit: { min: 0.05, max: 200 },
      nodeScaleRatio: 0,
      edgeSymbol: ["none", "arrow"],
      edgeSymbolSize: 8,
      emphasis: { focus: "adjacency" },
      label: {
        show: true, color: colour("text"), fontSize: 12, overflow: "truncate", width: labelWidth,
        backgroundColor: colour("panel"), borderWidth: 2.5, borderRadius: 6, padding: [6, 10], lineHeight: 16,
        formatter: (item) => item.data.label_text,
      },
      edgeLabel: {
        // back from the arrow: at any other place the text would be turned with the edge
        show: true, position: "end", distance: -30, align: "center", verticalAlign: "middle",
        fontSize: 11, color: colour("text"), backgroundColor: colour("panel"), padding: [1, 3],
        formatter: (item) => item.data.sync,
      },
      data: [...corners(box), ...graph.ops.map((op, at) => ({
        id: String(at),
        name: String(at), // names on the page may be equal in all that a label shows
        label_text: op.name,
        op,
        x: op.x,
        y: op.y,
        // edges end at the rim of the symbol, and the label is a box as high as that
        symbol: "circle",
        symbolSize: 30,
        itemStyle: { color: colourOfType(op.type) },
        label: { borderColor: colourOfType(op.type) },
      }))],
      edges: edges.map(([producer, consumer, sync, reasons]) => {
        const curveness = bend(graph, graph.ops[producer], graph.ops[consumer], labelWidth);
        return {
          source: String(producer),
          target: String(consumer),
          sync,
          reasons,
          lineStyle: { color: SYNC_COLOURS[sync], ...SYNC_LINES[sync], opacity: 1, curveness },
          label: curveness ? { position: "middle", distance: 0 } : {},
        };
      }),
    }],
  });
}

// Around all ops; never without width or height, which a picture could not be scaled to.
function boxOf(ops) {
  const [xs, ys] = [ops.map((op) => op.x), ops.map((op) => op.y)];
  const right = Math.max(LEAST_BOX, xs.reduce((a, b) => Math.max(a, b)));
  const left = Math.min(-LEAST_BOX, xs.reduce((a, b) => Math.min(a, b)));
  const bottom = Math.max(LEAST_BOX, ys.reduce((a, b) => Math.max(a, b)));
  return { left, right, bottom };
}

// Nothing to see: they keep the box as large as it is.
function corners(box) {
  const nothing = { symbolSize: 0, label: { show: false }, tooltip: { show: false }, silent: true };
  return [
    { ...nothing, id: "top left", name: "top left", x: box.left, y: 0 },
    { ...nothing, id: "bottom right", name: "bottom right", x: box.right, y: box.bottom },
  ];
}

function layerHeight(graph) {
  const steps = graph.ops.map((op) => op.y).filter((y) => y > 0);
  return steps.length ? steps.reduce((a, b) => Math.min(a, b)) : Infinity;
}

// An edge that passes a layer goes around what stands there.
function bend(graph, producer, consumer, labelWidth) {
  const length = Math.hypot(consumer.x - producer.x, consumer.y - producer.y);
  if (consumer.y - producer.y <= layerHeight(graph)) return 0;
  return producer.x === consumer.x ? Math.min(2, (labelWidth + 110) / length) : 0.25;
}

// One unit of the layout is one pixel, seen from the top: names stay readable however long the graph is.
function viewOf(element, box) {
  const width = box.right - box.left;
  return { left: (element.clientWidth - width) / 2, top: MARGIN, width, height: box.bottom };
}

function describeOp({ op }) {
  return tip(op.name, [
    "type " + data.types[op.type],
    op.blocks === null ? "" : number(op.blocks, 0) + (op.blocks === 1 ? " block" : " blocks"),
    op.origin,
  ]);
}

function describeEdge(graph, edge) {
  const [producer, consumer] = [graph.ops[Number(edge.source)], graph.ops[Number(edge.target)]];
  return tip(edge.sync, [consumer.name + " after " + producer.name, ...edge.reasons]);
}

function chooseImplied() {
  const graph = chosenGraph();
  document.getElementById("graph-implied").checked = graph.edges.length <= MANY_EDGES;
}
