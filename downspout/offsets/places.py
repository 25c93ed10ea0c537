"""Places to move a group to, and which offset each is in a given log: pure, without Kafka and without a clock.

The kinds and their results are those of ``kafka-consumer-groups --reset-offsets``:

* *earliest*, *latest*: the beginning of the log, and its end.
* *current*: where the group stands, even outside the log; the end where it has no commit.
* *offset*, *shift*: a number, and a number from where the group stands; what is outside the log becomes its nearer end.
* *time*: the first record with this timestamp or a later one; the end where there is none. A duration is the time that
  was so long ago.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from downspout.errors import ConfigError
from downspout.formatting import seconds_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?")
_CHOSEN = re.compile(r"([A-Za-z0-9._-]{1,249})(?::(\d{1,9}(?:,\d{1,9})*))?")


class Kind(Enum):
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

    kind: Kind
    value: int = 0
    # Of a place that was exported: what is done beyond it, and Kafka's id of the topic
    done: tuple[tuple[int, int], ...] | None = None
    topic_id: str = ""


def reckon(place: Place, *, begin: int, end: int, current: int | None, at_time: int | None) -> int | None:
    """Return which offset a place is; outside the log where it is. None: a shift, and the group has no commit.

    Args:
        at_time: the first offset at or after the place's time; None where there is none.

    >>> log = {"begin": 10, "end": 90, "current": 50, "at_time": None}
    >>> [reckon(Place(kind, 3), **log) for kind in Kind]
    [10, 90, 50, 3, 53, 90]
    """
    match place.kind:
        case Kind.EARLIEST:
            return begin
        case Kind.LATEST:
            return end
        case Kind.CURRENT:
            return end if current is None else current
        case Kind.OFFSET:
            return place.value
        case Kind.SHIFT:
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
        raise ConfigError(f"{text!r} is no duration", cure="90s, 15m, 2h, 7d, or by ISO 8601: PT1M, P1DT12H")
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
        raise ConfigError(f"{text!r} is no time", cure=cure) from None
    if found.tzinfo is None:
        raise ConfigError(f"{text!r} does not say in which zone", cure=cure)
    # Asked for -1 or -2, Kafka answers with the end of the log or its beginning.
    return max(0, (found - _EPOCH) // timedelta(milliseconds=1))


def chosen(texts: Iterable[str]) -> dict[str, frozenset[int]]:
    """Return which partitions of which topics are meant; none named: all of the topic.

    >>> {topic: sorted(numbers) for topic, numbers in chosen(["orders:0,2", "users"]).items()}
    {'orders': [0, 2], 'users': []}
    """
    found: dict[str, frozenset[int]] = {}
    for text in texts:
        match = _CHOSEN.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"--topic {text!r} names no topic or partitions", cure="orders, or orders:0,2")
        if match[1] in found:
            raise ConfigError(f"--topic names {match[1]} twice", cure="orders:0,2 names two of its partitions")
        found[match[1]] = frozenset(map(int, match[2].split(",") if match[2] else ()))
    return found
