from __future__ import annotations

import fcntl
import io
import json
import os
import resource
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pystorm.exceptions import StormWentAwayError
from pystorm.serializers.json_serializer import JSONSerializer

from downspout.wire import Pipe, WireSerializer, restore
from downspout.wire import pipe as wire_pipe
from tests.sampling import examples
from tests.waiting import eventually
from tests.wire.test_values import exactly

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
MESSAGES = st.lists(st.lists(JSON, max_size=4) | st.dictionaries(st.text(), JSON, max_size=4), max_size=6)


class Pieces(io.RawIOBase):
    """A source whose reads return pieces of given sizes, then the rest."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        count = self._sizes.pop(0) if self._sizes else len(self._data)
        piece, self._data = self._data[:count], self._data[count:]
        return piece


def ours(source: Any, sink: Any = None) -> WireSerializer:
    return WireSerializer(source, sink or io.BytesIO(), threading.RLock(), threading.RLock())


def stock(source: Any, sink: Any = None) -> JSONSerializer:
    return JSONSerializer(source, sink or io.BytesIO(), threading.RLock(), threading.RLock())


def read_all(serializer: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(serializer.read_message())
        except StormWentAwayError:
            return found


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    messages=MESSAGES,
    sizes=st.lists(st.integers(1, 40), max_size=60),
    newline=st.sampled_from(["\n", "\r\n"]),
    blank=st.integers(0, 2),
    indent=st.sampled_from([None, 1]),
    cut=st.integers(0, 12),
)
def test_the_same_messages_as_pystorm_reads(
    messages: list[Any], sizes: list[int], newline: str, blank: int, indent: int | None, cut: int
) -> None:
    """In whatever pieces, with CRLF, blank lines, messages of several lines, cut off at the end: same in, same out."""
    texts = [newline * blank + json.dumps(message, indent=indent) + "\nend\n" for message in messages]
    text = "".join(texts).replace("\n", newline) if newline == "\r\n" else "".join(texts)
    data = text.replace("\r\r\n", "\r\n").encode()[: max(len(text.encode()) - cut, 0)].removesuffix(b"\r")
    mine = read_all(ours(Pieces(data, list(sizes))))
    # What begins with NUL is a mark of ours, and all else is as pystorm has it.
    theirs = [restore(message) for message in read_all(stock(io.BytesIO(data)))]
    assert exactly(mine) == exactly(theirs)


@pytest.mark.slow
@given(MESSAGES)
def test_pystorm_reads_what_we_write(messages: list[Any]) -> None:
    """What our serializer sends, pystorm's reads: the same messages, in order, marks aside."""
    sink = io.BytesIO()
    serializer = ours(io.BytesIO(), sink)
    for message in messages:
        serializer.send_message({"values": message})
    serializer.flush()
    heard = [restore(message) for message in read_all(stock(io.BytesIO(sink.getvalue())))]
    assert exactly(heard) == exactly([{"values": message} for message in messages])


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 3_000_000])
def test_messages_of_any_size_pass_a_real_pipe(size: int) -> None:
    """Larger than a read, larger than the operating system's pipe: nothing is cut."""
    source, sink = os.pipe()
    with os.fdopen(source, "rb", 0) as reading, os.fdopen(sink, "wb", 0) as writing:
        sender, receiver = ours(io.BytesIO(), writing), ours(reading)

        def send() -> None:
            for number in range(3):
                sender.send_message({"n": number, "x": "x" * size})
            sender.flush()

        thread = threading.Thread(target=send)
        thread.start()
        heard = [receiver.read_message() for _ in range(3)]
        thread.join()
    assert [(message["n"], len(message["x"])) for message in heard] == [(0, size), (1, size), (2, size)]


class Recorder:
    """Streams in memory that note when bytes are asked for and when they leave."""

    def __init__(self, *pieces: bytes) -> None:
        self.events: list[str] = []
        self._pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        self.events.append("read")
        return self._pieces.pop(0) if self._pieces else b""

    def write(self, data: bytes) -> int:
        self.events.append(data.replace(b"\nend\n", b";").decode())
        return len(data)

    def flush(self) -> None:
        pass


def recorded(*pieces: bytes) -> tuple[Pipe, list[str]]:
    streams = Recorder(*pieces)
    return Pipe(streams, streams, threading.RLock(), threading.RLock()), streams.events


def test_what_is_held_leaves_before_a_read_that_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages leave together, and never after the component has gone to sleep."""
    monkeypatch.setattr(wire_pipe, "HELD_S", 60.0)
    pipe, events = recorded(b"1\nend\n2\nend\n3\ne", b"nd\n")
    assert pipe.read() == b"1"
    pipe.write(b"a")
    assert pipe.read() == b"2"  # was buffered: no read, nothing leaves
    pipe.write(b"b")
    assert events == ["read"]
    assert pipe.read() == b"3"
    assert events == ["read", "a;b;", "read"]


def test_a_message_that_must_not_wait_takes_the_others_along() -> None:
    """A sync leaves at once, behind what was written before it."""
    pipe, events = recorded()
    pipe.write(b"emit")
    pipe.write(b"sync", now=True)
    assert events == ["emit;sync;"]


def test_much_output_does_not_wait() -> None:
    """At 64 KiB what is held leaves, so memory is bounded however many tuples one call emits."""
    pipe, events = recorded()
    for _ in range(70):
        pipe.write(b"x" * 1024)
    assert len(events) == 1
    assert len(events[0]) >= 64 * 1024


def test_output_does_not_wait_while_messages_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """A component that never has to wait for input lets go of its output all the same."""
    now = [100.0]
    monkeypatch.setattr(wire_pipe.time, "monotonic", lambda: now[0])
    pipe, events = recorded(b"".join(b"%d\nend\n" % n for n in range(9)))
    for step in range(9):
        pipe.read()
        pipe.write(b"%d" % step)
        now[0] += 0.004
    assert events == ["read", "0;1;2;", "3;4;5;"]


def test_a_thread_that_writes_while_the_reader_waits_is_heard_at_once() -> None:
    """A batching bolt's timer thread emits while the main thread waits for a tuple: nobody else would flush."""
    source, feed = os.pipe()
    heard, sink = os.pipe()
    with os.fdopen(source, "rb", 0) as reading, os.fdopen(sink, "wb", 0) as writing:
        pipe = Pipe(reading, writing, threading.RLock(), threading.RLock())
        reader = threading.Thread(target=pipe.read)
        reader.start()
        eventually(lambda: pipe.waits, every_s=0.001)
        pipe.write(b"from the timer")
        assert os.read(heard, 100) == b"from the timer\nend\n"
        os.write(feed, b"x\nend\n")
        reader.join()
    os.close(feed)
    os.close(heard)


def test_the_end_of_input_in_the_middle_of_a_message() -> None:
    pipe, _ = recorded(b'1\nend\n{"half')
    assert pipe.read() == b"1"
    with pytest.raises(StormWentAwayError):
        pipe.read()


def test_nobody_reads_any_more() -> None:
    """A closed pipe is Storm going away, and what is written later is dropped without another error."""
    heard, sink = os.pipe()
    os.close(heard)
    with os.fdopen(sink, "wb", 0) as writing:
        pipe = Pipe(io.BytesIO(), writing, threading.RLock(), threading.RLock())
        with pytest.raises(StormWentAwayError):
            pipe.write(b"x", now=True)
        pipe.write(b"y", now=True)


def test_a_bolt_with_many_open_files_reads_on() -> None:
    """Descriptors above 1,023, which select() refuses: a sink of many Hive folders opens Storm's pipe late."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if wanted <= 1500:
        pytest.skip(f"this machine allows {hard} open files")
    source, feed = os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        high = fcntl.fcntl(source, fcntl.F_DUPFD, 1500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with os.fdopen(high, "rb", 0) as reading:
        pipe = Pipe(reading, io.BytesIO(), threading.RLock(), threading.RLock())
        assert pipe.is_quiet(0.001)
        os.write(feed, b"x\nend\n")
        assert not pipe.is_quiet(60)
        assert pipe.read() == b"x"
        os.close(feed)
        assert not pipe.is_quiet(60), "the end of input is something to read"
    os.close(source)
