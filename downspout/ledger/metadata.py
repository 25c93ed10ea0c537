"""The metadata of a commit: the records done beyond it, and the failed attempts of records.

Storm's Java spout writes JSON with exactly the keys ``topologyId``, ``taskId`` and ``threadName``, and refuses others.
Ours writes the same three, so either spout can take over from the other; our data is one word in ``threadName``::

    downspout1 <word>        e.g.  downspout1 K2<v-00000V`OAx00BlIU;<)h00

The word is base 85 (which has no character that JSON escapes) of two checksums and deflated columns of numbers:

==============  ====================================================================================================
column          holds
==============  ====================================================================================================
head            the number of failures and of ranges, and the state of crash isolation (offsets relative to the base)
failures        the distance of each failed offset from the previous one; then the failed attempts of each
ranges          the length of the gap before each range; then the length of each range
==============  ====================================================================================================

A column is one byte for the width of its numbers in bytes, then all their lowest bytes, then all second bytes, and so
on. Bytes of the same significance are similar, so each such *plane* is deflated as a block with its own codes: repeated
gaps take almost no space, random ones close to their entropy.

The first checksum covers the committed offset (the *base*), topologyId, taskId and the rest of the word; the second
covers the topic's Kafka id. So the ranges are ignored if a tool has moved the commit, or if the topic was recreated.

Metadata that does not encode to the same text again is foreign, truncated or corrupt: the records beyond the commit are
processed again. This is never an error.

The broker limits metadata (``offset.metadata.max.bytes``, 4,096). If the ranges do not fit, the highest are dropped:
only records above that horizon may be processed again after a crash.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise

from downspout.ledger.isolation import ISOLATION_FROM, Isolation

BYTES_MAX = 4096  # The broker's default limit

FAILURES_MAX = 100  # Failed offsets recorded, lowest first

RANGES_MAX = 1 << 17  # Ranges recorded; bounds how far an attacker's word can inflate

TEXT_MAX = 16 * BYTES_MAX  # Longer metadata is not ours, whatever the broker's limit

ENDED = Isolation(ended=True)

_MARK = "downspout1 "
_KEYS = {"topologyId", "taskId", "threadName"}
_HEAD = 8  # Numbers in the head
_RAW_MAX = 5 + 8 * (_HEAD + 2 * FAILURES_MAX + 2 * RANGES_MAX)


@dataclass(frozen=True)
class CommitMetadata:
    """The content of a commit's metadata."""

    topology_id: str = ""  # who committed; empty if unknown
    task: int = -1  # its task id; -1 if unknown
    done: tuple[tuple[int, int], ...] = ()  # ranges beyond the commit that need no processing
    failures: Mapping[int, int] = field(default_factory=dict)  # failed attempts by offset, at or beyond the commit
    isolation: Isolation = ENDED  # whether the owner shut down in order, and the suspected records


NOTHING = CommitMetadata()


def encode(
    base: int,  # the offset that is committed
    *,
    topology_id: str,  # this topology's id
    task: int,  # this task's id
    topic_id: str = "",  # the topic's Kafka id
    done: Iterable[tuple[int, int]] = (),  # sorted disjoint ranges above ``base``, read lazily
    failures: Iterable[tuple[int, int]] = (),  # sorted (offset, failed attempts), at or above ``base``
    isolation: Isolation = ENDED,  # as of a commit at ``base``
    bytes_max: int = BYTES_MAX,  # longest text; it is empty if not even the frame fits
) -> str:
    """Return the metadata for a commit at ``base``.

    >>> text = encode(100, topology_id="flights-1", task=4, done=[(101, 104)], failures=[(100, 2)])
    >>> text
    '{"topologyId":"flights-1","taskId":4,"threadName":"downspout1 K2<v-00000V`OAx00BlIU;<)h00"}'
    >>> found = decode(100, text)
    >>> found.topology_id, found.task, found.done, found.failures, found.isolation.ended
    ('flights-1', 4, ((101, 104),), {100: 2}, True)
    """
    tried, known = list(islice(failures, FAILURES_MAX)), list(islice(done, RANGES_MAX))

    def text(failed: int, ranges: int) -> str:
        packed = _deflate(_planes(base, tried[:failed], known[:ranges], isolation))
        return sealed_text(base, topology_id, task, zlib.crc32(topic_id.encode()), packed)

    if len(whole := text(len(tried), len(known))) <= bytes_max:
        return whole
    if (room := bytes_max - len(text(0, 0))) < 0:
        return ""
    # Attempts first, in at most a quarter of the room: they are few, and without them a poison record starts over.
    failed = _most(len(tried), lambda count: len(text(count, 0)) <= bytes_max - room + room // 4)
    return text(failed, _most(len(known), lambda count: len(text(failed, count)) <= bytes_max))


def decode(base: int, metadata: str | None, *, topic_id: str = "") -> CommitMetadata:
    """Decode the metadata of a commit at ``base``; :data:`NOTHING` if it is foreign, truncated or corrupt.

    Another spout's metadata of the same form gives only the topology id and the task. Never raises.

    >>> decode(7, "null") == decode(7, "") == NOTHING
    True
    >>> decode(7, '{"topologyId":"wc-1-1","taskId":3,"threadName":"Thread-14"}').topology_id
    'wc-1-1'
    """
    found, topic = _read(base, metadata)
    return found if topic in (None, zlib.crc32(topic_id.encode())) else NOTHING


def shorten(base: int, metadata: str, *, topic_id: str, bytes_max: int) -> str:
    """Shorten our metadata to at most ``bytes_max`` bytes, keeping as much as fits.

    >>> text = encode(100, topology_id="flights-1", task=4, done=[(101, 104), (205, 306)])
    >>> decode(100, shorten(100, text, topic_id="", bytes_max=len(text) - 1)).done
    ((101, 104),)
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
    """Return the topology that committed at ``base`` for an earlier topic of the same name; None if unknown.

    It is known if the metadata is ours and intact, and both topics have an id.

    >>> text = encode(100, topology_id="flights-1", task=4, topic_id="old")
    >>> author_for_another_topic(100, text, topic_id="new")
    'flights-1'
    >>> author_for_another_topic(100, text, topic_id="old") is None
    True
    """
    found, topic = _read(base, metadata)
    is_other = topic_id and topic not in (None, zlib.crc32(b""), zlib.crc32(topic_id.encode()))
    return found.topology_id if is_other else None


def _read(base: int, metadata: str | None) -> tuple[CommitMetadata, int | None]:
    """Return the content of metadata, and the checksum of the topic's id (None in metadata that is not ours)."""
    nothing = NOTHING, None
    if len(metadata or "") > TEXT_MAX:
        return nothing
    try:
        document = json.loads(metadata or "null")
    except (ValueError, RecursionError):
        return nothing
    if not isinstance(document, dict) or set(document) != _KEYS:
        return nothing
    owner, task, thread = document["topologyId"], document["taskId"], document["threadName"]
    if not isinstance(owner, str) or type(task) is not int or not isinstance(thread, str):
        return nothing
    if not thread.startswith(_MARK):
        # Another spout's, unless the mark is damaged: then the owner may be damaged as well.
        is_like_ours = sum(map(str.__eq__, thread, _MARK)) > len(_MARK) // 2
        return nothing if is_like_ours else (CommitMetadata(owner, task), None)
    try:
        sealed = base64.b85decode(thread.removeprefix(_MARK))
        _, topic = _SEALS.unpack_from(sealed)
        packed = sealed[_SEALS.size :]
        if sealed_text(base, owner, task, topic, packed) != metadata:
            return nothing
        return CommitMetadata(owner, task, *_content(base, _inflate(packed))), topic
    except (ValueError, struct.error, zlib.error):
        return nothing


_SEALS = struct.Struct("<II")  # The checksums of the whole and of the topic's id


def sealed_text(base: int, owner: str, task: int, topic: int, packed: bytes) -> str:
    """Return metadata with its checksums; ``topic`` is that of the topic's id, ``packed`` the deflated columns."""
    whole = zlib.crc32(f"{owner}\n{task}\n{base}\n{topic}\n".encode("utf-8", "surrogatepass") + packed)
    word = base64.b85encode(_SEALS.pack(whole, topic) + packed).decode()
    return json.dumps({"topologyId": owner, "taskId": task, "threadName": _MARK + word}, separators=(",", ":"))


def _most(count: int, fits: Callable[[int], bool]) -> int:
    """Return the highest number up to ``count`` that fits; 0 does. Tries at most twice the result, or 1,024."""
    few, many = 0, min(count, 1024)
    while fits(many):
        if many == count:
            return count
        few, many = many, min(count, 2 * many)
    return few + bisect_left(range(few + 1, many), True, key=lambda number: not fits(number))


def _planes(
    base: int, failures: Sequence[tuple[int, int]], done: Sequence[tuple[int, int]], isolation: Isolation
) -> list[bytes]:
    """Return the columns as planes; the first plane of each is the width of its numbers."""
    distances = [after - before for before, after in pairwise([base - 1, *(offset for offset, _ in failures)])]
    turns = [after - before for before, after in pairwise([base, *chain.from_iterable(done)])]
    head = [len(failures), len(done), *_counts(base, isolation)]
    planes = []
    for column in (head, distances, [attempts for _, attempts in failures], turns[::2], turns[1::2]):
        width = -(-max(column, default=0).bit_length() // 8)
        numbers = struct.pack(f"<{len(column)}Q", *column)
        planes += [bytes([width]), *(numbers[place::8] for place in range(width))]
    return planes


def _content(base: int, raw: bytes) -> tuple[tuple[tuple[int, int], ...], dict[int, int], Isolation]:
    """Return ranges, failures and crash isolation from inflated planes.

    Raises:
        ValueError: :func:`encode` does not write this.
    """
    rest = memoryview(raw)

    def column(count: int) -> tuple[int, ...]:
        nonlocal rest
        width = rest[0] if rest else 0
        numbers = bytearray(8 * count)
        for place in range(width):
            numbers[place::8] = rest[1 + place * count : 1 + (place + 1) * count]
        rest = rest[1 + width * count :]
        return struct.unpack(f"<{count}Q", numbers)

    failed, ranges, *counts = column(_HEAD)
    if failed > FAILURES_MAX or ranges > RANGES_MAX:
        raise ValueError("more than are written")
    distances, attempts, holes, lengths = column(failed), column(failed), column(ranges), column(ranges)
    edges = list(accumulate(chain.from_iterable(zip(holes, lengths, strict=True)), initial=base))[1:]
    done = tuple(zip(edges[::2], edges[1::2], strict=True))
    failures = dict(zip(list(accumulate(distances, initial=base - 1))[1:], attempts, strict=True))
    isolation = _isolation(base, *counts)
    if (
        not all(chain(distances, holes, lengths))
        or b"".join(_planes(base, [*failures.items()], done, isolation)) != raw
    ):
        raise ValueError("not as it is written")
    return done, failures, isolation


def _deflate(planes: list[bytes]) -> bytes:
    """Return the planes, deflated as far as zlib can."""

    def deflated(strategy: int) -> bytes:
        # A window of 4 KiB takes 3 µs to set up, one of 32 KiB takes 200 µs and compresses planes no better.
        packer = zlib.compressobj(9, zlib.DEFLATED, -12, 8, strategy)
        parts = []
        for plane in planes:
            if len(plane) > 31:  # in a shorter plane, its own codes cost more than they save
                parts.append(packer.flush(zlib.Z_BLOCK))
            parts.append(packer.compress(plane))
        return b"".join([*parts, packer.flush()])

    # Random planes get shorter if zlib does not search for matches.
    return min(map(deflated, (zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE)), key=len)


def _inflate(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(-12)
    raw = unpacker.decompress(packed, _RAW_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("cut, or a bomb")
    return raw


def _counts(base: int, isolation: Isolation) -> list[int]:
    """Encode a state of crash isolation as numbers, with offsets relative to the base."""
    if not isolation.until:
        return [isolation.starts, 0, 0, 0, 0, isolation.ended]
    alone = 0 if isolation.alone is None else isolation.alone - base + 1
    narrow = max(0, isolation.narrow_until - base)
    return [isolation.starts, isolation.window, narrow, isolation.until - base, alone, isolation.ended]


def _isolation(base: int, starts: int, window: int, narrow: int, until: int, alone: int, ended: int) -> Isolation:
    """Decode :func:`_counts`."""
    is_search = until and starts >= ISOLATION_FROM and window and narrow <= until
    if (until and not is_search) or (not until and starts > 1) or (alone and (ended or window > 1)):
        raise ValueError("no state of crash isolation")
    alone_at = base + alone - 1 if alone else None
    return Isolation(starts, window, narrow and base + narrow, until and base + until, alone_at, bool(ended))
