"""Compare the tables of several engines, and report the rows that differ.

A table is a multiset: the order of rows is ignored, the number of equal rows counts. Values are compared bit by bit,
except that null equals null, NaN equals NaN, and 0.0 equals -0.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.compare.engines import (
    Compared,
    ComparedEngine,
    Local,
    LocalChunks,
    LocalRecords,
    Native,
    Spark,
    SparkChunks,
    SparkRecords,
    Storm,
)
from downspout.compare.outputs import Job, columns_wrong, rounded_alike
from downspout.errors import DownspoutError, coordinates
from downspout.formatting import columns, counted
from downspout.kafka.client import KafkaCluster, connection_properties
from downspout.kafka.port import TopicPartition
from downspout.settings.secrets import resolve_client
from downspout.system.waiting import waiting

DIFFERENCES_MAX = 1_000  # Differing rows kept, the first in sorted order


@dataclass(frozen=True)
class Difference:
    """A row whose count differs between tables."""

    row: Mapping[str, Any]  # its values by column
    counts: Mapping[str, int]  # how often each table has it


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    rows: Mapping[str, int]  # by table
    duplicates: Mapping[str, int]  # rows that repeat another one, by table
    differing: Mapping[str, int]  # distinct rows whose count differs from the first table, by table
    differences: Sequence[Difference]  # at most 1,000

    @property
    def equal(self) -> bool:
        """Whether all tables hold the same rows equally often."""
        return not any(self.differing.values())


def compare(tables: Mapping[str, pa.Table]) -> Comparison:
    """Compare tables with the same columns; the first is the reference.

    Groups all rows by all columns in one pass, and counts them by table. O(rows × columns).

    Args:
        tables: by name; columns and types must be the same in all, see :func:`downspout.compare.outputs.columns_wrong`.

    >>> found = compare({"a": pa.table({"x": [1, 1, 2]}), "b": pa.table({"x": [2, 1]})})
    >>> found.differing, found.differences
    ({'a': 0, 'b': 1}, [Difference(row={'x': 1}, counts={'a': 2, 'b': 1})])
    """
    names = list(tables)
    types = next(iter(tables.values())).schema
    columns = types.names
    counted = pa.concat_tables(_countable(table, number, len(names)) for number, table in enumerate(tables.values()))
    places = [str(number) for number in range(len(columns))]
    marks = [f"n{number}" for number in range(len(names))]
    grouped = counted.group_by(places, use_threads=False).aggregate([(mark, "sum") for mark in marks])
    counts = np.stack([grouped.column(f"{mark}_sum").to_numpy() for mark in marks])
    unlike_first = counts != counts[0]
    unequal = unlike_first.any(axis=0)
    wrong = grouped.filter(pa.array(unequal))
    shown = pa.table([_shown(wrong.column(p), t.type) for p, t in zip(places, types, strict=True)], names=columns)
    order = _order(wrong.select(places))[:DIFFERENCES_MAX]
    found = counts[:, unequal]
    differences = [
        Difference(row, dict(zip(names, found[:, place].tolist(), strict=True)))
        for place, row in zip(order.tolist(), shown.take(pa.array(order)).to_pylist(), strict=True)
    ]
    rows = {name: table.num_rows for name, table in tables.items()}
    distinct = (counts > 0).sum(axis=1).tolist()
    duplicates = {name: rows[name] - number for name, number in zip(names, distinct, strict=True)}
    differing = dict(zip(names, unlike_first.sum(axis=1).tolist(), strict=True))
    return Comparison(rows, duplicates, differing, differences)


def _countable(table: pa.Table, number: int, tables: int) -> pa.Table:
    """Return the rows in a form that can be grouped, with a column per table that marks its own rows."""
    table = table.combine_chunks()
    columns = [_groupable(column) for column in table.columns]
    ones, zeros = np.ones(table.num_rows, dtype=np.int64), np.zeros(table.num_rows, dtype=np.int64)
    marks = [pa.array(ones if other == number else zeros) for other in range(tables)]
    names = [*map(str, range(len(columns))), *(f"n{other}" for other in range(tables))]
    return pa.table([*columns, *marks], names=names)


def _groupable(column: Any) -> Any:
    """Convert values so that equal ones have equal bits: floats to normalised bits, lists to text."""
    kind = column.type
    if pa.types.is_floating(kind):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = np.array(array.fill_null(0).to_numpy(zero_copy_only=False))
        values[np.isnan(values)] = np.nan  # one of several bit patterns
        values += 0.0  # -0.0 + 0.0 is 0.0
        bits = values.view(np.int64 if kind == pa.float64() else np.int32)
        return pa.array(bits, mask=np.asarray(array.is_null().to_numpy(zero_copy_only=False)))
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else _text(value) for value in column.to_pylist()], pa.string())
    return column


def _text(value: Any) -> str:
    """Return a list or a struct as text; equal values have equal texts.

    >>> _text([1.0, -0.0, None]), _text({"a": float("nan")})
    ('[1.0, 0.0, None]', "{'a': nan}")
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_text(each)}' for key, each in value.items())}}}"
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def _shown(column: Any, kind: pa.DataType) -> Any:
    """Undo :func:`_groupable` for display."""
    if not pa.types.is_floating(kind):
        return column
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    floats = np.array(values).view(np.float64 if kind == pa.float64() else np.float32)
    return pa.array(floats, mask=np.asarray(array.is_null().to_numpy(zero_copy_only=False)), from_pandas=False)


def _order(table: pa.Table) -> Any:
    keys: Any = [(name, "ascending") for name in table.column_names]
    return pc.sort_indices(table, sort_keys=keys).to_numpy()


# --- the report ---

SHOWN_MAX = 3
ROW_CHARACTERS_MAX = 400


@dataclass(frozen=True)
class EngineRun:
    """The run of one engine."""

    name: str  # of the engine
    seconds: float = 0.0  # including its start and end
    missing: str = ""  # why it did not start; empty if it did
    error: str = ""  # why it did not finish; empty if it did

    @property
    def ran(self) -> bool:
        """Whether it finished, so it has tables."""
        return not (self.missing or self.error)


@dataclass(frozen=True)
class Table:
    """One sink's table on all engines that ran."""

    name: str  # of the sink
    keys: Sequence[str]  # key columns of an aggregate
    columns_wrong: Mapping[str, Sequence[str]]  # by engine, differences of columns; its rows are not compared
    comparison: Comparison  # of the other engines

    @property
    def equal(self) -> bool:
        """Whether the tables of all engines are equal."""
        return not self.columns_wrong and self.comparison.equal


@dataclass(frozen=True)
class Report:
    """The report of a comparison; the first engine that ran is the reference."""

    topology: str
    ranges: Mapping[TopicPartition, tuple[int, int]]  # the offsets that were read
    engines: Sequence[EngineRun]  # all requested engines
    tables: Sequence[Table]  # one for each sink
    explicit: bool = False  # whether the user named the engines, so each must run
    left: Sequence[str] = field(default_factory=list)  # groups and topics that could not be deleted

    @property
    def exit_code(self) -> int:
        """0: equal; 1: different; 2: a required engine did not finish, or fewer than two did."""
        if not all(table.equal for table in self.tables):
            return 1
        failed = [run for run in self.engines if run.error or (self.explicit and run.missing)]
        return 2 if failed or sum(run.ran for run in self.engines) < 2 else 0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        ran = [run.name for run in self.engines if run.ran]
        if self.exit_code == 1:
            return f"different: {', '.join(table.name for table in self.tables if not table.equal)}"
        if len(ran) < 2:
            return f"nothing was compared: {'only ' + ran[0] if ran else 'no engine'} ran"
        equal = f"equal on {', '.join(ran)}"
        if not self.exit_code:
            return equal
        missing = [run.name for run in self.engines if not run.ran and (run.error or self.explicit)]
        return f"{equal}; {', '.join(missing)} did not run"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "topology": self.topology,
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "ranges": {coordinates(*tp): list(given) for tp, given in self.ranges.items()},
            "engines": [
                {
                    "name": run.name,
                    "ran": run.ran,
                    "seconds": round(run.seconds, 3),
                    "why_not": run.missing or run.error,
                }
                for run in self.engines
            ],
            "tables": [_table_as_dict(table) for table in self.tables],
            "left": list(self.left),
        }

    def render(self) -> str:
        """Return it for people: a table, the first differences, and the verdict last."""
        lines = [
            f"{self.topology}: {counted(sum(e - s for s, e in self.ranges.values()), 'offset')} of {_topics(self)}"
        ]
        cells = [("table", "engine", "rows", "result", "seconds"), *self._cells()]
        lines += [f"  {line}" for line in columns(cells, {2, 4})]
        for run in self.engines:
            if not run.ran:
                lines.append(
                    f"{run.name} {'is not available' if run.missing else 'failed'}: {run.missing or run.error}"
                )
        for table in self.tables:
            lines += _explain(table)
        lines += [f"not deleted: {', '.join(self.left)}"] if self.left else []
        return "\n".join([*lines, self.verdict])

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for table in self.tables:
            found = table.comparison
            for run in (run for run in self.engines if run.ran):
                rows = f"{found.rows[run.name]:,}" if run.name in found.rows else ""
                yield table.name, run.name, rows, _result(table, run.name), f"{run.seconds:,.1f}"


def _result(table: Table, engine: str) -> str:
    if wrong := table.columns_wrong.get(engine):
        return f"other columns ({len(wrong)})"
    found = table.comparison
    if engine not in found.rows:
        return "is not made"
    if not any(found.rows.values()):
        return "empty"
    if engine == next(iter(found.rows)):
        return "the reference"
    if differing := found.differing[engine]:
        return f"differs in {counted(differing, 'row')}"
    repeated = found.duplicates[engine]
    return f"equal ({counted(repeated, 'duplicate')})" if repeated else "equal"


def _topics(report: Report) -> str:
    names: dict[str, int] = {}
    for tp in report.ranges:
        names[tp.topic] = names.get(tp.topic, 0) + 1
    return ", ".join(f"{name} ({counted(number, 'partition')})" for name, number in names.items())


def _explain(table: Table) -> list[str]:
    """Return the first differences in words."""
    lines = [f"{table.name}: {engine}: {'; '.join(wrong)}" for engine, wrong in table.columns_wrong.items()]
    found = table.comparison.differences
    for number, difference in enumerate(found[:SHOWN_MAX]):
        have = ", ".join(f"{engine} {count}" for engine, count in difference.counts.items())
        lines.append(f"{table.name}: how often each has this row: {have}")
        lines.append(f"    {_row(difference.row)}")
        if nearest := _nearest(difference, [*found[:number], *found[number + 1 :]], table.keys):
            changes = "; ".join(
                f"{name} is {difference.row[name]!r} here, {nearest.row[name]!r} there"
                for name in difference.row
                if _cell(difference.row[name]) != _cell(nearest.row[name])
            )
            where = ", ".join(f"{engine} {count}" for engine, count in nearest.counts.items())
            lines.append(f"    the nearest row ({where}): {changes}")
    if len(found) > SHOWN_MAX:
        lines.append(f"{table.name}: and more rows; --json has the first 1,000")
    return lines


def _nearest(one: Difference, others: Sequence[Difference], keys: Sequence[str]) -> Difference | None:
    """Return the most similar other row, which may be the changed version of this one."""

    def distance(other: Difference) -> int:
        return sum(_cell(one.row[name]) != _cell(other.row[name]) for name in one.row)

    same_key = [other for other in others if keys and all(one.row[key] == other.row[key] for key in keys)]
    best = min(same_key or others, key=distance, default=None)
    return best if best is not None and (same_key or distance(best) <= max(1, len(one.row) // 3)) else None


def _cell(value: Any) -> str:
    return repr(value)  # so NaN equals NaN


def _row(row: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= ROW_CHARACTERS_MAX else text[: ROW_CHARACTERS_MAX - 1] + "…"


def _table_as_dict(table: Table) -> dict[str, Any]:
    found = table.comparison
    return {
        "name": table.name,
        "equal": table.equal,
        "rows": dict(found.rows),
        "duplicates": dict(found.duplicates),
        "differing": dict(found.differing),
        "columns_wrong": {engine: list(wrong) for engine, wrong in table.columns_wrong.items()},
        "differences": [{"row": dict(each.row), "counts": dict(each.counts)} for each in found.differences],
    }


# --- the comparison ---

ENGINES: dict[str, type[ComparedEngine]] = {
    each.name: each for each in (Local, LocalRecords, LocalChunks, Storm, Spark, SparkRecords, SparkChunks, Native)
}
"""In the order in which they run, the cheapest first."""

SAID_EVERY_S = 10.0  # Interval of progress lines
LEAVE_S_MAX = 20.0  # Kafka removes a killed member of a group after its session of 10 s

log = logging.getLogger("downspout.compare")

Progress = Callable[[str, str], None]  # Called with an engine's name and its state


def run(job: Job, engines: Sequence[str], *, explicit: bool, progress: Progress, clock: Clock = SYSTEM_CLOCK) -> Report:
    """Run a job on engines and compare their tables."""
    made = [ENGINES[name](job) for name in engines]
    begun: list[ComparedEngine] = []
    runs = []
    try:
        for engine in made:
            if missing := engine.missing():
                progress(engine.name, f"is not available: {missing}")
                runs.append(EngineRun(engine.name, missing=missing))
                continue
            begun.append(engine)
            for written in job.topics:
                if engine.makes(written):
                    written.cluster().ensure_topic(job.topic(engine.name, written.name), written.partitions)
            runs.append(_run(engine, progress, clock))
        there = [engine for engine, each in zip(made, runs, strict=True) if each.ran]
        compared: list[Compared] = [*job.sinks, *job.topics, *job.states]
        makers = [(sink, [engine for engine in there if engine.makes(sink)]) for sink in compared]
        tables = [_compare(sink, engines) for sink, engines in makers if engines]
    finally:
        left = clean_up(job, begun, clock)
    ranges = {tp: given for spout in job.spouts for tp, given in spout.ranges.items()}
    return Report(job.graph.name, ranges, runs, tables, explicit, left)


def _run(engine: ComparedEngine, progress: Progress, clock: Clock) -> EngineRun:
    progress(engine.name, "runs")
    started = clock.monotonic()
    try:
        with waiting(engine.doing, lambda line: progress(engine.name, line), SAID_EVERY_S):
            engine.run()
    except DownspoutError as error:
        progress(engine.name, "failed")
        return EngineRun(engine.name, clock.monotonic() - started, error=str(error))
    seconds = clock.monotonic() - started
    progress(engine.name, f"is done after {seconds:.1f} s")
    return EngineRun(engine.name, seconds)


def _compare(sink: Compared, engines: Sequence[ComparedEngine]) -> Table:
    wrong, tables = {}, {}
    for engine in engines:
        found = engine.table(sink)
        if differences := columns_wrong(found.schema, sink.schema):
            wrong[engine.name] = differences
        else:
            tables[engine.name] = found.select(sink.schema.names).cast(sink.schema)
    if not tables:  # no engine has the right columns
        tables = {engines[0].name: sink.schema.empty_table()}
    return Table(sink.name, sink.keys, wrong, compare(rounded_alike(tables, sink.keys, sink.float_sums)))


def clean_up(job: Job, engines: Sequence[ComparedEngine], clock: Clock) -> list[str]:
    """Delete the temporary groups and topics of started engines; return those that could not be deleted."""
    left = []
    for written in job.topics:
        for topic in (job.topic(engine.name, written.name) for engine in engines if engine.makes(written)):
            try:
                written.cluster().delete_topic(topic)
            except DownspoutError as error:
                log.warning("cleaning up: %s", error)
                left.append(topic)
    for spout in job.spouts:
        groups = sorted({group for engine in engines for group in engine.groups(spout)})
        topics = {job.dead_letter_topic(engine.name, spout) for engine in engines}
        try:
            cluster = KafkaCluster(spout.bootstrap, connection_properties(resolve_client(spout.client)))
            deadline = clock.monotonic() + LEAVE_S_MAX
            while True:
                # A broker may list a topic briefly after its deletion, so check again.
                topics &= cluster.topics().keys()
                for topic in topics:
                    cluster.delete_topic(topic)
                groups = cluster.delete_groups(groups)
                if not (topics or groups) or clock.monotonic() > deadline:
                    break
                clock.sleep(0.5)
        except DownspoutError as error:  # must hide neither the result nor an earlier error
            log.warning("cleaning up: %s", error)
        left += [*groups, *sorted(topics)]
    return left
