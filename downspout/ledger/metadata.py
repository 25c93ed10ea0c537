"""What travels in the metadata of a commit: which records beyond the commit are done, and what failed how
often.

Storm's Java spout writes JSON with exactly the keys ``topologyId``, ``taskId`` and ``threadName``, and
refuses others. Ours has the same three, so one spout can take over from the other; what is ours is inside
``threadName``::

    downspout1 <base> <done> <failures> [<isolation>] <checksum>        e.g.  downspout1 2s 1.3,2.1 0.2 r 9f1c04be

``base`` is the committed offset. ``done`` lists ranges as *gap.length*, each gap counted from the end
before; ``failures`` lists
*gap.attempts*, gaps counted from one behind the last. Numbers are in base 36, an empty list is ``-``.
``isolation`` (see ``downspout.ledger.isolation``) is missing after an orderly end, and in what was written before
there was crash isolation. ``r`` and ``r1`` say that the owner is at work; ``w<starts>.<window>.<narrow until>.<until>``
and the same with ``.<alone>`` stand for a search, offsets counted from the base; with ``h`` it was handed on in order.
Until November 2026 that was ``r<starts>.<single until>.<until>``, ``.<alone>``, or the same with ``e``. It is still
read. A version that knows only those takes the others for foreign: it goes on from the commit, and may process again
what was done beyond it.
The checksum covers all of it, topologyId, taskId and the topic's Kafka id too: the ranges of a topic that
was deleted and created again mean nothing for the new one, and neither do those of a commit that a tool has
moved.

There is one text for each content. What does not decode to a content whose text it is, is foreign, cut or
corrupt; then nothing is known about records beyond the commit, and they are processed again. That is never
an error.

The broker limits metadata (``offset.metadata.max.bytes``, 4,096). Where the ranges do not fit, they are packed
(``downspout.ledger.runs``), and the rest stands in one word::

    downspout2 <base>/<done>/<failures>[/<isolation>] <checksum>

So every second record of 20,000 that is not done fits into 4,096 bytes. Where the ranges do not fit even so, the
highest ones are left out: records above that horizon may be processed again after a crash, those below it are not.

A version that knows the first form alone takes offset, topology id and task from the second, and nothing else: it
processes again what lies beyond the commit.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from downspout.ledger import runs
from downspout.ledger.isolation import AT_WORK, WINDOW, Isolation

BYTES_MAX = 4096  # The broker's default limit

FAILURES_MAX = 100  # How many failed offsets are recorded, lowest first

TEXT_MAX = 16 * BYTES_MAX  # What is longer is not ours, whatever limit the broker has: nothing of it is read

ENDED = Isolation(ended=True)

_MARK = "downspout1"
_PACKED_MARK = "downspout2"
_PACKED_WORDS = 3
_JAVA_THREAD = re.compile(r"-executor\[\d+, \d+\]\Z")  # How the name of each thread ends that runs a component of Storm
_KEYS = {"topologyId", "taskId", "threadName"}
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class CommitMetadata:
    """What a commit's metadata holds."""

    topology_id: str = ""  # who committed; empty where that is not known
    task: int = -1  # its task id; -1 where that is not known
    done: tuple[tuple[int, int], ...] = ()  # ranges beyond the commit that need no processing
    failures: Mapping[int, int] = field(default_factory=dict)  # failed attempts of offsets beyond or at the commit
    isolation: Isolation = ENDED  # whether the owner ended in order, and what is suspected


NOTHING = CommitMetadata()


def encode(
    base: int,  # the offset that is committed
    *,
    topology_id: str,  # this topology's id
    task: int,  # this task's id
    topic_id: str = "",  # the topic's Kafka id; goes into the checksum only
    done: Iterable[tuple[int, int]] = (),  # sorted disjoint ranges above ``base``; taken lazily, up to what fits
    failures: Iterable[tuple[int, int]] = (),  # sorted (offset, failed attempts), at or above ``base``
    isolation: Isolation = ENDED,  # as of a commit at ``base``
    bytes_max: int = BYTES_MAX,  # never longer than this; where not even the frame fits, the text is empty
) -> str:
    """Return the metadata for a commit at ``base``.

    >>> text = encode(100, topology_id="flights-1", task=4, done=[(101, 104)], failures=[(100, 2)])
    >>> text
    '{"topologyId":"flights-1","taskId":4,"threadName":"downspout1 2s 1.3 0.2 982da74d"}'
    >>> found = decode(100, text)
    >>> found.topology_id, found.task, found.done, found.failures, found.isolation.ended
    ('flights-1', 4, ((101, 104),), {100: 2}, True)
    """
    search = _isolation_word(base, isolation)
    room = bytes_max - len(_text(topology_id, task, topic_id, base, "", "", search))
    if room < 0:
        return ""
    # Attempts first: they are few, and without them a poison record starts over. Never more than a quarter
    # of the room.
    tried, used = _fill(_gaps_of_failures(base, failures), max(1, room // 4))
    known = list(islice(done, 3 * bytes_max))  # more do not fit in any form
    ranges, _ = _fill(_gaps_of_ranges(base, known), room - used)
    count = ranges.count(",") + bool(ranges)
    if count < len(known):
        packed, packed_count = runs.pack(base, known, room - used)
        if packed_count > count:
            return _text(topology_id, task, topic_id, base, packed, tried, search, _PACKED_MARK)
    return _text(topology_id, task, topic_id, base, ranges, tried, search)


def decode(base: int, metadata: str | None, *, topic_id: str = "") -> CommitMetadata:
    """Return what the metadata of a commit at ``base`` holds; :data:`NOTHING` where it is not ours, cut or
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
    if words[0] not in (_MARK, _PACKED_MARK):
        # Not ours. A damaged mark of ours looks like this too, and then the owner may be damaged as well: so
        # only what cannot be ours counts as another's. A Java spout's thread has the component's name, which
        # may be of any number of words.
        may_be_ours = _may_be_ours(words) and not _JAVA_THREAD.search(thread)
        return NOTHING if thread.startswith(_MARK[:-1]) or may_be_ours else CommitMetadata(owner, task)
    try:
        base_text, done_text, failures_text, *search = _fields(words)
        done = tuple(_ranges_of(words[0], base, done_text))
        failures = dict(_failures(base, failures_text))
        isolation = _isolation(base, search)
        lists = _empty(done_text), _empty(failures_text)
        faithful = _text(owner, task, topic_id, base, *lists, "".join(search), words[0]) == metadata
    except (ValueError, OverflowError):
        return NOTHING
    if not faithful or base_text != _number(base):
        return NOTHING
    return CommitMetadata(owner, task, done, failures, isolation)


def shorten(base: int, metadata: str, *, topic_id: str, bytes_max: int) -> str:
    """Return metadata of ours that has no more than so many bytes, and holds as much as fits.

    >>> text = encode(100, topology_id="flights-1", task=4, done=[(101, 104), (105, 106)])
    >>> shorten(100, text, topic_id="", bytes_max=len(text) - 1)
    '{"topologyId":"flights-1","taskId":4,"threadName":"downspout2 2s/00v/- e8705d6f"}'
    """
    if len(metadata) <= bytes_max:
        return metadata
    found = decode(base, metadata, topic_id=topic_id)
    return encode(
        base,
        topology_id=found.topology_id,
        task=found.task,
        topic_id=topic_id,
        done=found.done,
        failures=found.failures.items(),
        isolation=found.isolation,
        bytes_max=bytes_max,
    )


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
        mark, checksum = words[0], words[-1]
        _, done, failures, *search = _fields(words)
        _isolation(base, search)  # raises where it is malformed
        written = _text(owner, task, topic_id, base, _empty(done), _empty(failures), "".join(search), mark)
        list(_ranges_of(mark, base, done)), list(_failures(base, failures))  # raises where they are malformed
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    alike = written.rpartition(" ")[0] == (metadata or "").rpartition(" ")[0] and mark in (_MARK, _PACKED_MARK)
    return str(owner) if alike and len(checksum) == 8 else None


def _may_be_ours(words: list[str]) -> bool:
    """Return whether these may be words of ours of which the first is damaged."""
    return len(words) in (5, 6) or (len(words) == _PACKED_WORDS and words[1].count("/") in (2, 3))


def _fields(words: list[str]) -> list[str]:
    """Return what stands between the mark and the checksum.

    Raises:
        ValueError: that is not one word where it has to be one.
    """
    _, *fields, _ = words
    if words[0] == _MARK:
        return fields
    (packed,) = fields
    return packed.split("/")


def _ranges_of(mark: str, base: int, text: str) -> Iterable[tuple[int, int]]:
    return _ranges(base, text) if mark == _MARK else runs.unpack(base, text)


def _text(
    owner: str, task: int, topic_id: str, base: int, done: str, failures: str, isolation: str, mark: str = _MARK
) -> str:
    between = " " if mark == _MARK else "/"
    body = f"{mark} " + between.join([_number(base), done or "-", failures or "-", *([isolation] if isolation else [])])
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


def _isolation_word(base: int, isolation: Isolation) -> str:
    """Return the word for a state of crash isolation; empty after an orderly end with nothing to hand on."""
    if not isolation.until:
        starts = _number(isolation.starts) if isolation.starts else ""
        return ("e" if starts else "") + starts if isolation.ended else "r" + starts
    numbers = [isolation.starts, isolation.window, max(0, isolation.narrow_until - base), isolation.until - base]
    if isolation.alone is not None:
        numbers.append(isolation.alone - base)
    return ("h" if isolation.ended else "w") + ".".join(map(_number, numbers))


def _isolation(base: int, words: list[str]) -> Isolation:
    """Return what the word for crash isolation says."""
    if not words:
        return ENDED
    (word,) = words
    if word == "r":
        return AT_WORK
    numbers = [int(number, 36) for number in word[1:].split(".")]
    if word[0] in "re" and len(numbers) > 1:
        return _former(base, word, numbers)
    starts, *gaps = numbers
    ended = word[0] in "eh"
    if gaps:
        window, narrow, until, *alone = gaps
        isolation = Isolation(
            starts, window, narrow and base + narrow, base + until, base + alone[0] if alone else None, ended
        )
        possible = until and starts >= 2 and window and narrow <= until and not (alone and (ended or window > 1))
    else:
        isolation, possible = Isolation(starts, ended=ended), starts == 1
    if not possible or _isolation_word(base, isolation) != word:
        raise ValueError(word)
    return isolation


def _former(base: int, word: str, numbers: list[int]) -> Isolation:
    """Return the state that was written before there were windows of all sizes: records went alone, or 100 together."""
    starts, lone, until, *alone = numbers
    if word != word[0] + ".".join(map(_number, numbers)) or starts < 2 or lone > until or not until or len(alone) > 1:
        raise ValueError(word)
    if alone and (word[0] == "e" or not lone):
        raise ValueError(word)
    place = base + alone[0] if alone else None
    return Isolation(starts, 1 if lone else WINDOW, lone and base + lone, base + until, place, word[0] == "e")


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
