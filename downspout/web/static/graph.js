// The topology as layers from left to right: spouts first, each bolt behind all that it reads.
import {count, isNone, percent, rate} from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 164, HEIGHT = 62, GAP_X = 128, GAP_Y = 26, EDGE = 14;

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function layersOf(components, edges) {
  const layer = new Map(components.map((each) => [each.name, 0]));
  // As many passes as there are components reach the longest path; a cycle ends with them.
  for (let pass = 1; pass < components.length; pass++) {
    let moved = false;
    for (const {source, target} of edges) {
      const wanted = layer.get(source) + 1;
      if (source !== target && wanted > layer.get(target) && wanted < components.length) {
        layer.set(target, wanted);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const found = [];
  for (const {name} of components) (found[layer.get(name)] ??= []).push(name);
  return found.filter(Boolean);
}

export function placesOf(components, edges) {
  const layers = layersOf(components, edges), places = new Map();
  const tallest = Math.max(...layers.map((names) => names.length));
  layers.forEach((names, column) => {
    // Near what it reads: by the mean place of its sources.
    const rank = (name) => {
      const above = edges.filter((edge) => edge.target === name && places.has(edge.source)).map((edge) => places.get(edge.source).y);
      return above.length ? above.reduce((sum, y) => sum + y, 0) / above.length : 0;
    };
    const ordered = column ? names.map((name) => [rank(name), name]).sort((a, b) => a[0] - b[0]).map(([, name]) => name) : names;
    const top = ((tallest - names.length) * (HEIGHT + GAP_Y)) / 2;
    ordered.forEach((name, row) => places.set(name, {x: EDGE + column * (WIDTH + GAP_X), y: EDGE + top + row * (HEIGHT + GAP_Y)}));
  });
  const width = 2 * EDGE + layers.length * (WIDTH + GAP_X) - GAP_X, height = 2 * EDGE + tallest * (HEIGHT + GAP_Y) - GAP_Y;
  return {places, width, height};
}

const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const levelOf = (capacity) => [0.1, 0.3, 0.6, 0.85].filter((limit) => capacity >= limit).length;

function node(component, counts, place, span) {
  const window = counts?.windows[span], group = shape("g", {class: "node", transform: `translate(${place.x} ${place.y})`});
  const box = `box cap-${levelOf(window?.capacity ?? 0)}${counts?.last_error ? " erring" : ""}`;
  group.append(
    shape("title", {}, `${component.class}\n${Object.entries(component.streams).map(([name, fields]) => `${name}: ${fields.join(", ")}`).join("\n")}`),
    shape("rect", {width: WIDTH, height: HEIGHT, rx: component.kind === "spout" ? 26 : 6, class: box}),
    shape("text", {x: WIDTH / 2, y: 20, "text-anchor": "middle", class: "node-name"}, clip(component.name, 20) + (component.tasks > 1 ? ` ×${component.tasks}` : "")));
  const inside = isNone(counts?.held) ? "" : `${count(counts.held)} in flight`;
  const [first, second] = component.kind === "spout"
    ? [`emits ${rate(window?.emitted_per_s)}/s`, inside]
    : [`executes ${rate(window?.executed_per_s)}/s`, `capacity ${percent(window?.capacity)}`];
  group.append(
    shape("text", {x: WIDTH / 2, y: 37, "text-anchor": "middle", class: "node-line"}, first),
    shape("text", {x: WIDTH / 2, y: 52, "text-anchor": "middle", class: "node-line"}, second));
  return group;
}

function edgeShapes(edge, perS, places, copies) {
  const from = places.get(edge.source), to = places.get(edge.target);
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = x2 > x1 ? (x2 - x1) / 2 : 90;
  const line = shape("path", {class: "edge", "marker-end": "url(#tip)", d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 6} ${y2}`});
  const grouping = edge.fields.length ? `${edge.grouping}(${edge.fields.join(", ")})` : edge.grouping;
  const label = `${isNone(perS) ? "" : `${rate(perS)}/s`}${edge.stream === "default" ? "" : ` ${edge.stream}`}`;
  const y = (y1 + y2) / 2 - 6 + copies * 26;
  const texts = (carries(edge) ? [[label, y], [grouping, y + 20]] : []).map(([text, at]) =>
    shape("text", {x: (x1 + x2) / 2, y: at, "text-anchor": "middle", class: "edge-label"}, clip(text.trim(), 19)));
  line.append(shape("title", {}, `${edge.source} → ${edge.target}: stream ${edge.stream}, ${grouping}`));
  return {line, texts};
}

// Streams that coordinate batches have names with a $. They go beside the tuples: a line, where nothing else goes.
const carries = (edge) => !edge.stream.startsWith("$");

function drawnOf(edges) {
  const pair = (edge) => JSON.stringify([edge.source, edge.target]), first = new Map();
  for (const edge of edges) if (!first.has(pair(edge)) || (carries(edge) && !carries(first.get(pair(edge))))) first.set(pair(edge), edge);
  return edges.filter((edge) => carries(edge) || first.get(pair(edge)) === edge);
}

export function draw(topology, run, span) {
  const {places, width, height} = placesOf(topology.components, topology.edges);
  const svg = shape("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Graph of the topology"});
  const tip = shape("marker", {id: "tip", viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto"});
  tip.append(shape("path", {d: "M0 0 L8 4 L0 8 z", class: "tip"}));
  const marks = shape("defs", {});
  marks.append(tip);
  svg.append(marks);
  const counts = new Map((run.components ?? []).map((each) => [each.name, each])), seen = new Map();
  const edges = drawnOf(topology.edges).map((edge) => {
    const pair = JSON.stringify([edge.source, edge.target]), copies = seen.get(pair) ?? 0;
    seen.set(pair, copies + 1);
    return edgeShapes(edge, run.edges?.[topology.edges.indexOf(edge)]?.per_s[span], places, copies);
  });
  // Labels come after all lines, so that none is crossed out.
  svg.append(...edges.map((each) => each.line), ...edges.flatMap((each) => each.texts));
  for (const each of topology.components) svg.append(node(each, counts.get(each.name), places.get(each.name), span));
  return svg;
}
