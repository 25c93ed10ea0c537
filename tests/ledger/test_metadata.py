from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import (
    AT_WORK,
    BYTES_MAX,
    ENDED,
    NOTHING,
    WINDOW,
    CommitMetadata,
    Isolation,
    Ranges,
    author_for_another_topic,
    decode,
    encode,
)
from tests.sampling import WHOLE

BASE = st.integers(0, 2**63)
GAPS = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=60)
TRIES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 99)), max_size=20)
NAMES = st.text(max_size=40)


def ranges_above(base: int, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint ranges above a base."""
    found, end = [], base
    for gap, length in gaps:
        found.append((end + gap, end + gap + length))
        end += gap + length
    return found


def tries_from(base: int, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending (offset, attempts)."""
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
    """Return crash isolation with its offsets counted from 0."""
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
    assert list(told.done) == done[: len(told.done)]
    if len(text) < BYTES_MAX // 2:
        assert list(told.done) == done
        assert told.failures == dict(failures)


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


def test_thousands_of_holes_keep_hundreds_of_ranges() -> None:
    """The horizon is lowered, the ranges are never dropped whole."""
    done = [(2 * n + 1, 2 * n + 2) for n in range(5000)]
    text = encode(0, topology_id="shop-1", task=3, done=done, failures=[(0, 1)])
    assert len(decode(0, text).done) > 900


def test_the_json_has_exactly_the_references_keys() -> None:
    """Storm's own parser refuses any other key."""
    assert set(json.loads(SAMPLE)) == {"topologyId", "taskId", "threadName"}


@pytest.mark.timeout(3600)
def test_random_maps_come_back() -> None:
    """Many maps (a million with `make soak-ledger`), of all shapes that a partition can have, come back whole."""
    chance = random.Random(20)
    for _ in range(1_000_000 if WHOLE else 10_000):
        base = chance.choice((0, 1, chance.randrange(10**4), chance.randrange(2**63)))
        widest = chance.choice((1, 36, 10**6))
        gaps = [(chance.randint(1, widest), chance.randint(1, widest)) for _ in range(chance.randrange(25))]
        tries = [(chance.randrange(widest), chance.randint(1, 40)) for _ in range(chance.randrange(6))]
        done, failures = ranges_above(base, gaps), tries_from(base, tries)
        text = encode(base, topology_id="shop-1", task=3, topic_id="T", done=done, failures=failures)
        told = decode(base, text, topic_id="T")
        assert (list(told.done), list(told.failures.items())) == (done, failures), text


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


@pytest.mark.parametrize("position", range(len(SAMPLE)))
def test_every_bit_flip_is_rejected_or_harmless(position: int) -> None:
    """One bit flipped anywhere never adds to what counts as done, and never invents an owner with ranges."""
    whole = decode(1000, SAMPLE, topic_id="T")
    for bit in range(7):
        damaged = SAMPLE[:position] + chr(ord(SAMPLE[position]) ^ (1 << bit)) + SAMPLE[position + 1 :]
        assert decode(1000, damaged, topic_id="T") in (NOTHING, whole)


@pytest.mark.parametrize("length", range(len(SAMPLE)))
def test_every_truncation_is_rejected(length: int) -> None:
    """A payload that was cut tells nothing."""
    assert decode(1000, SAMPLE[:length], topic_id="T") == NOTHING


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
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 rs 1.1 - 00000000"}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 rs 1.1 - r 00000000"}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 rs 1.1 - r r 00000000"}',
        '{"topologyId":"a","taskId":1,"threadName":"downspout1 rs 1.-1 - 00000000"}',
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
    """Any text at all."""
    assert not decode(1000, garbage).done


@given(st.text(alphabet="0123456789abcdefz.,-+_ ", max_size=40))
def test_garbage_inside_our_frame_never_counts(garbage: str) -> None:
    """Not even with our mark in front of it."""
    text = json.dumps({"topologyId": "a", "taskId": 1, "threadName": f"downspout1 {garbage}"}, separators=(",", ":"))
    assert decode(1000, text) == NOTHING


@given(BASE, GAPS)
def test_there_is_one_text_for_each_content(base: int, gaps: list[tuple[int, int]]) -> None:
    """Decoded and encoded again, the text is the same."""
    done = ranges_above(base, gaps)
    text = encode(base, topology_id="a", task=1, done=done)
    told = decode(base, text)
    assert encode(base, topology_id="a", task=1, done=iter(Ranges(told.done))) == text


SIGNED = '{{"topologyId":"a","taskId":1,"threadName":"{body} {checksum:08x}"}}'


@pytest.mark.parametrize(
    "word",
    [
        "",
        "x",
        "e",
        "r0",
        "r0.0",
        "r2",
        "e2",
        "r2.5",
        "r1.5.9",
        "r2.5.0",
        "r2.0.0",
        "r2.9.5",
        "e1.5.9",
        "e2.5.9.3",
        "r2.0.9.3",
        "r2.5.9.3.1",
        "r2.5.",
        "r.5.9",
        "r02.5.9",
        "r+2.5.9",
        "r2.05.9",
        "r2.5.-9",
        "R2.5.9",
        "2.5.9",
        "r2.5.9.-1",
        "r 2.5.9",
        "rr",
        "r2.5.9!",
        "w2.1.5.9.3.3",
        "w2.2.5.9.3",
        "w1.1.5.9",
        "w2.0.5.9",
        "w2.1.a.9",
        "w2.1.0.0",
        "h2.1.5.9.3",
        "w2",
        "h2",
        "w2.5.9",
        "r2,5,9",
        "r2.5.9.3 r",
        "r1.0.9",
        "e0.5.9",
    ],
)
def test_isolation_has_one_word(word: str) -> None:
    """A word that we would not write tells nothing, though the checksum is right; nor does its whole commit."""
    body = f"downspout1 rs 1.1 - {word}"
    text = SIGNED.format(body=body, checksum=zlib.crc32(f"a\n1\nT\n{body}".encode()))
    assert decode(1000, text, topic_id="T") == NOTHING
    assert author_for_another_topic(1000, text, topic_id="U") is None


@pytest.mark.parametrize(
    ("word", "isolation"),
    [
        ("r", AT_WORK),
        ("r1", Isolation(1)),
        ("e1", Isolation(1, ended=True)),
        ("w2.1.5.5", Isolation(2, 1, 1005, 1005)),
        ("w2.rs.5.9", Isolation(2, 1000, 1005, 1009)),
        ("w2.3h.0.9", Isolation(2, 125, 0, 1009)),
        ("w2.1.5.9.0", Isolation(2, 1, 1005, 1009, 1000)),
        ("w2.1.5.9.a", Isolation(2, 1, 1005, 1009, 1010)),
        ("h2.1.5.9", Isolation(2, 1, 1005, 1009, ended=True)),
        ("h2.7.0.9", Isolation(2, 7, 0, 1009, ended=True)),
        ("wa.1.1s.2s", Isolation(10, 1, 1064, 1100)),
    ],
)
def test_what_each_word_means(word: str, isolation: Isolation) -> None:
    """Written by hand, it is read; read, it is written so."""
    body = f"downspout1 rs 1.1 - {word}"
    text = SIGNED.format(body=body, checksum=zlib.crc32(f"a\n1\nT\n{body}".encode()))
    assert decode(1000, text, topic_id="T").isolation == isolation
    assert encode(1000, topology_id="a", task=1, topic_id="T", done=[(1001, 1002)], isolation=isolation) == text
    assert author_for_another_topic(1000, text, topic_id="U") == "a"


@pytest.mark.parametrize(
    ("word", "isolation"),
    [
        ("r2.5.9", Isolation(2, 1, 1005, 1009)),
        ("r2.0.9", Isolation(2, WINDOW, 0, 1009)),
        ("r2.5.9.0", Isolation(2, 1, 1005, 1009, 1000)),
        ("e2.5.9", Isolation(2, 1, 1005, 1009, ended=True)),
        ("e2.0.9", Isolation(2, WINDOW, 0, 1009, ended=True)),
    ],
)
def test_isolation_of_an_earlier_version_is_read(word: str, isolation: Isolation) -> None:
    """Where records were to go alone they do; where 100 and more were to go together, the first window's number do."""
    body = f"downspout1 rs 1.1 - {word}"
    text = SIGNED.format(body=body, checksum=zlib.crc32(f"a\n1\nT\n{body}".encode()))
    assert decode(1000, text, topic_id="T") == CommitMetadata("a", 1, ((1001, 1002),), {}, isolation)
    assert author_for_another_topic(1000, text, topic_id="U") == "a"


def test_metadata_of_an_earlier_version_is_read() -> None:
    """What was written before there was crash isolation comes back as an orderly end, and is still written so."""
    text = '{"topologyId":"flights-1","taskId":4,"threadName":"downspout1 2s 1.3 0.2 982da74d"}'
    assert decode(100, text) == CommitMetadata("flights-1", 4, ((101, 104),), {100: 2}, ENDED)
    assert encode(100, topology_id="flights-1", task=4, done=[(101, 104)], failures=[(100, 2)]) == text


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
