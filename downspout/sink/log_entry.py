"""One entry of a commit log: its file format, the set of rows in it, and the validation when it is read.

==============  ====================================================================================================
kind            says
==============  ====================================================================================================
``flush``       these files came into sight, and these rows are in them
``compact``     these files took the place of those, with the same rows
``fence``       nothing that these writers have staged will ever come into sight; it may be swept
``rebuild``      no row is in the directory any more, and none of its files counts
==============  ====================================================================================================
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from downspout.offset_ranges import runs_of

# --- which rows are in the files: sets of (topic, topic id, partition, path, offset) ---
#
# A set of rows is kept as sorted disjoint offset ranges, one pair of numpy arrays for each *stream*: topic, topic id,
# partition and path. Holes are normal: behind a fields grouping a task sees about every other record, and a bolt that
# splits makes a stream for each position. Hundreds of thousands of ranges are cheap, because membership, union and
# coding work on whole arrays.

Offsets = NDArray[np.int64]
_EMPTY: Offsets = np.empty(0, dtype=np.int64)
OFFSET_MAX = 2**63 - 1


class Stream(NamedTuple):
    """All rows that differ in nothing but their offset."""

    topic: str
    topic_id: str
    partition: int
    path: str


class Coverage:
    """A set of rows. ``r`` below is the number of ranges of a stream, ``n`` the number of offsets given.

    >>> covered, stream = Coverage(), Stream("orders", "", 0, "")
    >>> covered.add(stream, [3, 1, 2, 7])
    >>> covered.ranges(stream)
    [(1, 4), (7, 8)]
    >>> covered.contains(stream, [2, 4]).tolist()
    [True, False]
    >>> Coverage.from_json(covered.to_json()) == covered
    True
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: dict[Stream, tuple[Offsets, Offsets]] = {}
        """stream → (starts, ends), half-open, sorted, never touching"""

    def add(self, stream: Stream, offsets: Iterable[int] | Offsets) -> None:
        """Add offsets, in any order, repeated or not. O((n + r) · log n); O(n) for offsets that rise, as mostly.

        Raises:
            ValueError: one is not an offset of Kafka's. With it, the set could not be read back.
        """
        sorted_offsets = _as_array(offsets)
        if (sorted_offsets[1:] <= sorted_offsets[:-1]).any():
            sorted_offsets = np.unique(sorted_offsets)
        if not len(sorted_offsets):
            return
        _check_bounds(int(sorted_offsets[0]), int(sorted_offsets[-1]) + 1)
        self._merge(stream, *runs_of(sorted_offsets))

    def add_range(self, stream: Stream, start: int, end: int) -> None:
        """Add ``[start, end)``."""
        if start < end:
            _check_bounds(start, end)
            self._merge(stream, np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))

    def update(self, other: Coverage) -> None:
        """Add all rows of ``other``."""
        for stream, (starts, ends) in other._ranges.items():
            self._merge(stream, starts, ends)

    def contains(self, stream: Stream, offsets: Iterable[int] | Offsets) -> NDArray[np.bool_]:
        """Return for each offset whether it is in the set. O(n · log r)."""
        wanted = _as_array(offsets)
        if (known := self._ranges.get(stream)) is None:
            return np.zeros(len(wanted), dtype=bool)
        starts, ends = known
        at = np.searchsorted(starts, wanted, side="right") - 1
        return (at >= 0) & (wanted < ends[np.maximum(at, 0)])

    def intersects(self, other: Coverage) -> bool:
        """Return whether some row is in both."""
        return any(self._overlaps(stream, *ranges) for stream, ranges in other._ranges.items())

    def _overlaps(self, stream: Stream, starts: Offsets, ends: Offsets) -> bool:
        if (known := self._ranges.get(stream)) is None:
            return False
        # A range of the other overlaps one of ours iff the last of ours that starts before its end ends after its
        # start.
        at = np.searchsorted(known[0], ends, side="left") - 1
        return bool(np.any((at >= 0) & (known[1][np.maximum(at, 0)] > starts)))

    def _merge(self, stream: Stream, starts: Offsets, ends: Offsets) -> None:
        if (known := self._ranges.get(stream)) is None:
            self._ranges[stream] = (starts, ends)
            return
        if starts[0] > known[1][-1]:  # the usual case: further on than all we know
            self._ranges[stream] = (np.concatenate((known[0], starts)), np.concatenate((known[1], ends)))
            return
        starts, ends = np.concatenate((known[0], starts)), np.concatenate((known[1], ends))
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate(([True], starts[1:] > reach[:-1]))
        last = np.concatenate((first[1:], [True]))
        self._ranges[stream] = (starts[first], reach[last])

    def streams(self) -> Iterator[Stream]:
        """Yield the streams, sorted."""
        return iter(sorted(self._ranges))

    def ranges(self, stream: Stream) -> list[tuple[int, int]]:
        """Return the ranges of a stream."""
        starts, ends = self._ranges.get(stream, (_EMPTY, _EMPTY))
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    @property
    def total(self) -> int:
        """How many rows are in the set."""
        return sum(int((ends - starts).sum()) for starts, ends in self._ranges.values())

    def __len__(self) -> int:
        """Return the number of ranges; :attr:`total` is the number of rows."""
        return sum(len(starts) for starts, _ in self._ranges.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Coverage):
            return NotImplemented
        return self._ranges.keys() == other._ranges.keys() and all(
            np.array_equal(starts, other._ranges[stream][0]) and np.array_equal(ends, other._ranges[stream][1])
            for stream, (starts, ends) in self._ranges.items()
        )

    __hash__ = None  # type: ignore[assignment]   # it changes

    def __repr__(self) -> str:
        return f"Coverage({ {stream: self.ranges(stream) for stream in self.streams()} })"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the set as JSON values; ranges as gap, length, gap, length…, each gap counted from the end before."""
        return [{**stream._asdict(), "ranges": _deltas(*self._ranges[stream])} for stream in self.streams()]

    @classmethod
    def from_json(cls, document: Any) -> Coverage:
        """Return the set that ``document`` describes. It is untrusted: malformed data raises."""
        coverage = cls()
        if not isinstance(document, list):
            raise ValueError("coverage is not a list")
        for part in document:
            stream = _stream(part)
            if stream in coverage._ranges:
                raise ValueError(f"{stream} stands twice")
            coverage._ranges[stream] = _from_deltas(part["ranges"])
        return coverage


def _check_bounds(start: int, end: int) -> None:
    if start < 0 or end > OFFSET_MAX:
        raise ValueError(f"offsets {start} to {end - 1} are not between 0 and {OFFSET_MAX - 1}")


def _as_array(offsets: Iterable[int] | Offsets) -> Offsets:
    if isinstance(offsets, np.ndarray):
        return offsets.astype(np.int64, copy=False)
    return np.fromiter(offsets, dtype=np.int64)


def _deltas(starts: Offsets, ends: Offsets) -> list[int]:
    flat = np.empty(2 * len(starts), dtype=np.int64)
    flat[0::2] = starts - np.concatenate(([0], ends[:-1]))
    flat[1::2] = ends - starts
    found: list[int] = flat.tolist()
    return found


def _stream(part: Any) -> Stream:
    if not isinstance(part, Mapping) or set(part) != {*Stream._fields, "ranges"}:
        raise ValueError(f"{str(part)[:200]} is not a stream")
    topic, topic_id, partition, path = (part[name] for name in Stream._fields)
    texts = isinstance(topic, str) and isinstance(topic_id, str) and isinstance(path, str)
    if not texts or type(partition) is not int or not 0 <= partition < 2**31:
        raise ValueError(f"{str(part)[:200]} is not a stream")
    return Stream(topic, topic_id, partition, path)


def _from_deltas(values: Any) -> tuple[Offsets, Offsets]:
    if not isinstance(values, list) or len(values) % 2 or set(map(type, values)) != {int}:
        raise ValueError("ranges are not a list of whole numbers in pairs")
    if sum(values) > OFFSET_MAX or min(values) < 0:
        raise ValueError("ranges go beyond what an offset can be")
    deltas = np.array(values, dtype=np.int64)  # gap, length, gap, length…
    edges = np.cumsum(deltas)
    if (deltas[1:] < 1).any():
        raise ValueError("ranges are empty or touch")
    return edges[0::2], edges[1::2]


# --- entries ---

FLUSH, COMPACT, FENCE, REBUILD = "flush", "compact", "fence", "rebuild"

FORMAT = 1  # A version that knows more of it must not be taken for damage: it is refused by its number


@dataclass(frozen=True)
class DataFile:
    """One data file."""

    path: str  # below the directory, with ``/``
    rows: int  # how many it holds
    bytes: int
    hash: str = ""  # of its content (see ``storage.py``)

    def to_json(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.path, self.rows, self.bytes, self.hash]

    @classmethod
    def from_json(cls, value: Any) -> DataFile:
        """Return what :meth:`to_json` made."""
        if not isinstance(value, list) or len(value) != 4:
            raise ValueError(f"{str(value)[:200]!r} is not a file")
        return cls(path_below(value[0]), whole(value[1]), whole(value[2]), text(value[3]))


def files_in(document: Mapping[str, Any]) -> tuple[DataFile, ...]:
    """Return the files of a document."""
    return tuple(map(DataFile.from_json, listed(document["files"])))


Partition = tuple[str, int]
"""Topic and number; of rows without an origin an empty topic, and 0."""


@dataclass(frozen=True)
class EventTimes:
    """An entry's data about the times of its rows, if a window is among their keys; see ``aggregation.py``."""

    writer: str  # whose rows they are
    latest: Mapping[Partition, int]  # by partition the greatest time, µs since the epoch
    idle_ms: int  # for how long these count
    watermark: int | None  # after this entry, µs since the epoch: windows that end by then are final

    def to_json(self) -> list[Any]:
        """Return it as JSON values."""
        times = [[*place, time] for place, time in sorted(self.latest.items())]
        return [self.writer, times, self.idle_ms, self.watermark]

    @classmethod
    def from_json(cls, value: Any) -> EventTimes:
        """Return what :meth:`to_json` made."""
        writer, times, idle_ms, watermark = listed(value)
        latest = {(text(topic), whole(number)): moment(time) for topic, number, time in map(listed, listed(times))}
        return cls(text(writer), latest, whole(idle_ms), None if watermark is None else moment(watermark))


@dataclass(frozen=True)
class Entry:
    """One entry."""

    number: int  # its place in the order, from 0
    writer: str  # the writer incarnation, unique for each time a task starts; or a Spark batch
    topology: str  # the topology's name: two topologies must not share a directory
    schema: tuple[str, ...]  # the writer's columns as ``name:type``; later ones may have more, or wider types
    created_ms: int  # wall clock, ms since the epoch; for people only
    files: tuple[DataFile, ...] = ()  # what became visible with it
    coverage: Coverage = field(default_factory=Coverage)  # the rows that came with it
    # the sink's name in the topology: two sinks must not share a directory, for their rows may have the same
    # identities. All tasks of a sink have one name.
    component: str = ""
    # the step of each of the sink's inputs (see ``downspout/sink/identity.py``)
    inputs: Mapping[str, str] = field(default_factory=dict)
    kind: str = FLUSH  # see the top of the file
    removed: tuple[str, ...] = ()  # paths that ``files`` have replaced; only of ``compact``
    gone_before: int = 0  # what was removed by entries before that number is out of sight; only of ``compact``
    fenced: tuple[str, ...] = ()  # writers that may commit no more; only of ``fence``
    rebuild: int = 0  # the number of the rebuild; only of a rebuild
    times: EventTimes | None = None  # of the rows; only of a flush of a sink with a window

    @property
    def rows(self) -> int:
        """How many rows are in its files."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the entry as its file holds it: one JSON object, its checksum last."""
        return to_document(
            {
                "format": FORMAT,
                "kind": self.kind,
                "number": self.number,
                "writer": self.writer,
                "topology": self.topology,
                "component": self.component,
                "schema": list(self.schema),
                "inputs": dict(self.inputs),
                "created_ms": self.created_ms,
                "files": [file.to_json() for file in self.files],
                "coverage": self.coverage.to_json(),
                **({"event_times": self.times.to_json()} if self.times else {}),
                **{name: write(getattr(self, name)) for name, write, _ in _OF_KIND[self.kind]},
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Entry:
        """Return the entry that a file holds."""
        document = from_document(content, FORMAT)
        kind = document.get("kind")
        if not isinstance(kind, str) or kind not in _OF_KIND:
            raise ValueError(f"its kind is {str(kind)[:200]!r}; this version knows {', '.join(_OF_KIND)}")
        with in_form():
            return cls(
                whole(document["number"]),
                text(document["writer"]),
                text(document["topology"]),
                tuple(map(text, listed(document["schema"]))),
                whole(document["created_ms"]),
                files_in(document),
                Coverage.from_json(document["coverage"]),
                text(document["component"]),
                steps(document["inputs"]),
                kind,
                times=EventTimes.from_json(document["event_times"]) if "event_times" in document else None,
                **{name: read(document[name]) for name, _, read in _OF_KIND[kind]},
            )


# --- untrusted values ---------------------------------------------------------------------------------------


def whole(value: Any) -> int:
    """Return a count; anything else is a ValueError, and so is what no count can be."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:200]!r} is not a count")
    return value


def moment(value: Any) -> int:
    """Return a time since the epoch, or before it; anything else is a ValueError."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{str(value)[:200]!r} is not a time")
    return value


def text(value: Any) -> str:
    """Return a text; anything else is a ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:200]!r} is not text")
    return value


def listed(value: Any) -> list[Any]:
    """Return a list; anything else is a ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:200]!r} is not a list")
    return value


def steps(value: Any) -> dict[str, str]:
    """Return the steps of inputs; anything else is a ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:200]!r} are no inputs")
    return {name: text(step) for name, step in value.items()}


def path_below(value: Any) -> str:
    """Return the path of a data file. Recovery renames what an entry names, so it must stay below the directory."""
    path = text(value)
    parts = PurePosixPath(path).parts
    if not parts or parts[0] in ("/", "_downspout") or ".." in parts or "\0" in path:
        raise ValueError(f"{path[:200]!r} is not below the directory")
    try:
        path.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: no file system takes it
        raise ValueError(f"{path[:200]!r} is not a file name") from None
    return path


_OF_KIND: dict[str, list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    FLUSH: [],
    COMPACT: [
        ("removed", list, lambda value: tuple(map(path_below, listed(value)))),
        ("gone_before", int, whole),
    ],
    FENCE: [("fenced", list, lambda value: tuple(map(text, listed(value))))],
    REBUILD: [("rebuild", int, whole)],
}
"""What only entries of one kind have: its name, and how it is written and read."""


# --- JSON with a checksum -----------------------------------------------------------------------------------


def to_document(document: dict[str, Any]) -> bytes:
    """Return a JSON object as a file holds it, its checksum last."""
    document = {**document, "checksum": checksum_of(document)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def from_document(content: bytes, version: int | None = None) -> dict[str, Any]:
    """Return the JSON object that a file holds, without its checksum; ``version``: the format that it must have."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    checksum = document.pop("checksum", None)
    try:
        is_whole = checksum == checksum_of(document)
    except RecursionError as error:  # what was just deep enough to be read may be too deep to be written
        raise ValueError(f"not JSON ({error})") from None
    if not is_whole:
        raise ValueError("the checksum is not that of the content")
    if version is not None and (found := document.get("format")) != version:
        raise ValueError(f"its format is {str(found)[:200]!r}; this version reads {version}")
    return document


@contextmanager
def in_form() -> Iterator[None]:
    """Raise a ValueError for whatever is wrong with an untrusted document that is read meanwhile."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"out of form (no {error})") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"out of form ({error})") from None


def checksum_of(document: Any) -> str:
    """Return the CRC-32 of a JSON object, whatever the order of its keys."""
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return f"{zlib.crc32(content.encode('utf-8', 'surrogatepass')):08x}"
