// The ops of one super kernel, producers above consumers, each edge with the sync that keeps it.

const MANY_EDGES = 100; // from here on, edges that others imply are hidden at first
const LEAST_BOX = 80;
const MARGIN = 50;
const BOX_WIDTH = 180;
const BOX_HEIGHT = 44;
const RIM = BOX_HEIGHT / 2 + 2; // from the middle of an op to where edges begin and end
const NOTHING = { symbolSize: 0, label: { show: false }, tooltip: { show: false }, silent: true }; // a place, unseen

function chosenGraph() {
  return data.graphs[Number(document.getElementById("graph-kernel").value)];
}

function drawGraph(element) {
  const graph = chosenGraph();
  const implied = document.getElementById("graph-implied").checked;
  const edges = graph.edges.filter(([, , sync]) => implied || sync !== "none");
  const box = boxOf([...graph.ops, ...graph.passed.map(([x, y]) => ({ x, y }))]);
  const height = Math.max(220, Math.min(900, box.bottom + 2 * MARGIN));
  element.style.height = height + "px";
  const small = narrow(element);
  const labelWidth = (small ? 125 : BOX_WIDTH) - 14;
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
      edgeSymbolSize: 9,
      label: {
        show: true, position: "inside", color: colour("text"), fontSize: 12, overflow: "truncate", width: labelWidth,
        lineHeight: 16, formatter: (item) => item.data.label_text,
      },
      edgeLabel: {
        // back from the arrow: at any other place the text would be turned with the edge
        show: true, position: "end", align: "center", verticalAlign: "middle",
        fontSize: 11, color: colour("text"), backgroundColor: colour("panel"), padding: [1, 3],
        formatter: (item) => item.data.sync ?? "",
      },
      data: [...corners(box), ...graph.ops.map((op, at) => ({
        id: String(at),
        name: String(at), // names on the page may be equal in all that a label shows
        label_text: op.time === undefined ? op.name : op.name + "\n" + timeText(op.time),
        op,
        x: op.x,
        y: op.y,
        symbol: "rect",
        symbolSize: [labelWidth + 14, BOX_HEIGHT],
        itemStyle: { color: colour("panel"), borderColor: colourOfType(op.type), borderWidth: 2.5 },
      })), ...graph.ops.flatMap(rims), ...graph.passed.map(([x, y], at) => place(passedName(at), x, y))],
      edges: edges.flatMap((edge) => pieces(graph, edge, labelWidth)).filter(firstOfEach()),
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

// They keep the box as large as it is.
function corners(box) {
  return [
    { ...NOTHING, id: "top left", name: "top left", x: box.left, y: -RIM },
    { ...NOTHING, id: "bottom right", name: "bottom right", x: box.right, y: box.bottom + RIM },
  ];
}

function passedName(at) {
  return "passed " + at;
}

function place(name, x, y) {
  return { ...NOTHING, id: name, name, x, y };
}

// Edges leave an op at its lower rim and reach one at its upper rim, so that no box covers an arrowhead.
function rims(op, at) {
  return [place("above " + at, op.x, op.y - RIM), place("below " + at, op.x, op.y + RIM)];
}

// An edge from place to place; the last piece has the arrow and the text.
function pieces(graph, edge, labelWidth) {
  const [producer, consumer, sync, , way] = edge;
  const places = ["below " + producer, ...way.map(passedName), "above " + consumer];
  const curveness = way.length ? 0 : bend(graph, graph.ops[producer], graph.ops[consumer], labelWidth);
  const lineStyle = { color: colour(sync === "none" ? "wait" : "quiet"), ...SYNC_LINES[sync], opacity: 1, curveness };
  return places.slice(1).map((target, at) => {
    const piece = { source: places[at], target, lineStyle, edge };
    if (at < places.length - 2) return { ...piece, symbol: ["none", "none"], label: { show: false } };
    const distance = curveness ? 0 : beforeArrow(graph, edge);
    return { ...piece, sync, label: { distance, ...(curveness ? { position: "middle" } : {}) } };
  });
}

// How far back a text is that stands clear of the arrowhead, however slanted the edge is.
function beforeArrow(graph, [producer, consumer, , , way]) {
  const to = graph.ops[consumer];
  const last = way.length ? graph.passed[way[way.length - 1]] : [graph.ops[producer].x, graph.ops[producer].y + RIM];
  const down = to.y - RIM - last[1];
  const length = Math.hypot(to.x - last[0], down);
  return -Math.min(30 * length / (Math.abs(down) || 1), 0.6 * length);
}

// Edges that go the same way for a while are one line there.
function firstOfEach() {
  const seen = new Set();
  return ({ source, target, sync }) => {
    const key = source + ">" + target;
    return sync !== undefined || (seen.has(key) ? false : seen.add(key));
  };
}

function layerHeight(graph) {
  const steps = graph.ops.map((op) => op.y).filter((y) => y > 0);
  return steps.length ? steps.reduce((a, b) => Math.min(a, b)) : Infinity;
}

// An edge that passes a layer, and has no place of its own there, goes around what stands there.
function bend(graph, producer, consumer, labelWidth) {
  const length = Math.hypot(consumer.x - producer.x, consumer.y - producer.y);
  if (consumer.y - producer.y <= layerHeight(graph)) return 0;
  return producer.x === consumer.x ? Math.min(2, (labelWidth + 110) / length) : 0.25;
}

// One unit of the layout is one pixel, seen from the top: names stay readable however long the graph is.
function viewOf(element, box) {
  const width = box.right - box.left;
  return { left: (element.clientWidth - width) / 2, top: MARGIN - RIM, width, height: box.bottom + 2 * RIM };
}

function describeOp({ op }) {
  return tip(op.name, [
    "type " + data.types[op.type],
    op.time === undefined ? "" : "median time " + timeText(op.time),
    op.blocks === null ? "" : number(op.blocks, 0) + (op.blocks === 1 ? " block" : " blocks"),
    op.origin,
  ]);
}

// A piece that several edges share tells of all of them.
function describeEdge(graph, piece) {
  const [producer, , sync, reasons] = piece.edge;
  if (piece.sync !== undefined) return tip(sync, [afterWhat(graph, piece.edge), ...reasons]);
  const sharing = graph.edges.filter((edge) => edge[0] === producer && edge[2] === sync && passes(edge, piece));
  return tip(sync, sharing.length > 1
    ? sharing.map((edge) => afterWhat(graph, edge)) : [afterWhat(graph, piece.edge), ...reasons]);
}

function passes([, , , , way], piece) {
  return way.some((at) => passedName(at) === piece.target);
}

function afterWhat(graph, [producer, consumer]) {
  return graph.ops[consumer].name + " after " + graph.ops[producer].name;
}

function chooseImplied() {
  const graph = chosenGraph();
  document.getElementById("graph-implied").checked = graph.edges.length <= MANY_EDGES;
}
