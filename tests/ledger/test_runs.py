"""Many small ranges in few characters, and what is made of characters that nobody wrote."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import BYTES_MAX, NOTHING, decode, encode
from downspout.ledger.metadata import TEXT_MAX, shorten
from downspout.ledger.runs import pack, unpack
from tests.ledger.test_metadata import ranges_above

LENGTH = st.one_of(st.integers(1, 3), st.integers(1, 300), st.integers(1, 2**62))
GAPS = st.lists(st.tuples(LENGTH, LENGTH), max_size=200)
DAMAGE = random.Random(7)


def alternating(holes: int, base: int = 0) -> list[tuple[int, int]]:
    """Return ranges of one offset each, after holes of one offset each."""
    return [(base + 2 * hole + 1, base + 2 * hole + 2) for hole in range(holes)]


def told(base: int, ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return what a commit with 4,096 bytes of metadata tells the next owner of ranges."""
    text = encode(base, topology_id="a-topology-of-usual-name-1-1763900000", task=12, topic_id="i" * 22, done=ranges)
    assert len(text) <= BYTES_MAX
    return decode(base, text, topic_id="i" * 22).done


@given(st.integers(0, 2**63), GAPS, st.integers(0, 4000))
def test_what_is_packed_is_unpacked(base: int, gaps: list[tuple[int, int]], room: int) -> None:
    """Of any ranges the lowest come back, as many as there was room for, and the text is the only one for these."""
    ranges = ranges_above(base, gaps)
    text, count = pack(base, ranges, room)
    assert len(text) <= max(room, 0)
    if count:
        assert unpack(base, text) == ranges[:count]
        assert pack(base, ranges[:count], len(text)) == (text, count)
    if room >= 2 + 42 * len(ranges):
        assert count == len(ranges)


@pytest.mark.parametrize("holes", [1_000, 8_000, 10_000])
def test_thousands_of_alternating_holes_fit(holes: int) -> None:
    """With every second of 20,000 records done, none is processed again."""
    assert told(918, alternating(holes, 918)) == tuple(alternating(holes, 918))


def test_beyond_the_limit_the_highest_ranges_are_left_out() -> None:
    """Of 100,000 alternating holes more than 11,000 are told: the lowest."""
    ranges = alternating(100_000)
    found = told(0, ranges)
    assert len(found) > 11_000
    assert list(found) == ranges[: len(found)]


def test_a_record_in_a_thousand_that_is_not_done_fits_two_thousand_times() -> None:
    """Holes of one record that are far apart take 13 bits or so each."""
    chance = random.Random(3)
    ranges = ranges_above(0, [(1, chance.randint(1, 2_000)) for _ in range(2_500)])
    assert len(told(0, ranges)) > 1_500


def test_few_ranges_have_the_form_that_earlier_versions_read() -> None:
    """What fits into the first form is written in it, and is not packed."""
    text = encode(100, topology_id="t", task=1, done=alternating(300, 100))
    assert '"downspout1 ' in text
    assert '"downspout2 ' in encode(100, topology_id="t", task=1, done=alternating(3_000, 100))


def test_failures_and_a_watch_travel_with_packed_ranges() -> None:
    """All that the first form tells, the second tells too; another topic's or another offset's is nothing."""
    failures = {100 + 2 * n: n + 1 for n in range(50)}
    text = encode(100, topology_id="t", task=1, topic_id="id", done=alternating(5_000, 100), failures=failures.items())
    found = decode(100, text, topic_id="id")
    assert (found.topology_id, found.task, dict(found.failures)) == ("t", 1, failures)
    assert list(found.done) == alternating(5_000, 100)
    assert decode(100, text, topic_id="other") == decode(101, text, topic_id="id") == NOTHING


def test_metadata_is_shortened_to_what_fits() -> None:
    """A shorter text tells the lowest ranges of the longer one; where nothing fits, it is empty."""
    text = encode(0, topology_id="t", task=1, topic_id="id", done=alternating(10_000))
    for bytes_max in (3_000, 1_000, 200):
        short = shorten(0, text, topic_id="id", bytes_max=bytes_max)
        found = decode(0, short, topic_id="id").done
        assert len(short) <= bytes_max
        assert found
        assert list(found) == alternating(10_000)[: len(found)]
    assert shorten(0, text, topic_id="id", bytes_max=20) == ""


@given(st.text("0123456789abcdefghijklmnopqrstuvwxyzABCXYZ-_=/+é ", max_size=60))
def test_garbage_is_a_value_error(text: str) -> None:
    """Nothing else is ever raised, and what is accepted is what would be written."""
    try:
        ranges = unpack(5, text)
    except ValueError:
        return
    assert pack(5, ranges, len(text)) == (text, len(ranges))


def test_every_damage_of_packed_metadata_is_rejected() -> None:
    """A flipped bit or a cut tells nothing; in particular no range."""
    text = encode(7, topology_id="t", task=1, done=alternating(2_000, 7))
    for _ in range(300):
        at, bit = DAMAGE.randrange(len(text)), 1 << DAMAGE.randrange(7)
        damaged = text[:at] + chr(ord(text[at]) ^ bit) + text[at + 1 :]
        found = decode(7, damaged)
        assert found == NOTHING or not found.done
        assert not decode(7, text[:at]).done


@pytest.mark.parametrize("fill", ["A", "_", "g", "AB", "gA"])
def test_hostile_text_takes_no_more_memory_than_its_size(fill: str) -> None:
    """The longest text that is looked at, of any one pattern: it is no bomb."""
    text = "v0" + (fill * TEXT_MAX)[: TEXT_MAX - 300]
    thread = f"downspout2 0/{text}/- 00000000"
    metadata = f'{{"topologyId":"t","taskId":1,"threadName":"{thread}"}}'
    assert len(metadata) < TEXT_MAX
    tracemalloc.start()
    decode(0, metadata)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 1024 * 1024


def test_an_earlier_version_takes_the_owner_from_it() -> None:
    """Its rule: three words, of which the first is not its own, are another spout's; it takes owner and task."""
    text = encode(0, topology_id="t", task=1, done=alternating(5_000))
    thread = text.split('"threadName":"')[1].rstrip('"}')
    assert not thread.startswith("downspout1")
    assert len(thread.split(" ")) == 3
