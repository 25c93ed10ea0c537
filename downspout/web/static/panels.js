// One function for each panel: from the API's answer to elements.
import {NONE, byId, bytes, clock, count, details, el, isNone, ms, percent, rate, renew, span, table} from "./dom.js";

// What stands below a panel: on an engine that has fewer figures, which it has.
export function notes(texts) {
  for (const old of document.querySelectorAll("section > .note")) old.remove();
  for (const [id, text] of Object.entries(texts)) {
    byId(id).append(el("p", {class: "note quiet"}, text));
    byId(id).hidden = false;
  }
}

export function tiles(run, which, engine) {
  const {totals} = run, window = run.windows[which];
  const shown = [
    ["done per second", rate(window.completed_per_s), `${count(totals.completed)} in all`],
    ["failed per second", rate(window.failed_per_s), `${count(totals.failed)} in all${isNone(totals.timeouts) ? "" : `, ${count(totals.timeouts)} by timeout`}`, totals.failed && window.failed_per_s ? "warn" : ""],
    ["latency p50", ms(window.p50_ms), "from emit to ack"],
    ["latency p99", ms(window.p99_ms), "from emit to ack"],
    ["lag", count(totals.lag), "records not committed"],
    ["in flight", count(totals.in_flight), `${count(totals.retry_waiting)} wait for a retry`],
    ["dead letters", count(totals.dead_lettered), "failed for good", totals.dead_lettered ? "bad" : ""],
  ];
  if (engine !== "local" && !isNone(totals.computed_again)) {
    shown.push(["computed again", count(totals.computed_again), "batches, for a tuple that failed"]);
  }
  // What waits for a retry, for example, is nothing of Spark's or of batches.
  if (engine !== "local" || run.coordinators?.length) shown.splice(0, shown.length, ...shown.filter(([, value]) => value !== NONE));
  renew("tiles", shown, () => shown.map(([name, value, more, mark]) =>
    el("div", {class: "tile"}, el("span", {class: "quiet"}, name), el("b", {class: mark ?? ""}, value), el("span", {class: "quiet"}, more))));
}

// A record that failed is named in full; one that is merely out, as while a sink gathers rows, in a line.
export function blocked(rows) {
  const name = (row) => [el("b", {}, `${row.partition}@${row.blocks}`), ` of ${row.spout}: `];
  const more = (row) => ` (${count(row.done)} done beyond it, ${count(row.lag)} behind)`;
  renew("blocked", rows, () => (rows.length ? rows.map((row) => (row.error
    ? el("div", {class: "block"}, ...name(row), el("span", {class: "bad"}, row.why), more(row),
      el("div", {}, "last error: ", el("code", {}, row.error.replace(`. Try: ${row.cure}`, ""))),
      el("div", {}, el("b", {}, "Try: "), row.cure))
    : el("div", {class: "block quiet"}, ...name(row), row.why, more(row), row.cure ? `. If it stays so: ${row.cure}` : ""))) : null));
  byId("blocked").classList.toggle("failing", rows.some((row) => row.error));
}

export function components(run, topology, which) {
  const kinds = new Map(topology.components.map((each) => [each.name, each.kind]));
  const rows = run.components.map((each) => ({...each, windows: undefined, report: undefined, window: each.windows[which], kind: kinds.get(each.name)}));
  renew("components", rows, () => {
    const shown = table([
      ["component", (row) => row.name + (row.tasks > 1 ? ` ×${row.tasks}` : ""), {text: true}],
      ["kind", (row) => row.kind, {text: true}],
      ["emitted", (row) => count(row.totals.emitted)], ["per s", (row) => rate(row.window.emitted_per_s)],
      ["executed", (row) => (row.kind === "spout" ? NONE : count(row.totals.executed))],
      ["per s", (row) => (row.kind === "spout" ? NONE : rate(row.window.executed_per_s))],
      ["acked", (row) => count(row.totals.acked)], ["failed", (row) => count(row.totals.failed)],
      ["execute", (row) => ms(row.window.execute_ms)], ["process", (row) => ms(row.window.process_ms)],
      ["capacity", (row) => (row.kind === "spout" ? NONE : percent(row.window.capacity))],
      ["queue", (row) => count(row.queue)], ["holds", (row) => count(row.held)],
      ["errors", (row) => el("span", {class: row.totals.errors ? "bad" : ""}, count(row.totals.errors))],
    ], rows);
    const errors = rows.filter((row) => row.last_error).map((row) => el("div", {class: "block"},
      details(`error ${row.name}`, el("span", {}, `last error in ${row.name}: `, el("code", {}, row.last_error)), el("pre", {}, row.stack))));
    return [shown, ...errors];
  });
}

export function partitions(found, sorting) {
  const lost = (row) => el("span", {class: row.retention_records < 0 ? "bad" : ""}, count(row.retention_records));
  renew("topics", found.topics, () => (found.count > 1 ? table([
    ["topic", (row) => row.topic, {text: true}], ["read by", (row) => row.spout, {text: true}],
    ["partitions", (row) => count(row.partitions)], ["in the log", (row) => count(row.log_records)], ["lag", (row) => count(row.lag)],
    ["lag in time", (row) => span(row.lag_s)], ["done beyond", (row) => count(row.done)], ["in flight", (row) => count(row.in_flight)],
    ["failed, waiting", (row) => count(row.failed)], ["fetches", (row) => count(row.fetches)], ["fetched", (row) => count(row.fetched)],
  ], found.topics) : null));
  renew("partitions", [found, sorting.by], () => table([
    ["partition", (row) => row.partition, {text: true, sort: "partition"}],
    ["committed", (row) => count(row.committed), {sort: "committed"}], ["position", (row) => count(row.position), {sort: "position"}],
    ["emitted", (row) => count(row.emitted), {sort: "emitted"}], ["begin", (row) => count(row.begin), {sort: "begin"}],
    ["end", (row) => count(row.end), {sort: "end"}], ["lag", (row) => count(row.lag), {sort: "lag"}],
    ["lag in time", (row) => (isNone(row.lag) ? NONE : isNone(row.lag_s) ? `> ${span(found.known_s)}` : span(row.lag_s)), {sort: "lag_s"}],
    ["done beyond", (row) => count(row.done), {sort: "done"}], ["in flight", (row) => count(row.in_flight), {sort: "in_flight"}],
    ["failed, waiting", (row) => el("span", {class: row.failed ? "warn" : ""}, count(row.failed)), {sort: "failed"}],
    ["blocked by", (row) => (isNone(row.blocks) ? "" : el("span", {class: row.error ? "bad" : "quiet"}, `@${row.blocks}`))],
    ["retention", lost, {sort: "retention_records"}],
    ["fetches", (row) => count(row.fetches), {sort: "fetches"}], ["fetched", (row) => count(row.fetched), {sort: "fetched"}],
    ["mean", (row) => ms(milliseconds(row.fetch_mean_s)), {sort: "fetch_mean_s"}], ["longest", (row) => ms(milliseconds(row.fetch_max_s)), {sort: "fetch_max_s"}],
    ["owner", (row) => row.owner || NONE, {text: true, sort: "owner"}],
  ], found.rows, sorting));
}

function milliseconds(seconds) {
  return isNone(seconds) ? seconds : seconds * 1000;
}

export function sinks(rows) {
  renew("sinks", rows, () => (rows.length ? table([
    ["sink", (row) => row.component, {text: true}], ["rows", (row) => count(row.rows)], ["files", (row) => count(row.files)],
    ["bytes", (row) => bytes(row.bytes)], ["flushes", (row) => count(row.flushes)], ["rows held", (row) => count(row.held)],
    ["oldest", (row) => span(row.held_s)],
    ["store away", (row) => el("span", {class: row.away_s ? "warn" : ""}, row.away_s ? span(row.away_s) : NONE)], ["log length", (row) => count(row.log_entries)],
    ["there already", (row) => count(row.covered)], ["rejected", (row) => el("span", {class: row.rejected ? "warn" : ""}, count(row.rejected))],
  ], rows) : null));
}

export function transactions(rows) {
  renew("transactions", rows, () => (rows.length ? table([
    ["component", (row) => row.component, {text: true}], ["committed", (row) => count(row.transactions_committed)],
    ["aborted", (row) => count(row.transactions_aborted)], ["fenced", (row) => count(row.transactions_fenced)],
    ["repeated", (row) => count(row.repeated)], ["discarded", (row) => count(row.discarded)],
  ], rows) : null));
}

const LETTERS = 5; // above the fold; all that the API has stand further below

// The first line of an error, without the record and the hint: both are on the page already.
function inLine(row) {
  return row.error.split("\n", 1)[0].replace(`${row.topic}[${row.partition}]@${row.offset}: `, "").replace(/ Try: .*/, "");
}

export function deadLetters(found) {
  const some = found.filter((each) => each.last.length);
  const last = some.flatMap((each) => each.last.map((row) => ({...row, by: each.component})))
    .sort((one, other) => other.at_ms - one.at_ms).slice(0, LETTERS);
  renew("last-dead-letters", last, () => (last.length ? table([
    ["at", (row) => clock(row.at_ms), {text: true}], ["record", (row) => `${row.topic}[${row.partition}]@${row.offset}`, {text: true}],
    ["written by", (row) => row.by, {text: true}], ["failed in", (row) => row.component || NONE, {text: true}],
    ["error", (row) => el("code", {title: row.error}, inLine(row)), {brief: true}],
  ], last) : null));
  renew("dead-letters", some, () => (some.length ? some.flatMap((each) => [
    el("div", {}, `${each.component} → topic `, el("code", {}, each.topic)),
    el("div", {class: "chips"}, ...Object.entries(each.by_error).map(([error, times]) => el("span", {class: "chip"}, `${error}: ${count(times)}`))),
    ...each.last.map((row) => el("div", {class: "block"},
      el("b", {}, `${row.topic}[${row.partition}]@${row.offset}`),
      ` failed ${row.attempts === 1 ? "once" : `${count(row.attempts)} times`}${row.component ? `, last in ${row.component}` : ""} at ${clock(row.at_ms)}`,
      el("div", {}, el("code", {}, row.error)), el("div", {}, "to try it again: ", el("code", {}, row.replay)))),
  ]) : null));
}

export function events(rows) {
  renew("events", rows, () => (rows.length ? table([
    ["at", (row) => (clock(row.first_ms) === clock(row.last_ms) ? clock(row.last_ms) : `${clock(row.first_ms)} – ${clock(row.last_ms)}`), {text: true}], ["event", (row) => row.kind, {text: true}],
    ["times", (row) => count(row.count)], ["of", (row) => row.component, {text: true}], ["", (row) => row.text, {long: true}],
  ], rows) : el("p", {class: "quiet"}, "Nothing yet.")));
}

export function workers(rows) {
  renew("workers", rows, () => (rows.length ? table([
    ["worker", (row) => String(row.number)], ["pid", (row) => row.pid ?? NONE], ["state", (row) => row.state, {text: true}],
    ["restarts", (row) => el("span", {class: row.restarts ? "warn" : "", title: row.deaths.join("\n")}, count(row.restarts))],
    ["done", (row) => count(row.completed)], ["in flight", (row) => count(row.in_flight)], ["lag", (row) => count(row.lag)],
    ["CPU", (row) => (isNone(row.cpu_percent) ? NONE : `${Math.round(row.cpu_percent)} %`)], ["memory", (row) => bytes(row.memory_bytes)],
  ], rows) : null));
}

export function batches(rows, coordinators) {
  if (coordinators.length) {
    renew("batches", coordinators, () => table([
      ["coordinator", (row) => row.component, {text: true}], ["next transaction", (row) => count(row.batch_txid)],
      ["active", (row) => count(row.batches_active)], ["committed", (row) => count(row.batches_succeeded)],
      ["attempts", (row) => count(row.batch_attempts)],
      ["failed", (row) => el("span", {class: row.batches_failed ? "bad" : ""}, count(row.batches_failed))],
      ["the last took", (row) => span(row.batch_s)],
    ], coordinators));
    return;
  }
  renew("batches", rows, () => (rows.length ? table([
    ["batch", (row) => count(row.number)], ["at", (row) => clock(row.at_ms), {text: true}], ["records", (row) => count(row.records)],
    ["took", (row) => span(row.seconds)], ["per s", (row) => rate(row.records_per_s)],
    ["dead letters", (row) => el("span", {class: row.dead_lettered ? "bad" : ""}, count(row.dead_lettered))],
  ], rows) : null));
}

export function settings(rows, withDefaults) {
  const shown = rows.filter((row) => withDefaults || row.source !== "default");
  renew("settings", shown, () => table([
    ["component", (row) => row.component || "the run", {text: true}], ["setting", (row) => row.key, {text: true}],
    ["value", (row) => el("code", {}, isNone(row.value) ? NONE : typeof row.value === "object" ? JSON.stringify(row.value) : String(row.value)), {long: true}],
    ["from", (row) => row.source, {text: true}],
  ], shown));
}
