"""The identities of the rows of one flush: stream (topic, topic id, partition, path), offset, and the sink's input.

Each row is one number for its stream and one for its offset, so asking the log about 100,000 rows takes a few array
operations per stream. A row without an origin has no stream and is always written.

**Inputs.** A spout may feed two bolts that feed one sink. Both pass the record's origin on unchanged, so the sink
receives two rows with one origin, and both count. The input (component and stream) tells them apart: each input of a
sink has a tag, which the sink appends to the paths of its rows::

    ''  via parse         → '@parse'
    'split.2'  via split  → 'split.2/@split'
    ''  via route:late    → '@route:late'

A sink's only input has the empty tag, and its rows keep their paths.

**The tag of an input never changes**, or its replayed rows would look new. So tags belong to the directory: each entry
of the commit log records the tags it was written under, and a sink uses those. A new input gets its tag by the rules of
:func:`resolve`. :meth:`Identities.under` adds the tags as late as possible, because another writer may append the
directory's first entry meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.errors import ConfigError, SinkError, coordinates
from downspout.ledger.origin import Origin
from downspout.origins import as_dictionary, each, part_of
from downspout.sink.log_entry import OFFSET_MAX, Coverage, Offsets, Stream
from downspout.sink.schema import ORIGIN_SCHEMA

MARK = "@"
SETTING = "parquet.input_names"


def name_of(component: str, stream: str = "default") -> str:
    """Return the name of an input. Names are unique: ambiguous characters are escaped as in a URL.

    >>> name_of("parse"), name_of("route", "late"), name_of("a:b")
    ('parse', 'route:late', 'a%3Ab')
    """
    name = quote(component, safe="")
    return name if stream == "default" else f"{name}:{quote(stream, safe='')}"


def with_step(path: str, step: str) -> str:
    """Return the path of a row that came with ``path`` through the input with this tag.

    >>> with_step("split.2", "split"), with_step("", "parse"), with_step("split.2", "")
    ('split.2/@split', '@parse', 'split.2')
    """
    if not step:
        return path
    return f"{path}/{MARK}{step}" if path else f"{MARK}{step}"


def ends_in_step(path: str) -> bool:
    """Return whether a path ends like those that a sink makes. No one else may: two rows could get one path.

    >>> ends_in_step("split.2"), ends_in_step("split.2/@split")
    (False, True)
    """
    return path.rpartition("/")[2].startswith(MARK)


class KnownInputs:
    """The inputs that a directory knows, and their tags.

    >>> known = KnownInputs()
    >>> known.take({"parse": ""})
    >>> known.take({"enrich": ""})      # parse has another name now, and what is named parse from here on is another
    >>> known.steps, known.last
    ({'enrich': ''}, ('enrich',))
    """

    def __init__(self) -> None:
        self.steps: dict[str, str] = {}  # input → step
        self.last: tuple[str, ...] = ()  # the inputs of the sink that wrote last

    def take(self, steps: Mapping[str, str]) -> None:
        """Add the tags of the next entry; a tag belongs to the inputs that had it last."""
        if not steps:
            return
        taken = set(steps.values())
        self.steps = {name: step for name, step in self.steps.items() if step not in taken} | dict(steps)
        self.last = tuple(steps)


def check_names(declared: Sequence[str], present: Sequence[str], setting: str = SETTING) -> dict[str, str]:
    """Parse the setting ``input_names``: input → tag.

    >>> check_names(["enrich=parse", "late="], ["enrich", "late"])
    {'enrich': 'parse', 'late': ''}
    """
    given: dict[str, str] = {}
    for entry in declared:
        name, equals, step = (part.strip() for part in entry.partition("="))
        if not equals or "/" in step:
            raise ConfigError(f"{setting}: {entry!r} is not input=name", cure='"enrich=parse"')
        if name not in present:
            raise ConfigError(
                f"{setting}: {name!r} is not an input of this sink with the field `origin`",
                cure=f"one of {', '.join(present)}" if present else "remove it: it has no such input",
            )
        if name in given:
            raise ConfigError(f"{setting} names {name!r} twice", cure="one name for each input")
        given[name] = step
    return given


def resolve(
    directory: str | PathLike[str],  # for errors
    present: Sequence[str],  # the names of the inputs that carry origins
    given: Mapping[str, str],  # what ``parquet.input_names`` says
    known: KnownInputs,  # what the directory says
    *,
    has_rows: bool,  # whether there are rows with origins in the directory
    setting: str = SETTING,  # which setting says ``given``, for errors
) -> dict[str, str]:
    """Return the tag of each input.

    ====================================================  ==========================================================
    an input that                                         has the tag
    ====================================================  ==========================================================
    the directory knows                                   that it always had
    ``parquet.input_names`` names                         that says
    is the only one, where there was at most one before   of the one before; the empty one in a new directory
    came in addition                                      that is its own name
    took the place of another                             none: it is an error, for nobody but the user knows
    ====================================================  ==========================================================

    Raises:
        SinkError: it is unknown which rows of the directory came from which input.
    """
    steps: dict[str, str] = {}
    for name in present:
        if name in given:
            steps[name] = _given(directory, name, given[name], known, has_rows=has_rows, setting=setting)
        elif name in known.steps:
            steps[name] = known.steps[name]
    new = [name for name in present if name not in steps]
    if new and len(present) == 1 and len(known.last) <= 1:
        steps[new[0]] = known.steps[known.last[0]] if known.last else ""
    elif new:
        _check_new(directory, new, steps, known)
        steps.update({name: name for name in new})
    steps = {name: steps[name] for name in present}
    _check_shared(directory, steps, given)
    return steps


def _given(
    directory: str | PathLike[str], name: str, step: str, known: KnownInputs, *, has_rows: bool, setting: str
) -> str:
    """Return what the setting says, if it can be so."""
    if known.steps.get(name, step) != step:
        raise SinkError(
            f"{directory}: {setting} calls {name} {step!r}, but its rows there are named {known.steps[name]!r}",
            cure=f"remove it, or {name}={known.steps[name]}: an input keeps its name for ever",
        )
    possible = {name, *known.steps.values()}
    if has_rows and step not in possible:
        raise SinkError(
            f"{directory}: {setting} calls {name} {step!r}, but no rows there have that name",
            cure=" or ".join(f"{name}={one}" for one in sorted(possible)),
        )
    return step


def _check_new(
    directory: str | PathLike[str], new: Sequence[str], steps: Mapping[str, str], known: KnownInputs
) -> None:
    """Raise if new inputs may be old ones under another name."""
    taken = set(steps.values())
    gone = [name for name in known.last if name not in steps and known.steps.get(name, name) not in taken]
    if gone:
        old = known.steps.get(gone[0], gone[0])
        raise SinkError(
            f"{directory}: this sink reads {', '.join(new)} and no longer {', '.join(gone)}, whose rows it holds: "
            "another name for the same rows, or other rows?",
            cure=f'input_names={{"{new[0]}": "{old}"}} for the same, {{"{new[0]}": "{new[0]}"}} for others',
        )


def _check_shared(directory: str | PathLike[str], steps: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise if two inputs have one tag, unless the user set it for both."""
    by_step: dict[str, list[str]] = {}
    for name, step in steps.items():
        by_step.setdefault(step, []).append(name)
    for step, names in by_step.items():
        if len(names) > 1 and not all(name in given for name in names):
            both = ", ".join(f'"{name}": "{step}"' for name in names)
            raise SinkError(
                f"{directory}: {' and '.join(names)} would both be {step!r}: their rows with the same origin would "
                "count as one row",
                cure=f"another name for one of the components; or, if they are one row, input_names={{{both}}}",
            )


Mask = NDArray[np.bool_]
NO_STREAM = -1
PARTITION_MAX = 2**31 - 1


class Identities:
    """The identities of the rows of a flush, in their order.

    >>> rows = Identities.of([("orders", "", 0, 5, ""), ("orders", "", 0, 6, ""), ("orders", "", 0, 5, "")])
    >>> rows.not_in(Coverage()).tolist()   # the third is the first again
    [True, True, False]
    """

    def __init__(
        self, streams: Sequence[Stream], numbers: Offsets, offsets: Offsets, inputs: Sequence[str] | None = None
    ) -> None:
        self._streams = streams  # all that occur
        self._numbers = numbers  # of each row the index of its stream
        self._offsets = offsets  # of each row
        # of each stream the input that it came through; not given: these are the paths in the directory
        self._inputs = inputs
        self._last: tuple[Mapping[str, str], Identities] | None = None

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        # By stream, then offset; sorting is stable, so of a row that came twice the first one stays the first.
        return np.lexsort((self._offsets, self._numbers))

    def latest(self, times: Any, known: Mask) -> dict[tuple[str, int], int]:
        """Return the greatest of some rows' times, by topic and partition; of rows without an origin by ("", 0).

        Args:
            times: of all rows, whole numbers.
            known: which of them count.

        >>> rows = Identities.of([("orders", "", 0, 5, ""), ("orders", "", 1, 6, ""), ("orders", "", 0, 7, "a.0")])
        >>> rows.latest(np.array([3, 2, 9]), np.array([True, True, False]))
        {('orders', 0): 3, ('orders', 1): 2}
        """
        greatest = np.full(len(self._streams) + 1, np.iinfo(np.int64).min)
        np.maximum.at(greatest, self._numbers[known], times[known])  # the last one is NO_STREAM's
        places = [*((stream.topic, stream.partition) for stream in self._streams), ("", 0)]
        found: dict[tuple[str, int], int] = {}
        for number in np.unique(self._numbers[known]).tolist():
            place, time = places[number], int(greatest[number])
            found[place] = max(time, found.get(place, time))
        return found

    def under(self, steps: Mapping[str, str]) -> Identities:
        """Return the identities with the tag of each row's input appended to its path.

        >>> builder = IdentityBuilder()
        >>> for name in ("parse", "check"):
        ...     numbers, offsets, _ = builder.encode([("orders", "", 0, 5, "")], name)
        ...     builder.add(numbers, offsets)
        >>> [str(path) for path in builder.build().under({"parse": "", "check": "check"}).columns()[-1]]
        ['', '@check']
        """
        if self._inputs is None:
            return self
        if self._last is None or self._last[0] != steps:
            self._last = dict(steps), self._make_under(steps, self._inputs)
        return self._last[1]

    def _make_under(self, steps: Mapping[str, str], inputs: Sequence[str]) -> Identities:
        named = [
            stream._replace(path=with_step(stream.path, steps.get(name, "")))
            for stream, name in zip(self._streams, inputs, strict=True)
        ]
        places = {stream: place for place, stream in enumerate(dict.fromkeys(named))}
        if len(places) == len(named):
            return Identities(named, self._numbers, self._offsets)
        # Inputs that share a step: their streams become one. The last item is for rows of no stream, number -1.
        numbers = np.array([*(places[stream] for stream in named), NO_STREAM], dtype=np.int64)[self._numbers]
        return Identities(list(places), numbers, self._offsets)

    @classmethod
    def of(cls, origins: Sequence[Sequence[Any]]) -> Identities:
        """Return the identities of a list of origins."""
        builder = IdentityBuilder()
        numbers, offsets, bad = builder.encode(origins)
        for reason in bad.values():
            raise ValueError(reason)
        builder.add(numbers, offsets)
        return builder.build()

    @classmethod
    def none(cls, count: int) -> Identities:
        """Return the identities of rows that have none."""
        return cls([], np.full(count, NO_STREAM, dtype=np.int64), np.zeros(count, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._numbers)

    def _by_stream(self) -> Iterator[tuple[Stream, NDArray[np.int64], Offsets]]:
        """Yield each stream with its rows and their offsets, both in the order of offsets."""
        numbers = self._numbers[self._order]
        bounds = np.searchsorted(numbers, np.arange(len(self._streams) + 1))
        for stream, start, end in zip(self._streams, bounds[:-1], bounds[1:], strict=True):
            rows = self._order[start:end]
            yield stream, rows, self._offsets[rows]

    def not_in(self, coverage: Coverage) -> Mask:
        """Return which rows to write: those that are neither covered nor repeated."""
        wanted = np.ones(len(self), dtype=bool)
        for stream, rows, offsets in self._by_stream():
            unwanted = coverage.contains(stream, offsets)
            unwanted[1:] |= offsets[1:] == offsets[:-1]
            wanted[rows[unwanted]] = False
        return wanted

    def repeats(self) -> list[tuple[int, int]]:
        """Return the rows whose identity another row has already, as (that row, this row).

        >>> Identities.of([("t", "", 0, 5, ""), ("t", "", 0, 6, ""), ("t", "", 0, 5, "")]).repeats()
        [(0, 2)]
        """
        found: list[tuple[int, int]] = []
        for _, rows, offsets in self._by_stream():
            again = np.flatnonzero(offsets[1:] == offsets[:-1]) + 1
            found += zip(rows[again - 1].tolist(), rows[again].tolist(), strict=True)
        return found

    def place(self, row: int) -> str:
        """Return the Kafka coordinates of a row's record."""
        stream = self._streams[int(self._numbers[row])]
        return coordinates(stream.topic, stream.partition, int(self._offsets[row]))

    def only(self, mask: Mask) -> Identities:
        """Return the identities of the rows that a mask leaves."""
        return Identities(self._streams, self._numbers[mask], self._offsets[mask], self._inputs)

    def coverage(self, mask: Mask) -> Coverage:
        """Return the rows that a mask leaves as a set."""
        covered = Coverage()
        for stream, rows, offsets in self._by_stream():
            covered.add(stream, offsets[mask[rows]])
        return covered

    def origins(self) -> list[Origin | None]:
        """Return the origins of all rows, as they came."""
        values = zip(*(column.to_pylist() for column in self.columns()), strict=True)
        return [None if value[0] is None else Origin(*value) for value in values]

    def columns(self) -> list[Any]:
        """Return the origin columns of all rows, in the order of ``ORIGIN_SCHEMA``; null where there is no origin."""
        known = self._numbers != NO_STREAM
        numbers: Any = pa.array(self._numbers, pa.int32(), mask=~known)
        arrays: list[Any] = []
        for name, kind in zip(ORIGIN_SCHEMA.names, ORIGIN_SCHEMA.types, strict=True):
            if name == "_offset":
                arrays.append(pa.array(self._offsets, kind, mask=~known))
                continue
            each: Any = pa.array([getattr(stream, name[1:]) for stream in self._streams], kind)
            arrays.append(each.take(numbers))
        return arrays


class IdentityBuilder:
    """Collects the origins of a flush as they arrive."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[Any, ...], int]] = {}
        """input → topic, topic id, partition and path → number of the stream"""
        self._streams: list[Stream] = []
        self._inputs: list[str] = []
        self._numbers: list[Offsets] = []
        self._offsets: list[Offsets] = []

    def encode(self, origins: Sequence[Any], source: str = "") -> tuple[Offsets, Offsets, dict[int, str]]:
        """Return each row's stream number and offset, and the rows whose origin is none, with the reason."""
        # The good case is a few passes in C over whole columns; only where something is wrong is each row looked at.
        try:
            topics, topic_ids, partitions, offsets, paths = zip(*origins, strict=True)
            known = self._known.setdefault(source, {})
            try:
                numbers = _look_up(known, topics, topic_ids, partitions, paths)
            except KeyError:  # a stream that was not seen before: seldom
                for key in dict.fromkeys(zip(topics, topic_ids, partitions, paths, strict=True)):
                    self._register(key, source)
                numbers = _look_up(known, topics, topic_ids, partitions, paths)
            found: Any = pa.array(offsets)
            if not pa.types.is_integer(found.type):
                raise TypeError("offsets are whole numbers")
            ready = found.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
            if len(ready) and not 0 <= int(ready.min()) <= int(ready.max()) < OFFSET_MAX:
                raise ValueError("an offset out of range")
            return numbers, ready, {}
        except (TypeError, ValueError, OverflowError):
            return self._one_by_one(origins, source)

    def encode_column(self, column: Any, source: str = "") -> tuple[Offsets, Offsets, dict[int, str]]:
        """Return what :meth:`encode` returns, for a column of a chunk (``downspout.origins``). Array operations only,
        where nothing is wrong.
        """
        offsets = part_of(column, "offset")
        parts = [as_dictionary(part_of(column, name)) for name in ("topic", "topic_id", "partition", "path")]
        whole = pa.types.is_integer(offsets.type) and not column.null_count
        if not len(column) or not whole or any(array.null_count for array in (offsets, *parts)):
            return self.encode(list(each(column)), source) if len(column) else _NO_ROWS
        ready = offsets.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        if not 0 <= int(ready.min()) <= int(ready.max()) < OFFSET_MAX:
            return self._one_by_one(list(each(column)), source)
        codes = np.zeros(len(ready), dtype=np.int64)
        for part in parts:
            if len(part.dictionary) > 1:
                codes = codes * len(part.dictionary) + part.indices.to_numpy(zero_copy_only=False)
        first, numbers = _first_of_each(codes)
        try:
            keys = [tuple(part[row].as_py() for part in parts) for row in first.tolist()]
            known = np.array([self._register(key, source) for key in keys], dtype=np.int64)
        except (TypeError, ValueError):
            return self._one_by_one(list(each(column)), source)
        return known[numbers], ready, {}

    def _one_by_one(self, origins: Sequence[Any], source: str) -> tuple[Offsets, Offsets, dict[int, str]]:
        numbers = np.full(len(origins), NO_STREAM, dtype=np.int64)
        offsets = np.zeros(len(origins), dtype=np.int64)
        bad: dict[int, str] = {}
        for row, value in enumerate(origins):
            try:
                origin = Origin.of(value)
                if type(origin.offset) is not int or not 0 <= origin.offset < OFFSET_MAX:
                    raise ValueError(f"{origin.offset!r} is not an offset")
                key = (origin.topic, origin.topic_id, origin.partition, origin.path)
                numbers[row] = self._register(key, source)
                offsets[row] = origin.offset
            except (TypeError, ValueError, OverflowError) as error:
                numbers[row] = NO_STREAM
                bad[row] = str(error)
        return numbers, offsets, bad

    def _register(self, key: tuple[Any, ...], source: str) -> int:
        """Return a stream's number; a new one is looked at once, so that it can be written to log and files."""
        known = self._known.setdefault(source, {})
        if (number := known.get(key)) is not None:
            return number
        topic, topic_id, partition, path = key
        if not all(isinstance(text, str) for text in (topic, topic_id, path)):
            raise TypeError(f"topic, topic id and path of an origin are texts, not {topic!r}, {topic_id!r}, {path!r}")
        if type(partition) is not int or not 0 <= partition <= PARTITION_MAX:
            raise ValueError(f"{partition!r} is not a partition")
        for text in (topic, topic_id, path):
            text.encode()  # a lone surrogate would stop every flush
        if ends_in_step(path):
            raise ValueError(f"the path {path!r} of an origin ends as only a sink may end it, in a step with @")
        known[key] = len(self._streams)
        self._streams.append(Stream(*key))
        self._inputs.append(source)
        return known[key]

    def add(self, numbers: Offsets, offsets: Offsets) -> None:
        """Add rows that :meth:`encode` returned."""
        self._numbers.append(numbers)
        self._offsets.append(offsets)

    def add_none(self, count: int) -> None:
        """Add rows without origin."""
        self.add(np.full(count, NO_STREAM, dtype=np.int64), np.zeros(count, dtype=np.int64))

    def build(self) -> Identities:
        """Return the identities of all rows added."""
        empty: Offsets = np.empty(0, dtype=np.int64)
        numbers, offsets = np.concatenate([empty, *self._numbers]), np.concatenate([empty, *self._offsets])
        return Identities(list(self._streams), numbers, offsets, list(self._inputs))


_NO_ROWS = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), dict[int, str]())


def _first_of_each(codes: Offsets) -> tuple[Offsets, Offsets]:
    """Return the first row of each code, and of each row the number of its code. O(n) where all are the same."""
    if codes[0] == codes[-1] and not np.any(codes != codes[0]):
        return np.zeros(1, dtype=np.int64), np.zeros(len(codes), dtype=np.int64)
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    return first, numbers


def _look_up(known: Mapping[tuple[Any, ...], int], *columns: Sequence[Any]) -> Offsets:
    return np.fromiter(map(known.__getitem__, zip(*columns, strict=True)), np.int64, len(columns[0]))
