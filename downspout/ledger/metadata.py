"""What travels in the metadata of a commit: which records beyond the commit are done, and what failed how
often.

Storm's Java spout writes JSON with exactly the keys ``topologyId``, ``taskId`` and ``threadName``, and
refuses others. Ours has the same three, so one spout can take over from the other; what is ours is inside
``threadName``::

    downspout1 <base> <done> <failures> [<watch>] <checksum>        e.g.  downspout1 2s 1.3,2.1 0.2 r 9f1c04be

``base`` is the committed offset. ``done`` lists ranges as *gap.length*, each gap counted from the end
before; ``failures`` lists
*gap.attempts*, gaps counted from one behind the last. Numbers are in base 36, an empty list is ``-``.
``watch`` (see ``downspout.ledger.watch``) is missing after an orderly end, and in what was written before
there was one. ``r`` and ``r1`` say that somebody is at work, ``r<starts>.<lone until>.<until>`` and the same with
``.<alone>`` tell a watch, offsets counted from the base; with ``e`` it is one that was handed on in order.
The checksum covers all of it, topologyId, taskId and the topic's Kafka id too: the ranges of a topic that
was deleted and created again mean nothing for the new one, and neither do those of a commit that a tool has
moved.

There is one text for each content. What does not decode to a content whose text it is, is foreign, cut or
corrupt; then nothing is known about records beyond the commit, and they are processed again. That is never
an error.

The broker limits metadata (``offset.metadata.max.bytes``, 4,096). Where the ranges do not fit, the highest
ones are left out: records above that horizon may be processed again after a crash, those below it are not.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from downspout.ledger.watch import AT_WORK, Watch

__all__ = ["BYTES_MAX", "Progress", "author_for_another_topic", "decode", "encode"]

BYTES_MAX = 4096
"""The broker's default limit."""

FAILURES_MAX = 100
"""How many failed offsets are told, lowest first."""

TEXT_MAX = 16 * BYTES_MAX
"""What is longer is not ours, whatever limit the broker has: nothing of it is read."""

ENDED = Watch(ended=True)

_MARK = "downspout1"
_KEYS = {"topologyId", "taskId", "threadName"}
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Progress:
    """What a commit's metadata tells.

    Attributes:
        topology_id: who committed; empty where that is not known.
        task: its task id; -1 where that is not known.
        done: ranges beyond the commit that need no processing.
        failures: failed attempts of offsets beyond or at the commit.
        watch: whether the owner ended in order, and what is suspected.
    """

    topology_id: str = ""
    task: int = -1
    done: tuple[tuple[int, int], ...] = ()
    failures: Mapping[int, int] = field(default_factory=dict)
    watch: Watch = ENDED


NOTHING = Progress()


def encode(
    base: int,
    *,
    topology_id: str,
    task: int,
    topic_id: str = "",
    done: Iterable[tuple[int, int]] = (),
    failures: Iterable[tuple[int, int]] = (),
    watch: Watch = ENDED,
    bytes_max: int = BYTES_MAX,
) -> str:
    """Return the metadata for a commit at ``base``.

    Args:
        base: the offset that is committed.
        topology_id: this topology's id.
        task: this task's id.
        topic_id: the topic's Kafka id; goes into the checksum only.
        done: sorted disjoint ranges above ``base``; taken lazily, up to what fits.
        failures: sorted (offset, failed attempts), at or above ``base``.
        watch: as of a commit at ``base``.
        bytes_max: never longer than this; where not even the frame fits, the text is empty.

    >>> text = encode(100, topology_id="flights-1", task=4, done=[(101, 104)], failures=[(100, 2)])
    >>> text
    '{"topologyId":"flights-1","taskId":4,"threadName":"downspout1 2s 1.3 0.2 982da74d"}'
    >>> told = decode(100, text)
    >>> told.topology_id, told.task, told.done, told.failures, told.watch.ended
    ('flights-1', 4, ((101, 104),), {100: 2}, True)
    """
    watching = _watch_word(base, watch)
    room = bytes_max - len(_text(topology_id, task, topic_id, base, "", "", watching))
    if room < 0:
        return ""
    # Attempts first: they are few, and without them a poison record starts over. Never more than a quarter
    # of the room.
    tried, used = _fill(_gaps_of_failures(base, failures), max(1, room // 4))
    ranges, _ = _fill(_gaps_of_ranges(base, done), room - used)
    return _text(topology_id, task, topic_id, base, ranges, tried, watching)


def decode(base: int, metadata: str | None, *, topic_id: str = "") -> Progress:
    """Return what the metadata of a commit at ``base`` tells; :data:`NOTHING` where it is not ours, cut or
    corrupt.

    From another spout's metadata of the same form only the topology id and the task are taken. Never raises.

    >>> decode(7, "null") == decode(7, "") == NOTHING
    True
    >>> decode(7, '{"topologyId":"wc-1-1","taskId":3,"threadName":"Thread-14"}').topology_id
    'wc-1-1'
    """
    if len(metadata or "") > TEXT_MAX:
        return NOTHING
    try:
        document = json.loads(metadata or "null")
    except (ValueError, RecursionError):
        return NOTHING
    if not isinstance(document, dict) or set(document) != _KEYS:
        return NOTHING
    owner, task, thread = document["topologyId"], document["taskId"], document["threadName"]
    if not isinstance(owner, str) or type(task) is not int or not isinstance(thread, str):
        return NOTHING
    words = thread.split(" ")
    if words[0] != _MARK:
        # Not ours. A damaged mark of ours looks like this too, and then the owner may be damaged as well: so
        # only what cannot be ours counts as another's.
        return NOTHING if thread.startswith(_MARK) or len(words) in (5, 6) else Progress(owner, task)
    try:
        _, base_text, done_text, failures_text, *watching, _ = words
        done = tuple(_ranges(base, done_text))
        failures = dict(_failures(base, failures_text))
        watch = _watch(base, watching)
        lists = _empty(done_text), _empty(failures_text)
        faithful = _text(owner, task, topic_id, base, *lists, _watch_word(base, watch)) == metadata
    except (ValueError, OverflowError):
        return NOTHING
    if not faithful or base_text != _number(base):
        return NOTHING
    return Progress(owner, task, done, failures, watch)


def author_for_another_topic(base: int, metadata: str | None, *, topic_id: str) -> str | None:
    """Return who committed at ``base`` for an earlier topic of the same name; None where nothing says that.

    It says so where all but the checksum is as we write it for this offset, and no topic id is missing on either side.

    >>> text = encode(100, topology_id="flights-1", task=4, topic_id="old")
    >>> author_for_another_topic(100, text, topic_id="new")
    'flights-1'
    >>> author_for_another_topic(100, text, topic_id="old") is None
    True
    """
    if not topic_id or len(metadata or "") > TEXT_MAX:
        return None
    if any(decode(base, metadata, topic_id=known) != NOTHING for known in (topic_id, "")):
        return None
    try:
        document = json.loads(metadata or "null")
        owner, task, words = document["topologyId"], document["taskId"], document["threadName"].split(" ")
        mark, _, done, failures, *watching, checksum = words
        written = _text(
            owner, task, topic_id, base, _empty(done), _empty(failures), _watch_word(base, _watch(base, watching))
        )
        list(_ranges(base, done)), list(_failures(base, failures))  # raises where they are malformed
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    alike = written.rpartition(" ")[0] == (metadata or "").rpartition(" ")[0] and mark == _MARK
    return str(owner) if alike and len(checksum) == 8 else None


def _text(owner: str, task: int, topic_id: str, base: int, done: str, failures: str, watch: str) -> str:
    body = f"{_MARK} {_number(base)} {done or '-'} {failures or '-'}{watch and ' ' + watch}"
    checksum = zlib.crc32(f"{owner}\n{task}\n{topic_id}\n{body}".encode("utf-8", "surrogatepass"))
    thread = f"{body} {checksum:08x}"
    return json.dumps({"topologyId": owner, "taskId": task, "threadName": thread}, separators=(",", ":"))


def _fill(parts: Iterable[str], room: int) -> tuple[str, int]:
    """Join parts with commas as long as they fit into ``room`` characters; return the text and its length."""
    taken: list[str] = []
    used = 0
    for part in parts:
        if used + len(part) + 1 > room:
            break
        taken.append(part)
        used += len(part) + 1
    return ",".join(taken), max(1, used)


def _gaps_of_ranges(base: int, done: Iterable[tuple[int, int]]) -> Iterator[str]:
    end_before = base
    for start, end in done:
        yield f"{_number(start - end_before)}.{_number(end - start)}"
        end_before = end


def _gaps_of_failures(base: int, failures: Iterable[tuple[int, int]]) -> Iterator[str]:
    following = base
    for count, (offset, attempts) in enumerate(failures):
        if count == FAILURES_MAX:
            return
        yield f"{_number(offset - following)}.{_number(attempts)}"
        following = offset + 1


def _ranges(base: int, text: str) -> Iterator[tuple[int, int]]:
    end = base
    for gap, length in _pairs(text):
        start = end + gap
        end = start + length
        if length == 0 or gap == 0:  # an empty range, or one that touches the commit or the range before
            raise ValueError(text)
        yield start, end


def _failures(base: int, text: str) -> Iterator[tuple[int, int]]:
    following = base
    for gap, attempts in _pairs(text):
        offset = following + gap
        following = offset + 1
        yield offset, attempts


def _watch_word(base: int, watch: Watch) -> str:
    """Return how a watch is told; empty after an orderly end with nothing to hand on."""
    numbers = [watch.starts] if watch.starts else []
    if watch.until:
        numbers += [max(0, watch.lone_until - base), watch.until - base]
    if watch.alone is not None:
        numbers.append(watch.alone - base)
    if not numbers:
        return "" if watch.ended else "r"
    return ("e" if watch.ended else "r") + ".".join(map(_number, numbers))


def _watch(base: int, words: list[str]) -> Watch:
    if not words:
        return ENDED
    (word,) = words
    if word == "r":
        return AT_WORK
    starts, *gaps = (int(number, 36) for number in word[1:].split("."))
    ended = word[0] == "e"
    if gaps:
        lone, until, *alone = gaps
        watch = Watch(starts, lone and base + lone, base + until, base + alone[0] if alone else None, ended)
        possible = until and starts >= 2 and lone <= until and not (alone and (ended or not lone))
    else:
        watch, possible = Watch(starts, ended=ended), starts == 1
    if not possible or _watch_word(base, watch) != word:
        raise ValueError(word)
    return watch


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    for part in _empty(text).split(",") if _empty(text) else ():
        first, second = part.split(".")
        pair = int(first, 36), int(second, 36)
        if part != f"{_number(pair[0])}.{_number(pair[1])}":  # int() also takes "+1", "1_0", "0x" and blanks
            raise ValueError(part)
        yield pair


def _empty(text: str) -> str:
    return "" if text == "-" else text


def _number(value: int) -> str:
    """Return a non-negative integer in base 36."""
    if value < 0:
        raise ValueError(value)
    digits = ""
    while value >= 36:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return _DIGITS[value] + digits
