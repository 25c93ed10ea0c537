from __future__ import annotations

import base64
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import (
    AT_WORK,
    BYTES_MAX,
    ENDED,
    NOTHING,
    CommitMetadata,
    Isolation,
    Ranges,
    author_for_another_topic,
    decode,
    encode,
    metadata,
    shorten,
)
from tests.sampling import WHOLE

BASE = st.integers(0, 2**63)
LENGTH = st.one_of(st.integers(1, 3), st.integers(1, 300), st.integers(1, 10**6), st.integers(1, 2**62))
GAPS = st.lists(st.tuples(LENGTH, LENGTH), max_size=200)
TRIES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 99)), max_size=20)
NAMES = st.text(max_size=40)


def ranges_above(base: int, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, end = [], base
    for gap, length in gaps:
        found.append((end + gap, end + gap + length))
        end += gap + length
    return found


def tries_from(base: int, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, offset = [], base
    for gap, attempts in gaps:
        found.append((offset + gap, attempts))
        offset += gap + 1
    return found


GAP = st.integers(1, 10**6)
WATCHES = st.one_of(
    st.sampled_from([ENDED, AT_WORK, Isolation(1)]),
    st.builds(lambda n, w, a, b: Isolation(n, w, a, a + b), st.integers(2, 99), GAP, st.just(0) | GAP, GAP),
    st.builds(lambda n, a, b, c: Isolation(n, 1, a, a + b, c), st.integers(2, 99), GAP, GAP, GAP),
    st.builds(lambda n, w, a, b: Isolation(n, w, a, a + b, ended=True), st.integers(2, 99), GAP, st.just(0) | GAP, GAP),
)
"""With offsets counted from the base."""


def isolation_above(base: int, isolation: Isolation) -> Isolation:
    alone = None if isolation.alone is None else base + isolation.alone
    narrow_until = isolation.narrow_until and base + isolation.narrow_until
    return replace(isolation, narrow_until=narrow_until, until=isolation.until and base + isolation.until, alone=alone)


SAMPLE = encode(
    1000,
    topology_id="shop-1",
    task=3,
    topic_id="T",
    done=[(1001, 1004), (1010, 1011)],
    failures=[(1000, 2)],
    isolation=Isolation(2, 1, 1400, 1700, 1005),
)


@given(BASE, GAPS, TRIES, WATCHES, NAMES, st.integers(0, 10**6), NAMES)
def test_what_is_encoded_is_decoded(
    base: int,
    gaps: list[tuple[int, int]],
    tries: list[tuple[int, int]],
    isolation: Isolation,
    owner: str,
    task: int,
    topic_id: str,
) -> None:
    """A payload that fits comes back whole."""
    done, failures, isolation = ranges_above(base, gaps), tries_from(base, tries), isolation_above(base, isolation)
    text = encode(
        base, topology_id=owner, task=task, topic_id=topic_id, done=done, failures=failures, isolation=isolation
    )
    told = decode(base, text, topic_id=topic_id)
    assert (told.topology_id, told.task, told.isolation) == (owner, task, isolation)
    assert len(text) <= BYTES_MAX
    assert list(told.done) == done[: len(told.done)]
    if len(done) < 100:
        assert (list(told.done), told.failures) == (done, dict(failures))


@given(st.integers(0, 10**12), st.integers(1, 5000), st.integers(0, 3000), st.integers(0, 4096), WATCHES)
def test_the_length_is_bounded_by_a_horizon(
    base: int, ranges: int, failed: int, bytes_max: int, isolation: Isolation
) -> None:
    """However many holes there are, the text fits, and what is left out is the highest."""
    done = [(base + 2 * n + 1, base + 2 * n + 2) for n in range(ranges)]
    failures = [(base + 2 * n, 1) for n in range(failed)]
    isolation = isolation_above(base, isolation)
    text = encode(
        base, topology_id="shop-1", task=3, done=done, failures=failures, isolation=isolation, bytes_max=bytes_max
    )
    assert len(text.encode()) <= bytes_max
    told = decode(base, text)
    assert list(told.done) == done[: len(told.done)]
    assert list(told.failures.items()) == failures[: len(told.failures)]


def alternating(holes: int, base: int = 0) -> list[tuple[int, int]]:
    """Return ranges of one offset each, after holes of one offset each."""
    return [(base + 2 * hole + 1, base + 2 * hole + 2) for hole in range(holes)]


def drawn(count: int, hole: Callable[[], int], length: Callable[[], int]) -> list[tuple[int, int]]:
    return ranges_above(0, [(hole(), length()) for _ in range(count)])


CHANCE = random.Random(3)


def in_a_row(likely: float) -> int:
    """Return how many records in a row come out alike, if each does so with one probability."""
    count = 1
    while CHANCE.random() < likely:
        count += 1
    return count


@pytest.mark.parametrize(
    ("ranges", "least"),
    [
        (alternating(1_000), 1_000),
        (alternating(100_000), 100_000),
        (drawn(20_000, lambda: 2, lambda: 1), 20_000),
        (drawn(9_000, lambda: in_a_row(0.5), lambda: in_a_row(0.5)), 5_300),
        (drawn(9_000, lambda: in_a_row(0.1), lambda: in_a_row(0.9)), 4_100),
        (drawn(6_000, lambda: 1, lambda: in_a_row(0.99)), 2_650),
        (drawn(4_000, lambda: 1, lambda: CHANCE.randint(1, 2_000)), 2_000),
        (drawn(6_000, lambda: CHANCE.randint(1, 50), lambda: CHANCE.randint(1, 50)), 2_000),
        (drawn(6_000, lambda: CHANCE.randint(1, 300), lambda: CHANCE.randint(1, 300)), 1_350),
        (drawn(3_000, lambda: CHANCE.randint(1, 10**6), lambda: CHANCE.randint(1, 10**6)), 590),
    ],
    ids=["1,000 holes", "100,000 holes", "thirds", "half", "9 in 10", "99 in 100", "1 in 1,000", "50", "300", "10^6"],
)
def test_the_default_limit_holds_many_ranges(ranges: list[tuple[int, int]], least: int) -> None:
    """Regular holes fit all; of random ones fit the lowest, about as many as their entropy allows in 4,096 bytes."""
    text = encode(0, topology_id="a-topology-of-usual-name-1-1763900000", task=12, topic_id="i" * 22, done=ranges)
    assert len(text) <= BYTES_MAX
    found = decode(0, text, topic_id="i" * 22).done
    assert len(found) >= least
    assert list(found) == ranges[: len(found)]


def test_few_ranges_take_few_characters() -> None:
    """A commit with nothing beyond it has a word of 24 characters or so; a range adds two to four."""
    empty = encode(1000, topology_id="shop-1", task=3, isolation=AT_WORK)
    ten = encode(
        1000, topology_id="shop-1", task=3, isolation=AT_WORK, done=[(n, n + 9) for n in range(1100, 2100, 100)]
    )
    assert len(empty) < len('{"topologyId":"shop-1","taskId":3,"threadName":"downspout1 "}') + 26
    assert len(ten) < len(empty) + 40


def test_metadata_is_shortened_to_what_fits() -> None:
    """A shorter text tells the lowest ranges of the longer one; where nothing fits, it is empty."""
    ranges = drawn(3_000, lambda: CHANCE.randint(1, 300), lambda: 5)
    text = encode(0, topology_id="t", task=1, topic_id="id", done=ranges)
    for bytes_max in (3_000, 1_000, 200):
        short = shorten(0, text, topic_id="id", bytes_max=bytes_max)
        found = decode(0, short, topic_id="id").done
        assert len(short) <= bytes_max
        assert found
        assert list(found) == ranges[: len(found)]
    assert shorten(0, text, topic_id="id", bytes_max=20) == ""


def test_the_json_has_exactly_the_references_keys() -> None:
    """Storm's own parser refuses any other key."""
    assert set(json.loads(SAMPLE)) == {"topologyId", "taskId", "threadName"}


@pytest.mark.timeout(3600)
def test_damaged_random_payloads_never_count() -> None:
    """Of random payloads, each single bit flipped in their bytes, and each truncation, is refused or means the same."""
    chance = random.Random(21)
    for _ in range(2_000 if WHOLE else 25):
        base = chance.randrange(10**6)
        done = ranges_above(base, [(chance.randint(1, 50), chance.randint(1, 50)) for _ in range(chance.randrange(9))])
        failures = tries_from(base, [(chance.randrange(9), chance.randint(1, 9)) for _ in range(chance.randrange(4))])
        isolation = isolation_above(
            base,
            chance.choice([ENDED, AT_WORK, Isolation(1), Isolation(2, 1, 9, 30, 3), Isolation(4, 7, 0, 8, ended=True)]),
        )
        text = encode(
            base, topology_id="shöp-1", task=3, topic_id="T", done=done, failures=failures, isolation=isolation
        )
        allowed = NOTHING, decode(base, text, topic_id="T")
        payload = text.encode()
        for position in range(len(payload)):
            assert decode(base, payload[:position].decode(errors="replace"), topic_id="T") == NOTHING
            for bit in range(8):
                flipped = bytearray(payload)
                flipped[position] ^= 1 << bit
                for errors in ("replace", "surrogateescape"):
                    assert decode(base, flipped.decode(errors=errors), topic_id="T") in allowed, flipped


def test_it_belongs_to_its_commit_and_its_topic() -> None:
    """Moved to another offset, or found under a topic that was created again, it tells nothing."""
    assert decode(1000, SAMPLE, topic_id="T").done
    assert decode(999, SAMPLE, topic_id="T") == NOTHING
    assert decode(1000, SAMPLE, topic_id="U") == NOTHING


@pytest.mark.parametrize(
    "foreign",
    [
        None,
        "",
        "null",
        "{}",
        "[]",
        "0",
        '"text"',
        "{",
        "\x00",
        "AQ==",
        "1,2,3",
        "AgAAAYvMT/yz",  # Kafka Streams: base64 of a version, a timestamp and a map
        "AgAAAYvMT/yzAAAAAQAAAAFh",
        "bAAAAAA8QAA=",  # confluent's parallel consumer: base64 of a run-length or bit-set encoding
        "b28AAAAOAAAAAQAAAAI=",
        "zKLUv/0AWAkAAAE=",
        "NO_METADATA",
        "{}{}",
        '{"topologyId":"a","taskId":1,"threadName":"x"',
        '{"offset":7,"partition":0,"topology":{"id":"a","name":"a"}}',  # storm-kafka for 0.8
        '["topologyId","taskId","threadName"]',
        '{"topologyId":"a","taskId":1.0,"threadName":"x"}',
        '{"topologyId":["a"],"taskId":1,"threadName":"x"}',
        "NaN",
        "-Infinity",
        '{"topologyId":1,"taskId":1,"threadName":"x"}',
        '{"topologyId":"a","taskId":"1","threadName":"x"}',
        '{"topologyId":"a","taskId":true,"threadName":"x"}',
        '{"topologyId":"a","taskId":1,"threadName":null}',
        '{"topologyId":"a","taskId":1,"threadName":"x","more":1}',
        '{"topologyId":"a","taskId":1}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1"}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 "}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout2 00000000000000"}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 K2<v-00000V`OAx00BlIU;<)h00"}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 é"}',
        "[" * 100_000,
        "9" * 5000,
        "é" * 100,
        "\ud800",
    ],
)
def test_foreign_metadata_tells_nothing(foreign: str | None) -> None:
    """Whatever another program wrote is never an error, and never counts as done."""
    assert decode(1000, foreign) == NOTHING


@pytest.mark.parametrize("component", ["spout", "my spout", "read all of the orders", "one two three four five six"])
def test_the_java_spouts_metadata_tells_its_owner(component: str) -> None:
    """So that the strategies can see whether this topology committed, whatever its component is called."""
    thread = f"Thread-14-{component}-executor[7, 7]"
    told = decode(5, json.dumps({"topologyId": "wc-1-16", "taskId": 7, "threadName": thread}, separators=(",", ":")))
    assert (told.topology_id, told.task, told.done, dict(told.failures)) == ("wc-1-16", 7, (), {})


@given(st.text(max_size=200))
def test_garbage_never_raises(garbage: str) -> None:
    assert not decode(1000, garbage).done


@given(st.text(max_size=40) | st.binary(max_size=60).map(lambda data: base64.b85encode(data).decode()))
def test_garbage_inside_our_frame_never_counts(garbage: str) -> None:
    text = json.dumps({"topologyId": "a", "taskId": 1, "threadName": f"downspout1 {garbage}"}, separators=(",", ":"))
    assert decode(1000, text) == NOTHING


@given(BASE, GAPS)
def test_there_is_one_text_for_each_content(base: int, gaps: list[tuple[int, int]]) -> None:
    done = ranges_above(base, gaps)
    text = encode(base, topology_id="a", task=1, done=done)
    told = decode(base, text)
    assert encode(base, topology_id="a", task=1, done=iter(Ranges(told.done))) == text


@pytest.mark.parametrize(
    "isolation",
    [
        Isolation(2),
        Isolation(2, ended=True),
        Isolation(1, 1, 1005, 1009),
        Isolation(2, 0, 1005, 1009),
        Isolation(2, 1, 1010, 1009),
        Isolation(2, 2, 1005, 1009, 1003),
        Isolation(2, 1, 1005, 1009, 1003, ended=True),
    ],
)
def test_no_commit_tells_an_impossible_search(isolation: Isolation) -> None:
    """A state that no start or commit leads to tells nothing, though the checksums are right."""
    text = encode(1000, topology_id="a", task=1, topic_id="T", done=[(1001, 1002)], isolation=isolation)
    assert decode(1000, text, topic_id="T") == NOTHING


@pytest.mark.parametrize(
    "planes",
    [
        [],
        [b"\1\0\0"],
        [b"\2" + bytes([0, 0, 0, 0, 0, 0, 0, 1]) + bytes(8), *[b"\0"] * 4],  # wider than it needs to be
        [b"\1" + bytes([0, 0, 0, 0, 0, 0, 0, 1]), *[b"\0"] * 5],  # one column more
        [b"\1" + bytes([0, 0, 0, 0, 0, 0, 0, 2]), *[b"\0"] * 4],  # ended is yes or no
        [b"\1" + bytes([0, 0, 0, 7, 0, 0, 0, 1]), *[b"\0"] * 4],  # a window without a search
        [b"\1" + bytes([0, 1, 0, 0, 0, 0, 0, 1]), b"\0", b"\0", b"\0", b"\1\1"],  # a range that touches the base
        [b"\1" + bytes([0, 1, 0, 0, 0, 0, 0, 1]), b"\0", b"\0", b"\1\1", b"\0"],  # an empty range
        [b"\1" + bytes([200, 0, 0, 0, 0, 0, 0, 1]), b"\1" + b"\1" * 200, b"\1" + b"\1" * 200, b"\0", b"\0"],
        [b"\x09" + bytes(72), *[b"\0"] * 4],
    ],
)
def test_what_nobody_writes_tells_nothing(planes: list[bytes]) -> None:
    """Not even with the right checksums: there is one content for each word."""
    assert decode(1000, signed(b"".join(planes))) == NOTHING


def signed(raw: bytes) -> str:
    """Return metadata of a commit at 1,000 that holds any bytes, as encode would sign it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -12, 8)
    return metadata.sealed_text(1000, "a", 1, 0, packer.compress(raw) + packer.flush())


def test_a_signed_content_is_read() -> None:
    """The bytes by hand, of which the tests above are the wrong ones."""
    head = bytes([1, 1, 0, 0, 0, 0, 0, 1])
    found = decode(1000, signed(b"\1" + head + b"\1\1" + b"\1\2" + b"\1\3" + b"\1\4"))
    assert found == CommitMetadata("a", 1, ((1003, 1007),), {1000: 2}, ENDED)


@pytest.mark.parametrize("head", [b"", b"\1" + bytes([0, 0, 0, 0, 0, 0, 0, 1])], ids=["none", "a head"])
def test_a_signed_bomb_takes_little_memory(head: bytes) -> None:
    """30 MB in 40 kB, under the right checksums, are not unpacked beyond what a commit may hold."""
    text = signed(head + bytes(30_000_000))
    assert len(text) < metadata.TEXT_MAX
    tracemalloc.start()
    assert decode(1000, text) == NOTHING
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 11_000_000


def test_a_commit_for_another_topic_tells_its_author() -> None:
    """It is told from one of this topic, of a topic without id, that was moved, and that is not ours."""
    text = encode(7, topology_id="t", task=1, topic_id="old", done=[(9, 12)], failures=[(8, 2)])
    assert author_for_another_topic(7, text, topic_id="new") == "t"
    nameless = encode(7, topology_id="t", task=1)
    foreign = '{"topologyId":"t","taskId":1,"threadName":"Thread-14"}'
    nobody = [
        author_for_another_topic(7, text, topic_id="old"),
        author_for_another_topic(7, text, topic_id=""),
        author_for_another_topic(6, text, topic_id="new"),
        author_for_another_topic(7, text[:-9], topic_id="new"),
        author_for_another_topic(7, nameless, topic_id="new"),
        author_for_another_topic(7, foreign, topic_id="new"),
        *(author_for_another_topic(7, other, topic_id="new") for other in (None, "", "null", "[]", "7", "{}")),
    ]
    assert nobody == [None] * len(nobody)
