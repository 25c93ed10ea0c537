"""Places to move a group to: their offsets in a given log, and their forms in options and files.

:func:`reckon` sends no requests. The kinds of places and their results are those of ``kafka-consumer-groups
--reset-offsets``:

* *earliest*, *latest*: the beginning of the log, and its end.
* *current*: where the group stands, even outside the log; the end where it has no commit.
* *offset*, *shift*: a number, and a number from where the group stands; what is outside the log becomes its nearer end.
* *time*: the first record with this timestamp or a later one; the end where there is none. A duration is the time that
  was so long ago.

Two kinds of files hold places. The CSV is what that tool writes with ``--export`` and reads with ``--from-file``:
``topic,partition,offset``, with the group in front where there are several. Our JSON also holds what is done beyond.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError, coordinates
from downspout.formatting import seconds_of
from downspout.kafka.port import TopicPartition

if TYPE_CHECKING:
    from downspout.offsets.group_offsets import Standing


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?")
_CHOSEN = re.compile(r"([A-Za-z0-9._-]{1,249})(?::(\d{1,9}(?:,\d{1,9})*))?")


class TargetKind(Enum):
    """The kinds of places."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a log; ``value`` is an offset, a distance, or milliseconds since the epoch."""

    kind: TargetKind
    value: int = 0
    # Of a place that was exported: what is done beyond it, and Kafka's id of the topic
    done: tuple[tuple[int, int], ...] | None = None
    topic_id: str = ""


def reckon(place: Place, *, begin: int, end: int, current: int | None, at_time: int | None) -> int | None:
    """Return the offset of a place, which may be outside the log; None for a shift without a commit.

    Args:
        at_time: the first offset at or after the place's time, or None.

    >>> log = {"begin": 10, "end": 90, "current": 50, "at_time": None}
    >>> [reckon(Place(kind, 3), **log) for kind in TargetKind]
    [10, 90, 50, 3, 53, 90]
    """
    match place.kind:
        case TargetKind.EARLIEST:
            return begin
        case TargetKind.LATEST:
            return end
        case TargetKind.CURRENT:
            return end if current is None else current
        case TargetKind.OFFSET:
            return place.value
        case TargetKind.SHIFT:
            return None if current is None else current + place.value
    return end if at_time is None else at_time


def milliseconds(text: str) -> int:
    """Return a duration in milliseconds, as people write it or by ISO 8601.

    >>> milliseconds("90s"), milliseconds("PT1M"), milliseconds("P1DT0.5S")
    (90000, 60000, 86400500)
    """
    if (seconds := seconds_of(text)) is not None:
        return round(seconds * 1000)
    found = _ISO.fullmatch(text.strip().upper())
    if found is None or not any(found.groups()):
        raise ConfigError(f"{text!r} is not a duration", cure="90s, 15m, 2h, 7d, or by ISO 8601: PT1M, P1DT12H")
    days, hours, minutes, seconds_text = (part or "0" for part in found.groups())
    whole = (int(days) * 24 + int(hours)) * 3600 + int(minutes) * 60
    return whole * 1000 + round(float(seconds_text) * 1000)


def moment(text: str) -> int:
    """Return a point in time in milliseconds since the epoch, where it is earlier 0; it names its zone.

    >>> moment("1970-01-01T01:00:01+01:00"), moment("1970-01-01T00:00:00.250Z")
    (1000, 250)
    """
    cure = "with a zone: 2026-11-24T10:00:00Z, or 2026-11-24T11:00:00.000+01:00"
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{text!r} is not a time", cure=cure) from None
    if found.tzinfo is None:
        raise ConfigError(f"{text!r} does not name its time zone", cure=cure)
    # Asked for -1 or -2, Kafka answers with the end of the log or its beginning.
    return max(0, (found - _EPOCH) // timedelta(milliseconds=1))


def chosen(texts: Iterable[str]) -> dict[str, frozenset[int]]:
    """Return the chosen partitions by topic; if none is named, all of the topic.

    >>> {topic: sorted(numbers) for topic, numbers in chosen(["orders:0,2", "users"]).items()}
    {'orders': [0, 2], 'users': []}
    """
    found: dict[str, frozenset[int]] = {}
    for text in texts:
        match = _CHOSEN.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"--topic {text!r} does not name a topic or partitions", cure="orders, or orders:0,2")
        if match[1] in found:
            raise ConfigError(f"--topic names {match[1]} twice", cure="orders:0,2 names two of its partitions")
        found[match[1]] = frozenset(map(int, match[2].split(",") if match[2] else ()))
    return found


FORMAT = "downspout-offsets-1"
OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,30}")
_IS_JSON = re.compile(r'\s*\{\s*(?:"|\}|\Z)')  # The name of a group may begin with a brace, too
Row = tuple[int, str, TopicPartition, Place]  # Its line, or the number of its entry; group, partition and place


def to_csv(groups: Mapping[str, Sequence[Standing]]) -> str:
    """Return groups' positions as Kafka's CSV, which cannot hold what is done beyond the commits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, found in groups.items():
        for standing in found:
            if standing.offset is not None:
                name = [group] if len(groups) > 1 else []
                writer.writerow([*name, standing.tp.topic, standing.tp.partition, standing.offset])
    return out.getvalue()


def to_json(groups: Mapping[str, Sequence[Standing]]) -> dict[str, Any]:
    """Return groups' positions as JSON values, with what is done beyond the commits."""
    return {
        "format": FORMAT,
        "offsets": [
            {"group": group, "topic": s.tp.topic, "topic_id": s.topic_id, "partition": s.tp.partition,
             "offset": s.offset, "done": [list(each) for each in s.metadata.done]}
            for group, found in groups.items() for s in found if s.offset is not None
        ],
    }  # fmt: skip


def read_places(path: Path, groups: Sequence[str]) -> dict[str, dict[TopicPartition, Place]]:
    """Return the places that a file has for these groups.

    Raises:
        ConfigError: the file cannot be read, a line of it is malformed, or it has nothing for one of the groups.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows likes to put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", cure="a file of `downspout offsets export`") from None
    rows = _json_rows(path, text) if _IS_JSON.match(text) else _csv_rows(path, text)
    found: dict[str, dict[TopicPartition, Place]] = {group: {} for group in groups}
    for number, named, tp, place in rows:
        if not named and len(groups) > 1:
            raise ConfigError(
                f"{path}:{number} does not name its group, but {', '.join(groups)} are given",
                cure="group,topic,partition,offset; or one group",
            )
        group = named or groups[0]
        if group not in found:
            continue
        if tp in found[group]:
            raise ConfigError(f"{path}:{number} names {coordinates(*tp)} again", cure="each partition once per group")
        found[group][tp] = place
    if absent := [group for group in groups if not found[group]]:
        raise ConfigError(f"{path} has no offsets for {', '.join(absent)}", cure="check the names of the groups")
    return found


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    width = 0
    for number, cells in _cells(path, text):
        if not cells:
            continue
        width = width or len(cells)
        if len(cells) != width or width not in (3, 4):
            raise _malformed(path, number, ",".join(cells))
        group, (topic, partition, offset) = cells[0] if width == 4 else "", [cell.strip() for cell in cells[-3:]]
        if not (topic and _NUMBER.fullmatch(partition) and _NUMBER.fullmatch(offset)):
            raise _malformed(path, number, ",".join(cells))
        yield _row(path, number, group, topic, int(partition), int(offset))


def _cells(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(io.StringIO(text))
    try:
        for cells in rows:
            yield rows.line_num, cells
    except csv.Error:  # a cell of more than 128 KiB
        raise _malformed(path, rows.line_num, "a very long line") from None


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        document = json.loads(text)
        entries = document["offsets"]
        if document["format"] != FORMAT or not isinstance(entries, list):
            raise ValueError(document["format"])
    except (ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{path} is not of the form {FORMAT}: {error}", cure="`offsets export --to json`") from None
    for number, entry in enumerate(entries, 1):
        try:
            names = [entry[key] for key in ("group", "topic", "topic_id")]
            numbers = [entry["partition"], entry["offset"], *(bound for pair in entry["done"] for bound in pair)]
            bounds = numbers[2:]
            sound = all(isinstance(name, str) for name in names) and all(type(value) is int for value in numbers)
            if not sound or len(bounds) % 2 or [entry["offset"], *bounds] != sorted({entry["offset"], *bounds}):
                raise ValueError(entry)
            done = tuple((start, end) for start, end in entry["done"])
        except (ValueError, KeyError, TypeError):
            raise _malformed(path, number, str(entry)) from None
        yield _row(path, number, names[0], names[1], numbers[0], numbers[1], done, names[2])


def _row(
    path: Path, number: int, group: str, topic: str, partition: int, offset: int,
    done: tuple[tuple[int, int], ...] | None = None, topic_id: str = "",
) -> Row:  # fmt: skip
    if not 0 <= partition < 2**31 or not 0 <= offset <= OFFSET_MAX:
        raise _malformed(path, number, coordinates(topic, partition, offset))
    return number, group, TopicPartition(topic, partition), Place(TargetKind.OFFSET, offset, done, topic_id)


def _malformed(path: Path, number: int, text: str) -> ConfigError:
    return ConfigError(
        f"{path}:{number}: {text[:200]!r} is not an offset of a partition",
        cure="topic,partition,offset, optionally with the group in front",
    )
