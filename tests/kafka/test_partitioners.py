"""Where records go: keys as Kafka's Java client hashes them, and records without a key by turns or in batches."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as clients_murmur2

from downspout.errors import ConfigError
from downspout.kafka import Partitions, partition_of_key
from downspout.kafka.partitioners import PARTITIONERS, check_partition, make_partitioner, murmur2, murmur2_many

VECTORS = {  # of Kafka's own tests of its Java client
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
ALL = Partitions(4, range(4))
HALF = Partitions(4, (1, 3))
NONE = Partitions(4, ())


@pytest.mark.parametrize("key", VECTORS, ids=bytes.decode)
def test_hashes_are_those_of_kafkas_java_client(key: bytes) -> None:
    """The vectors of Kafka's own tests hold, for one key and for many."""
    assert murmur2(key) == VECTORS[key]
    assert murmur2_many(key, np.array([0]), np.array([len(key)])).tolist() == [VECTORS[key]]


@given(st.lists(st.binary(max_size=40), max_size=30))
@example([b"", b"x" * 255, b"y" * 256, b"z" * 257, b"\xff" * 1000])
def test_many_keys_are_hashed_as_each_alone(keys: list[bytes]) -> None:
    """Keys of any bytes and lengths, at any place in a buffer, have the hash that they have alone, and the client's."""
    lengths = np.array([len(key) for key in keys], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths + 3
    found = murmur2_many(b"___" + b"".join(keys), starts, lengths)
    assert found.tolist() == [murmur2(key) for key in keys]
    assert [int(each) & 0xFFFFFFFF for each in found] == [clients_murmur2(key) for key in keys]


@pytest.mark.parametrize("name", ["sticky", "round_robin"])
@given(key=st.binary(max_size=20))
def test_a_key_decides_whatever_partitions_have_a_leader(name: str, key: bytes) -> None:
    partitioner = make_partitioner(name, random.Random(1))
    chosen = {partitioner.choose("t", key, None, partitions) for partitions in (ALL, HALF, NONE)}
    assert chosen == {partition_of_key(key, 4)}


def test_turns_are_taken_from_a_random_partition_on() -> None:
    """Round robin begins anywhere and goes on with the next one that has a leader, for each topic by itself."""
    firsts = set()
    for seed in range(20):
        turns = make_partitioner("round_robin", random.Random(seed))
        found = [turns.choose("t", None, None, ALL) for _ in range(8)]
        assert [(number - found[0]) % 4 for number in found] == [0, 1, 2, 3] * 2
        assert Counter(turns.choose("other", None, None, HALF) for _ in range(8)) == {1: 4, 3: 4}
        firsts.add(found[0])
    assert firsts == {0, 1, 2, 3}


def test_sticky_stays_until_the_batch_is_full() -> None:
    """Records without a key go to one partition until its batch is full, or it has no leader any more."""
    sticky = make_partitioner("sticky", random.Random(1))
    first = sticky.choose("t", None, None, ALL)
    assert {sticky.choose("t", None, None, ALL) for _ in range(50)} == {first}
    sticky.batch_full("t", (first + 1) % 4)
    assert sticky.choose("t", None, None, ALL) == first
    seen = set()
    for _ in range(100):
        seen.add(chosen := sticky.choose("t", None, None, ALL))
        sticky.batch_full("t", chosen)
    assert seen == {0, 1, 2, 3}
    left = sticky.choose("t", None, None, ALL)
    others = Partitions(4, [number for number in range(4) if number != left])
    assert sticky.choose("t", None, None, others) != left


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_record_without_a_key_goes_where_a_leader_is(name: str) -> None:
    """Partitions without a leader are left out; while none has one, any will do."""
    partitioner = make_partitioner(name, random.Random(1))
    for _ in range(20):
        chosen = partitioner.choose("t", None, None, HALF)
        assert chosen in (1, 3)
        partitioner.batch_full("t", chosen)
        assert 0 <= partitioner.choose("u", None, None, NONE) < 4


def by_length(topic: str, key: bytes | None, value: bytes | None, partitions: Partitions) -> int:
    return len(value or b"")


@pytest.mark.parametrize("wanted", [by_length, f"{__name__}.by_length"], ids=["function", "import path"])
def test_a_function_may_decide(wanted: Any) -> None:
    """A user's function is asked for keyed records too; a partition that there is not is an error that says so."""
    chosen = make_partitioner(wanted, random.Random(1))
    assert chosen.choose("t", b"key", b"ab", ALL) == 2
    with pytest.raises(ValueError, match="t has no partition 4: it has 4, numbered from 0 to 3"):
        chosen.choose("t", None, b"abcd", ALL)


@pytest.mark.parametrize("partition", [-1, 4, True, "1", 1.0])
def test_a_partition_that_there_is_not_is_an_error(partition: Any) -> None:
    """Negative, not below the count, or no whole number: the error tells the count."""
    with pytest.raises(ValueError, match=r"t has no partition .*: it has 4, numbered"):
        check_partition(partition, "t", 4)


@pytest.mark.parametrize("wanted", ["stcky", "nowhere.choose"])
def test_an_unknown_partitioner_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"produce\.partitioner = "):
        make_partitioner(wanted, random.Random(1), "produce.partitioner")
