"""Chunks that are taken apart for Storm: an answer is counted once."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.wire.chunks import ChunkSplitter, SharedIds


def opened(count: int) -> tuple[ChunkSplitter, list[Any]]:
    """Return a chunk of so many records that was taken apart, and the ids of these."""
    parts = ChunkSplitter()
    parts.take_apart({"id": "17"}, [(number,) for number in range(count)], count)
    return parts, [message["id"] for message in iter(parts.next, None)]


def test_a_record_that_is_acked_twice_stands_for_no_other() -> None:
    """Storm hears of a chunk when each of its records was acked, however often one of them was."""
    parts, (first, second, third) = opened(3)
    answers = [parts.settle(one, failed=False) for one in (first, first, second, second, first, third, third)]
    assert answers == [None] * 5 + ["17", None]


@pytest.mark.parametrize("late", [False, True], ids=["acks", "fails"])
def test_what_comes_after_a_fail_is_dropped(late: bool) -> None:
    """The first fail is the chunk's; Storm's ShellBolt would end the worker if it heard of the chunk again."""
    parts, (first, second, third) = opened(3)
    assert parts.settle(first, failed=False) is None
    assert parts.settle(second, failed=True) == "17"
    assert [parts.settle(one, failed=late) for one in (first, second, third)] == [None] * 3


def test_answers_to_an_earlier_emit_of_a_chunk_do_not_count() -> None:
    """A chunk that failed and came again shares another id: late acks of the first emit complete nothing."""
    shares = SharedIds()
    earlier = shares.open("chunk", 2)
    assert shares.answer({"command": "fail", "id": earlier}) == {"command": "fail", "id": "chunk"}
    later = shares.open("chunk", 2)
    assert [shares.answer({"command": "ack", "id": one}) for one in (earlier, later, earlier)] == [None] * 3
    assert shares.answer({"command": "ack", "id": later}) == {"command": "ack", "id": "chunk"}
