// The curves of the last hour, drawn by uPlot.
import {byId, count, isNone, ms, rate} from "./dom.js";

const HOUR = 3600;
const NAMES = ["wall_s", "done_per_s", "failed_per_s", "lag", "p50_ms", "p99_ms"];
const columns = Object.fromEntries(NAMES.map((name) => [name, []]));
const CURVES = [
  ["rate", "per second", [["done", "done_per_s", "--curve-1"], ["failed", "failed_per_s", "--curve-2"]], rate],
  ["latency", "complete latency", [["p50", "p50_ms", "--curve-1"], ["p99", "p99_ms", "--curve-3"]], ms],
  ["lag", "lag in records", [["lag", "lag", "--curve-1"]], count],
];
let plots = [];

export const newestMs = () => (columns.wall_s.at(-1) ?? 0) * 1000;

export function add(history) {
  for (const name of NAMES) columns[name].push(...history[name]);
  const old = columns.wall_s.findIndex((at) => at >= (columns.wall_s.at(-1) ?? 0) - HOUR);
  if (old > 0) for (const name of NAMES) columns[name].splice(0, old);
  if (!plots.length) build();
  plots.forEach(([plot, series]) => plot.setData(dataOf(series)));
}

const dataOf = (series) => [columns.wall_s, ...series.map(([, name]) => columns[name])];

function build() {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  plots.forEach(([plot]) => plot.destroy());
  plots = CURVES.map(([id, title, series, format]) => {
    const axis = {stroke: colour("--quiet"), grid: {stroke: colour("--grid"), width: 1}, ticks: {stroke: colour("--grid"), width: 1}};
    const options = {
      title, width: byId(id).clientWidth || 400, height: 150, cursor: {drag: {x: false, y: false}},
      scales: {y: {range: (_, low, high) => [0, isNone(high) || high <= 0 ? 1 : high * 1.1]}},
      axes: [{...axis, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit", second: "2-digit"})), space: 70},
        {...axis, size: 62, values: (_, ticks) => ticks.map((value) => format(value))}],
      series: [{label: "at", value: (_, at) => (isNone(at) ? "–" : new Date(at * 1000).toLocaleTimeString("en-GB"))},
        ...series.map(([label, , name]) => ({label, stroke: colour(name), width: 1.5, points: {show: false}, value: (_, value) => format(value)}))],
    };
    return [new window.uPlot(options, dataOf(series), byId(id)), series];
  });
}

export function watch() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
  new ResizeObserver(() => plots.forEach(([plot], number) => {
    const width = byId(CURVES[number][0]).clientWidth;
    if (width && width !== plot.width) plot.setSize({width, height: 150});
  })).observe(byId("curves"));
}
