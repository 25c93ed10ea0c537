"""Which results of a partition are in a transaction: the same for a whole chunk as for each of its rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.errors import RecordError
from downspout.ledger import Origin, encode
from downspout.producing import Outgoing, PartitionCommit
from downspout.producing.transaction import CommittedOffsets, PartitionResults

OUT = "out"
BASE, RANGES = 3, [(5, 7)]


def progress() -> PartitionCommit:
    """Return a commit at 3, beyond which 5 and 6 are done."""
    return PartitionCommit("id", BASE, encode(BASE, done=RANGES, topology_id="t", task=1, topic_id="id"))


def origin_of(offset: int, path: str = "") -> Origin:
    return Origin("in", "id", 0, offset, path)


def record_of(offset: int) -> Outgoing:
    return Outgoing(None, b"%d" % offset)


class OneByOne:
    """What is to be found, as plainly as it can be said."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str, str]] = set()

    def is_new(self, offset: int, topic: str, path: str) -> bool:
        if offset < BASE or offset in (5, 6) or (offset, topic, path) in self.seen:
            return False
        self.seen.add((offset, topic, path))
        return True


CHUNKS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), min_size=1, max_size=8), st.sampled_from(["", "a.0"]), st.sampled_from([OUT, "o2"])
    ),
    max_size=12,
)


@given(CHUNKS, st.integers(0, 40), st.sets(st.integers(0, 30), max_size=2))
def test_a_chunk_is_taken_as_its_rows_would_be(
    chunks: list[tuple[list[int], str, str]], base: int, dead: set[int]
) -> None:
    """Whatever came before, in whatever order; and the end finds each offset that is not done, or dead."""
    results, plain = PartitionResults(progress()), OneByOne()
    for offsets, path, topic in chunks:
        rows = [(row, topic, record_of(offset)) for row, offset in enumerate(offsets)]
        expected = [plain.is_new(offset, topic, path) for offset in offsets]
        if results.are_new(np.array(offsets), path, rows):
            assert all(expected)
        else:
            found = [results.is_new(origin_of(o, path), topic, r) for o, (_, _, r) in zip(offsets, rows, strict=True)]
            assert found == expected
    done = CommittedOffsets(PartitionCommit("id", base))
    wrong = {offset for offset, _, _ in plain.seen if offset >= base or offset in dead}
    offset = results.not_in(done, dead)
    assert offset in wrong if wrong else offset is None


def test_chunks_that_follow_one_another_in_any_order_are_taken_whole() -> None:
    """With several tasks of a bolt before, they come out of order; a later row among them is still recognised."""
    results = PartitionResults(progress())
    for offsets in ([20, 22, 24], [7, 8], [11, 12]):
        rows = [(row, OUT, record_of(offset)) for row, offset in enumerate(offsets)]
        assert results.are_new(np.array(offsets), "", rows)
    assert not results.is_new(origin_of(22), OUT, record_of(22))
    assert results.is_new(origin_of(21), OUT, record_of(21))
    assert not results.is_new(origin_of(12), OUT, record_of(12))


def test_another_result_with_the_origin_of_a_chunks_row_is_an_error() -> None:
    """Its record would be doubled; the same result again is a late one."""
    results = PartitionResults(progress())
    assert results.are_new(np.array([10, 11]), "", [(0, OUT, record_of(10)), (1, OUT, record_of(11))])
    assert not results.is_new(origin_of(11), OUT, record_of(11))
    with pytest.raises(RecordError, match=r"two results for topic out have the same origin"):
        results.is_new(origin_of(10), OUT, Outgoing(None, b"another"))


def test_what_a_commit_holds_is_not_new_afterwards() -> None:
    results = PartitionResults(progress())
    assert results.is_new(origin_of(10), OUT, record_of(10))
    results.forget()
    assert results.is_new(origin_of(10), OUT, record_of(10))
    results.committed(PartitionCommit("id", 11))
    assert not results.is_new(origin_of(10), OUT, record_of(10))
    assert results.is_new(origin_of(11), OUT, record_of(11))
