"""The behavior that all sinks share: hold rows as Arrow arrays, flush them together, ack durable rows.

Rows are converted in blocks of a few hundred as they arrive. So a row that does not fit the columns fails at once and
alone, with the field named; memory is counted exactly; and the garbage collector has no 100,000 tuples to traverse.

A flush is due when there are enough rows or bytes, or the oldest row is old enough: the local engine asks for that time
(``drain_at``), on Storm a tick checks every second. A flush acks its tuples after its log entry exists. Tuples whose
rows the directory already holds are acked and dropped.

If the store is unavailable, full or locked, the sink waits: it keeps the rows of the flush and retries with growing
pauses, and acks or fails nothing. The local engine pauses the spouts meanwhile (``is_waiting``). Storm cannot, so
tuples time out and are replayed; the sink forgets rows beyond one more flush.

A flush that raises another error acks nothing and forgets its rows: the local engine stops the run with the error; on
Storm the tuples time out and are replayed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import Bolt, input_fields
from downspout.errors import ConfigError, RecordError, StoreAwayError, TopologyError, coordinates
from downspout.ledger.origin import Origin
from downspout.origins import origin_at
from downspout.outages import SILENT, SOON_S, Patience, State
from downspout.settings.table import parse_scope
from downspout.sink.identity import Identities, IdentityBuilder, Mask, name_of
from downspout.sink.schema import Columns, Rejected

TUPLE_BYTES = 64  # What an id and an origin cost, roughly, besides the row

Picker = Callable[[Sequence[Any]], list[Sequence[Any]]]  # From the values of tuples to one sequence per column


@dataclass(frozen=True)
class Batch:
    """The rows of one flush."""

    ids: Sequence[Any]  # of the tuple that each row is of; acked once the rows are durable
    table: pa.Table  # the declared columns
    identities: Identities  # of the rows, in their order; their paths lack the steps of the inputs
    chunked: bool = False  # whether one tuple may be of several rows
    unfinished: Collection[Any] = ()  # ids of tuples that have rows in a later part of the same flush

    @property
    def tuples(self) -> Iterable[Any]:
        """Return the ids of the tuples that end here, each once."""
        return dict.fromkeys(one for one in self.ids if one not in self.unfinished) if self.chunked else self.ids

    def only(self, good: Mask) -> Batch:
        """Return the rows that a mask leaves."""
        ids = [one for one, kept in zip(self.ids, good.tolist(), strict=True) if kept]
        return Batch(ids, self.table.filter(pa.array(good)), self.identities.only(good), self.chunked, self.unfinished)

    def split(self, numbers: NDArray[np.int64]) -> Iterator[Batch]:
        """Yield the rows of part 0, of part 1 and so on; a tuple ends with the last part that has a row of it."""
        last = dict(sorted(zip(self.ids, numbers.tolist(), strict=True), key=itemgetter(1))) if self.chunked else {}
        for number in range(int(numbers.max()) + 1):
            part = self.only(numbers == number)
            yield replace(part, unfinished={one for one in part.ids if last[one] > number} if self.chunked else ())


def picker(fields: Sequence[str], wanted: Sequence[str]) -> Picker:
    """Return the function that picks the wanted fields, column by column, out of the values of many tuples.

    >>> picker(["a", "b", "c"], ["c", "a"])([(1, 2, 3), (4, 5, 6)])
    [(3, 6), (1, 4)]
    """
    places = [fields.index(name) for name in wanted]
    if len(places) == 1 or len(places) * 2 < len(fields):
        getters = [itemgetter(place) for place in places]
        return lambda rows: [tuple(map(get, rows)) for get in getters]

    def pick(rows: Sequence[Any]) -> list[Sequence[Any]]:
        columns = list(zip(*rows, strict=True))
        return [columns[place] for place in places]

    return pick


class Buffer:
    """Collects rows until they are taken."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._clear()

    def _clear(self) -> None:
        self._ids: list[Any] = []
        self._tables: list[pa.Table] = []
        self._identities = IdentityBuilder()
        self._chunked = False
        self.bytes = 0  # what is held, in bytes

    def __len__(self) -> int:
        return len(self._ids)

    def add(
        self, ids: Sequence[Any], values: Sequence[Sequence[Any]], origins: Sequence[Any] | None, source: str = ""
    ) -> list[Rejected]:
        """Add rows; return those that do not fit, which are not held."""
        builder, count = self._identities, len(ids)
        bad: dict[int, str] = {}
        if origins is not None:
            numbers, offsets, bad = builder.encode(origins, source)
        table, invalid = self._columns.table(values)
        reasons = {reject.row: reject.reason for reject in invalid}
        if bad:  # the table lacks its own invalid rows already
            table = table.filter(pa.array([row not in bad for row in range(count) if row not in reasons]))
        if reasons := reasons | bad:
            good = np.array([row not in reasons for row in range(count)], dtype=bool)
            ids = [one for one, fits in zip(ids, good.tolist(), strict=True) if fits]
        if origins is None:
            builder.add_none(len(ids))
        elif reasons:
            builder.add(numbers[good], offsets[good])
        else:
            builder.add(numbers, offsets)
        self._ids += ids
        self._tables.append(table)
        self.bytes += table.nbytes + TUPLE_BYTES * len(ids)
        return [Rejected(row, reasons[row]) for row in sorted(reasons)]

    def add_chunk(self, tuple_id: Any, values: Sequence[Any], origins: Any, source: str = "") -> list[Rejected]:
        """Add the rows of a chunk. If some do not fit, hold none, and return those."""
        builder = self._identities
        bad: dict[int, str] = {}
        table, invalid = self._columns.of_chunk(values)
        if origins is not None:
            numbers, offsets, bad = builder.encode_column(origins, source)
        if invalid or bad:
            reasons = {reject.row: reject.reason for reject in invalid} | bad
            return [Rejected(row, reasons[row]) for row in sorted(reasons)]
        if origins is None:
            builder.add_none(table.num_rows)
        else:
            builder.add(numbers, offsets)
        self._ids += [tuple_id] * table.num_rows
        self._tables.append(table)
        self._chunked = True
        self.bytes += table.nbytes + TUPLE_BYTES
        return []

    def take(self) -> Batch:
        """Return all rows and empty the buffer."""
        empty = self._columns.schema.empty_table()
        table, identities = pa.concat_tables([empty, *self._tables]), self._identities.build()
        batch = Batch(self._ids, table, identities, self._chunked)
        self._clear()
        return batch


BLOCK_ROWS = 1024  # Tuples that are converted at once; fewer at the start and where rows are large
BLOCK_ROWS_FIRST = 16
BLOCKS_PER_FLUSH = 8  # A block is at most so large a part of ``flush_bytes``, by the mean size of the rows before
LOOK_EVERY = 11
"""Of the tuples that wait to be converted, one of so many is measured, and stands for the others: to measure each would
cost a tenth of the whole. So rows that become large all at once are noticed after 11 of them. Not bounded: large rows
that come exactly between those that are measured (a prime number makes that unlikely), up to ``BLOCK_ROWS``, and
lists, whose length says little about their size."""
FLUSH_S = 5.0  # How long one call may write, roughly: Storm kills a component that does not answer for 30 s
ORIGIN = "origin"
BYTES_PER_S = 50e6  # So much slower than that, a flush is worth a line
T = TypeVar("T")


class FlushResult(Protocol):
    """The result of a flush: counts by the names of the figures that they add to."""

    @property
    def rows(self) -> int:
        """How many were written."""

    @property
    def covered(self) -> int:
        """How many were written before."""


class RowSink(Bolt):
    """Base of the bolts that write rows: SinkBolt into a directory, SqlBolt into a table."""

    auto_ack = False
    auto_anchor = False
    wants_tick_s = 1
    figures: ClassVar[tuple[str, ...]] = ("rows", "covered")
    """The counts of :class:`FlushResult` that are reported."""

    @classmethod
    def spec(
        cls,
        name: str | None = None,  # default: the name of the topology's attribute
        inputs: Any = None,  # streamparse's inputs; their tuples should have the field ``origin``
        par: int | dict[str, int] | None = None,  # how many tasks; all of them write to one place
        config: Mapping[str, Any] | None = None,  # Storm's settings for this component, and ours by their whole names
        **settings: Any,
    ) -> ShellBoltSpec:
        """Put the sink into a topology.

        Args:
            settings: those of ``downspout settings SCOPE`` without the prefix; ``schema`` may be a dict ``{"carrier":
                "string", "delay": "int16"}``, ``input_names`` one ``{"enrich": "parse"}``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or the schema is malformed.
        """
        if isinstance(schema := settings.get("schema"), Mapping):
            settings["schema"] = [f"{column}:{kind}" for column, kind in schema.items()]
        if isinstance(names := settings.get("input_names"), Mapping):
            settings["input_names"] = [f"{source}={step}" for source, step in names.items()]
        return super().spec(name, inputs, par, config, **settings)

    @classmethod
    def read_back(cls, directory: Path) -> pa.Table | None:
        """Return the rows that a sink has written to its ``parquet.directory``, with the columns of ``ORIGIN_SCHEMA``.

        ``downspout audit --topology`` and ``downspout compare`` read a sink of your own through it. None: the directory
        is one of Downspout's, whose log and files say what is in it.
        """
        return None

    @property
    def scope(self) -> str:
        """The prefix of its settings."""
        return self.settings_scopes[0]

    def read_settings(self, conf: Mapping[str, Any]) -> None:
        """Read the settings of the scope; warn if flushes are so rare that tuples time out."""
        try:
            self.settings = parse_scope(conf, self.scope)
        except ConfigError as error:
            raise ConfigError(f"{self.component_name}: {error.message}", cure=error.cure) from None
        who = f"{self.component_name}[task {self.task_id}]"
        self._patience = Patience(who, float(self.settings["outage_s_max"]), self.clock)
        if doubt := too_old(conf, self.settings["flush_age_s"], self.scope):
            self.logger.warning("%s: %s. Try: %s", self.component_name, *doubt)

    def begin(self, columns: Columns, context: Mapping[str, Any]) -> list[str]:
        """Find the columns in the inputs, and start empty; return the names of the inputs that carry origins."""
        self.columns = columns
        self._inputs = find_fields(context, columns, str(self.component_name))
        with_origins = [name_of(*given) for given, (_, has_origin) in self._inputs.items() if has_origin]
        self.has_origins = bool(with_origins)
        self._waiting: list[Any] = []
        self._block = min(BLOCK_ROWS_FIRST, self.settings["flush_rows"])
        self._next_look = 1
        self._weight = 0  # roughly the bytes of the tuples that wait
        self._weight_max: int = self.settings["flush_bytes"] // BLOCKS_PER_FLUSH
        self._buffer = Buffer(columns)
        self._unwritten: list[Batch] = []  # parts of a flush that are to be written yet
        self._oldest: float | None = None  # when the first row came that is held
        self._try_at: float | None = None  # while the store is away: when to write again
        self._warned_of_covered = False
        self._figures = dict.fromkeys((*self.figures, "rejected", "flushes"), 0)
        return with_origins

    # --- the hot path -----------------------------------------------------------------------------------

    def process(self, tup: Any) -> None:
        """Hold a tuple; convert a full block, and flush when enough is held."""
        waiting = self._waiting
        waiting.append(tup)
        if len(waiting) >= self._next_look:
            self._weigh(tup)

    def process_many(self, tups: Sequence[Any]) -> int:
        """Hold tuples up to the one with which a block is together, or that shows that they are large."""
        waiting = self._waiting
        count: int = min(len(tups), self._block - len(waiting) - 1)
        if self._oldest is None or count <= 0:
            return 0
        look = self._next_look - 1 - len(waiting)  # the place among these of the next one that is looked at
        while look < count:
            if self._grows_heavy(tups[look]):
                count = look
                break
            look += LOOK_EVERY
        self._next_look = min(len(waiting) + look + 1, self._block)
        waiting += tups[:count]
        return count

    def _weigh(self, tup: Any) -> None:
        """Convert what waits if that is a block, or if the newest tuple shows that it is large."""
        self._note_arrival()
        count = len(self._waiting)
        if count < self._block and not self._grows_heavy(tup):
            self._next_look = min(count + LOOK_EVERY, self._block)
            return
        self._look()

    def _grows_heavy(self, tup: Any) -> bool:
        """Weigh a tuple, which stands for the others; return whether what waits is as heavy as a block may be."""
        self._weight += _size(tup) * LOOK_EVERY
        return self._weight >= self._weight_max

    def _look(self) -> None:
        settings, buffer = self.settings, self._buffer
        self._note_arrival()
        self._convert()
        mean = max(1, buffer.bytes // len(buffer)) if len(buffer) else 1
        if len(buffer) >= settings["flush_rows"] or buffer.bytes >= settings["flush_bytes"] or self._is_old():
            self._flush()
        affordable = settings["flush_bytes"] // (BLOCKS_PER_FLUSH * mean)
        self._block = max(1, min(2 * self._block, BLOCK_ROWS, affordable, settings["flush_rows"] - len(buffer)))
        self._look_again()

    def _look_again(self) -> None:
        """Look at one of the tuples that come, and at the first that is held: its moment counts."""
        self._next_look = min(LOOK_EVERY, self._block) if self._oldest is not None else 1

    def _note_arrival(self) -> None:
        if self._oldest is None:
            self._oldest = self.clock.monotonic()

    def drain_at(self) -> float | None:
        """Return when the held rows are old enough to be flushed. An engine that does not ask sends ticks."""
        if self._try_at is not None:
            return self._try_at
        if self._unwritten:
            return 0.0
        return None if self._oldest is None else self._oldest + self.settings["flush_age_s"]

    def _is_old(self) -> bool:
        due = self.drain_at()
        return due is not None and self.clock.monotonic() >= due

    def process_tick(self, tup: Any) -> None:
        """Flush rows that are old enough."""
        if self._is_old():
            self._convert()
            self._flush()
        self.ack(tup)

    def _convert(self) -> None:
        """Convert the waiting tuples to arrays; fail those that do not fit."""
        waiting, self._waiting, self._weight = self._waiting, [], 0
        self._look_again()
        for (component, stream), tuples in self._by_input(waiting):
            pick, has_origin = self._inputs[component, stream]
            # 0 and 4 are id and values: places are faster than names.
            columns = pick([tup[4] for tup in tuples])
            origins = columns.pop() if has_origin else None
            rejected = self._buffer.add([tup[0] for tup in tuples], columns, origins, name_of(component, stream))
            self._figures["rejected"] += len(rejected)
            for reject in rejected:
                place = _place(origins[reject.row]) if origins is not None else ""
                self.fail_because(tuples[reject.row], RecordError(f"{place}{self.component_name}: {reject.reason}"))

    def _by_input(self, tuples: Sequence[Any]) -> Sequence[tuple[tuple[str, str], Sequence[Any]]]:
        """Return the tuples of each component and stream."""
        if len(self._inputs) == 1:
            return [(next(iter(self._inputs)), tuples)] if tuples else []
        parts: dict[tuple[str, str], list[Any]] = {}
        for tup in tuples:
            parts.setdefault((tup[1], tup[2]), []).append(tup)
        return list(parts.items())

    def process_chunk(self, tup: Any) -> None:
        """Hold the rows of a chunk, whole; flush when enough is held."""
        batch, source = tup.values, name_of(tup.component, tup.stream)
        _, has_origin = self._inputs[tup.component, tup.stream]
        origins = batch.column(ORIGIN) if has_origin else None
        columns = [batch.column(name) for name in self.columns.names]
        # If a row does not fit, the chunk fails, and comes again in halves until that row stands alone.
        if invalid := self._buffer.add_chunk(tup.id, columns, origins, source):
            reject = invalid[0]
            place = _place(origin_at(origins, reject.row)) if origins is not None else ""
            self._figures["rejected"] += batch.num_rows == 1
            self.fail_because(tup, RecordError(f"{place}{self.component_name}: {reject.reason}"))
        elif not batch.num_rows:
            self.ack(tup)
        self._look()

    # --- the flush --------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Flush the held rows."""
        self._convert()
        self._flush()
        while (self._unwritten or len(self._buffer)) and self._try_at is None:
            self._flush()

    def drain_and_wait(self) -> None:
        """Flush the held rows; wait for a store that is unavailable."""
        self.drain()
        while self._try_at is not None:
            self.clock.sleep(max(0.0, self._try_at - self.clock.monotonic()))
            self.drain()

    def is_waiting(self) -> bool:
        """Return whether the store is unavailable, so that spouts should pause."""
        return self._try_at is not None

    def patiently(self, work: Callable[[], T]) -> T:
        """Call ``work`` at the start, and retry it while the store is unavailable."""
        return self._patience.until_it_works(work, self.service, self.look)

    def _flush(self) -> None:
        """Write the held rows, part by part; the rows left after ``FLUSH_S`` are due at once."""
        if self._try_at is not None and self.clock.monotonic() < self._try_at:
            self._bound()
            return
        if not self._unwritten and len(self._buffer):  # an empty table would cost the import of pandas, by way of Arrow
            batch = self._without_conflicts(self._buffer.take())
            self._unwritten = list(self.parts(batch)) if batch.ids else []
        if not len(self._buffer):
            self._oldest = None
        self._look_again()
        until = self.clock.monotonic() + FLUSH_S
        try:
            while self._unwritten:
                self._write()
                if self._try_at is not None or self.clock.monotonic() >= until:
                    break
        except BaseException:
            # Nothing is held then, and what was held is neither acked nor failed, so it times out and comes again. A
            # try for the same rows at every tuple would help nobody.
            self._unwritten, self._try_at = [], None
            raise

    def parts(self, batch: Batch) -> Iterable[Batch]:
        """Return the batches that are each written and acked together, in order."""
        return [batch]

    @property
    def is_last_part(self) -> bool:
        """Whether what is written now is the last part of its flush."""
        return len(self._unwritten) == 1

    def _bound(self) -> None:
        """Forget rows that came while the store is away, if they are many and the engine does not pause spouts."""
        settings, buffer = self.settings, self._buffer
        if self.engine_services is None and (
            len(buffer) >= settings["flush_rows"] or buffer.bytes >= settings["flush_bytes"]
        ):
            buffer.take()

    def _write(self) -> None:
        """Write the first part, and ack it; if the store is unavailable, schedule a retry."""
        is_first, size = self._try_at is None, self._unwritten[0].table.nbytes
        try:
            with self._patience.trying(self.service, soon_s=SOON_S + size / BYTES_PER_S, look=self.look):
                batch, flushed = self.write(self._unwritten[0])
        except StoreAwayError as error:
            self._try_at = self._patience.pause_s(error) + self.clock.monotonic()
            return
        self._try_at = None
        del self._unwritten[0]
        for name in self.figures:
            self._figures[name] += getattr(flushed, name)
        self._figures["flushes"] += 1
        # Somebody may be waiting for rows to be written anew. Not after rows were written: then records came again that
        # failed, timed out or changed hands meanwhile, and what to do for that would be bad advice.
        # Nor after a try whose answer was lost: it may have written them.
        if is_first and flushed.covered and not (flushed.rows or self._warned_of_covered or self._figures["rows"]):
            self._warned_of_covered = True
            self.warn_that_nothing_was_written(batch)
        self.ack_many(batch.tuples)

    @abstractmethod
    def write(self, batch: Batch) -> tuple[Batch, FlushResult]:
        """Write the rows that the store does not have yet; return the batch to ack, and the result.

        Raises:
            StoreAwayError: the store is away. Then it is called again with what is first in ``_unwritten``: these
                rows, if it has put no others there.
        """

    @property
    @abstractmethod
    def service(self) -> str:
        """The store that is written to, for messages."""

    def look(self) -> State | None:
        """Return what a long flush waits for, or None. Another thread calls it."""
        return SILENT, ""

    @abstractmethod
    def warn_that_nothing_was_written(self, batch: Batch) -> None:
        """Warn that all rows of the first flush were written before, and say how to process records again."""

    @property
    @abstractmethod
    def steps(self) -> Mapping[str, str]:
        """The tag of each input (``downspout/sink/identity.py``)."""

    def _without_conflicts(self, batch: Batch) -> Batch:
        """Fail rows that share the identity of another row of this flush but differ from it."""
        table, identities = batch.table, batch.identities.under(self.steps)
        # A replayed row equals the first one, and is dropped. One that differs is another row, made of the same record
        # by a bolt that handed the origin on unchanged; taking it for a replay would lose it without a word.
        bad = [
            again
            for first, again in identities.repeats()
            if repr(table.slice(first, 1).to_pylist()) != repr(table.slice(again, 1).to_pylist())
        ]
        if not bad:
            return batch
        guilty = {batch.ids[row] for row in bad}
        good = np.array([one not in guilty for one in batch.ids], dtype=bool)
        self._figures["rejected"] += len(bad)
        # A chunk has one id for all its rows: it fails once. Storm ends a worker that answers twice for one tuple.
        for one, row in {batch.ids[row]: row for row in reversed(bad)}.items():
            error = RecordError(
                f"{identities.place(row)}: {self.component_name}: two different rows have the same identity",
                cure="give each its own, with origin.child(component, index), in the bolt that makes them",
            )
            self.fail_because(one, error)
        return batch.only(good)

    def report(self) -> Mapping[str, float]:
        """Return what was written, and what is held."""
        held_s = 0.0 if self._oldest is None else self.clock.monotonic() - self._oldest
        held = len(self._buffer) + len(self._waiting) + sum(len(part.ids) for part in self._unwritten)
        return {**self._figures, "held": held, "held_s": held_s, "away_s": self._patience.lasted_s}


def _size(tup: Any) -> int:
    """Return roughly the bytes of a tuple."""
    return sum(len(value) for value in tup[4] if value.__class__ is str or value.__class__ is bytes)


def _place(origin: Any) -> str:
    """Name a row's record, for the beginning of a message; empty if unknown."""
    try:
        at = Origin.of(origin)
    except ValueError:
        return ""
    return f"{coordinates(at.topic, at.partition, at.offset)}: "


def too_old(conf: Mapping[str, Any], age_s: float, scope: str = "parquet") -> tuple[str, str] | None:
    """Return an error and a cure if tuples may time out while the sink holds them, else None.

    >>> too_old({}, 8.0)
    >>> too_old({"topology.message.timeout.secs": 3}, 8.0)[1]
    'parquet.flush_age_s of at most 1'
    """
    timeout_s = float(conf.get("topology.message.timeout.secs") or 30)
    if conf.get("topology.enable.message.timeouts") is False or age_s <= timeout_s / 3:
        return None
    what = f"{scope}.flush_age_s = {age_s:g} is more than a third of the message timeout of {timeout_s:g} s"
    return f"{what}: rows would time out while they wait", f"{scope}.flush_age_s of at most {timeout_s / 3:g}"


def find_fields(
    context: Mapping[str, Any], columns: Columns, component: str
) -> dict[tuple[str, str], tuple[Picker, bool]]:
    """Return for each input how to pick the columns (and the origin, last) and whether it has an origin."""
    inputs: dict[tuple[str, str], tuple[Picker, bool]] = {}
    for (source, stream), fields in input_fields(context).items():
        if missing := [name for name in columns.names if name not in fields]:
            raise TopologyError(
                f"{component}: its input {source}:{stream} has no field {', '.join(missing)}",
                cure=f"a schema with columns out of: {', '.join(fields)}",
            )
        has_origin = ORIGIN in fields
        wanted = [*columns.names, ORIGIN] if has_origin else list(columns.names)
        inputs[source, stream] = picker(list(fields), wanted), has_origin
    return inputs
