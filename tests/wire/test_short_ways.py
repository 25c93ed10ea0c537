"""Faster replacements of pystorm's methods write the same output."""

from __future__ import annotations

import threading
from typing import Any

import streamparse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pystorm.component import Tuple

from downspout.wire import Pipe, WireSerializer, acker, emitter, restore
from tests.wire.storm_pipe import Sink, Source


class Spout(streamparse.Spout):
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_message(self, message: Any) -> None:
        self.sent.append(message)

    def read_task_ids(self) -> list[int]:
        return [7]


@settings(deadline=None)
@given(
    st.one_of(st.lists(st.integers(), max_size=3), st.lists(st.integers(), max_size=3).map(tuple)),
    st.one_of(st.none(), st.text()),
    st.one_of(st.none(), st.just("late")),
    st.one_of(st.none(), st.just(4)),
)
def test_emits_are_those_of_pystorm(values: Any, tup_id: str | None, stream: str | None, task: int | None) -> None:
    """Whatever a spout emits, with or without id, stream and task, the message is the same."""
    stock, short = Spout(), Spout()
    stock.emit(values, tup_id=tup_id, stream=stream, direct_task=task)
    assert emitter(short.sent.append, short.emit)(values, tup_id, stream, task) is None
    assert short.sent == stock.sent


def test_task_ids_are_those_that_storm_tells() -> None:
    """An emit that asks for task ids gets them, as with pystorm."""
    spout = Spout()
    spout._reader_lock = spout._writer_lock = threading.RLock()
    assert emitter(spout.sent.append, spout.emit)([1], need_task_ids=True) == [7]


@settings(deadline=None)
@given(st.one_of(st.integers(-(2**63), 2**63 - 1).map(str), st.text()), st.booleans())
@example('1","x":"', False)
@example("²", True)
@example("--1", False)
def test_acks_name_the_tuple(tup_id: str, as_tuple: bool) -> None:
    """An ack is JSON with the tuple's id, also where that is none of Storm's."""
    sink, lock = Sink(), threading.RLock()
    serializer = WireSerializer(Source(lambda: None), sink, lock, lock)

    def stock(tup: Any) -> None:
        serializer.send_message({"command": "ack", "id": tup.id if isinstance(tup, Tuple) else tup})

    acker(serializer.pipe, stock)(Tuple(tup_id, "spout", "default", 1, ()) if as_tuple else tup_id)
    serializer.flush()
    assert [restore(message) for message in sink.said] == [{"command": "ack", "id": tup_id}]


def test_messages_end_as_storm_wants_them() -> None:
    """What is written together has an end behind each message, and none is empty."""
    written: list[bytes] = []

    class Raw:
        def write(self, data: bytes) -> None:
            written.append(bytes(data))

        def flush(self) -> None:
            pass

    lock = threading.RLock()
    pipe = Pipe(Source(lambda: None), Raw(), lock, lock)
    for message in (b"a", b"b", b"c"):
        pipe.write(message)
    pipe.flush()
    pipe.flush()
    pipe.write(b"d", now=True)
    assert written == [b"a\nend\nb\nend\nc\nend\n", b"d\nend\n"]
