// Asks the API every two seconds and hands the answers to the panels.
import * as curves from "./curves.js";
import {byId, count, el, forget, renew, span} from "./dom.js";
import {draw} from "./graph.js";
import * as panels from "./panels.js";

const EVERY_MS = 2_000, PAGE = 50;
const WINDOWS = [["1m", "1 min"], ["10m", "10 min"], ["all", "all"]];
const view = {window: "1m", sort: "lag", offset: 0, topology: null, run: null};

async function ask(path) {
  const answer = await fetch(`api/${path}`, {cache: "no-store"});
  if (!answer.ok) throw new Error(`api/${path}: ${answer.status}`);
  return answer.json();
}

function notice(text) {
  byId("notice").hidden = !text;
  byId("notice").textContent = text;
}

function showState(run) {
  const badge = byId("state");
  badge.textContent = run.stuck && view.topology.engine === "local" ? "busy" : run.state;
  badge.className = `badge ${run.state}`;
  byId("since").textContent = run.duration_s === undefined ? "" : `for ${span(run.duration_s)}`;
  const broker = run.totals?.disconnected ? "No broker answers: what comes from Kafka is as of its last answer." : "";
  notice(run.stuck || broker);
}

function showRun() {
  const {run, topology} = view;
  showState(run);
  renew("graph", [topology, run.edges, run.components?.map((each) => [each.windows, each.held, each.last_error]), view.window], () => draw(topology, run, view.window));
  if (!run.components) return;
  panels.tiles(run, view.window, topology.engine);
  panels.blocked(run.blocked);
  panels.components(run, topology, view.window);
  panels.sinks(run.sinks);
  panels.transactions(run.transactions);
  panels.deadLetters(run.dead_letters);
  panels.events(run.events);
  panels.workers(run.workers);
  panels.batches(run.batches, run.coordinators || []);
}

async function showPartitions() {
  const found = await ask(`partitions?sort=${view.sort}&offset=${view.offset}&limit=${PAGE}`);
  const choose = (by) => {
    Object.assign(view, {sort: by, offset: 0});
    showPartitions().catch(gone);
  };
  panels.partitions(found, {by: view.sort, choose});
  const isNeeded = found.count > 0 || !view.run?.coordinators?.length;
  byId("partitions").hidden = !isNeeded;
  byId("partition-count").textContent = `${count(found.count)} in all, ${count(found.lag)} records behind`;
  const last = Math.min(found.offset + PAGE, found.count);
  const turn = (by) => () => {
    view.offset = Math.max(0, view.offset + by);
    showPartitions().catch(gone);
  };
  byId("pages").hidden = found.count <= PAGE;
  byId("pages").replaceChildren(
    el("button", {class: "plain", disabled: !found.offset, onclick: turn(-PAGE)}, "previous"),
    el("span", {}, `${count(found.offset + 1)} to ${count(last)} of ${count(found.count)}`),
    el("button", {class: "plain", disabled: last >= found.count, onclick: turn(PAGE)}, "next"));
}

async function showSettings() {
  const found = await ask("settings");
  panels.settings(found.settings, byId("defaults").checked);
}

function gone() {
  view.topology = null; // what answers next may be another run
  const badge = byId("state");
  badge.textContent = "no answer";
  badge.className = "badge gone";
  notice("The run does not answer: it has ended, or cannot be reached. What is shown is as of its last answer.");
}

function showTopology() {
  const {topology, engine, windows, notes} = view.topology;
  byId("latency").hidden = engine !== "local"; // others have no percentiles
  byId("name").textContent = document.title = topology;
  if (!windows.includes(view.window)) view.window = windows[0];
  choices();
  panels.notes(notes);
}

async function turn() {
  try {
    if (!view.topology) {
      view.topology = await ask("topology");
      showTopology();
    }
    const [run, history] = await Promise.all([ask("run"), ask(`history?since_ms=${curves.newestMs()}`)]);
    view.run = run;
    await showPartitions();
    showRun();
    curves.add(history);
  } catch (error) {
    gone();
    console.error(error);
  }
  setTimeout(turn, EVERY_MS);
}

function choices() {
  const known = WINDOWS.filter(([name]) => view.topology?.windows.includes(name) ?? true);
  byId("windows").replaceChildren(...known.map(([name, text]) => el("button", {
    "aria-pressed": String(view.window === name),
    onclick: () => {
      view.window = name;
      choices();
      if (view.run) showRun();
    },
  }, text)));
}

choices();
curves.watch();
byId("settings").querySelector("details").addEventListener("toggle", (event) => event.target.open && showSettings().catch(gone));
byId("defaults").addEventListener("change", () => {
  forget("settings");
  showSettings().catch(gone);
});
turn();
