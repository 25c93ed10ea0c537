"""Frames over a pair of streams: messages that end in a line ``end``, read and written in few, large pieces.

*Reading* takes what is there, at most 64 KiB (pystorm asks for 1 MiB, which costs fifteen times as much per read), and
never waits while a whole message is buffered.

*Writing* collects. What is collected leaves (1) before a read that may wait, (2) at 64 KiB, (3) when the next message
is read and 10 ms have passed, (4) when asked, and (5) at once while another thread waits in a read. The fifth is for
components with threads: the reader has flushed and sleeps, so nothing else would. The walk through the race: the reader
takes the writer's lock, flushes and says that it waits, all under that lock; a writer adds its message under the lock
and then looks. Either it came before, and the reader flushes its message, or after, and it sees that the reader waits.

A signal may interrupt a wait, by raising: nothing that was read is lost, and the pipe can be used on.

**stderr.** Storm reads what a component writes to stderr only now and then, and never while it waits for a message. A
pipe holds 64 KiB, so a component, or a program that it starts, that writes more in one call would block for ever, and
Storm with it. :class:`Stderr` reads descriptor 2 in a thread and logs it through Storm.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pystorm.exceptions import StormWentAwayError

READ_BYTES = 64 * 1024
HELD_BYTES = 64 * 1024
HELD_S = 0.01  # What is written waits no longer than this for company, if messages keep coming
END = b"\nend\n"


class Lock(Protocol):
    """What threading.RLock makes."""

    def __enter__(self) -> bool:
        """Take it."""

    def __exit__(self, *args: object) -> None:
        """Release it."""


class Pipe:
    """Two streams: binary files with a descriptor, or anything that has ``read`` and ``write``."""

    def __init__(self, source: Any, sink: Any, reader_lock: Lock, writer_lock: Lock) -> None:
        self._source, self.sink = source, sink
        self._source_number, self._sink_number = _descriptor(source), _descriptor(sink)
        self._reader_lock, self._writer_lock = reader_lock, writer_lock
        self._frames: deque[bytes] = deque()
        self._rest = bytearray()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._flushed_at = 0.0
        self.waits = False
        self.idle: Callable[[], None] | None = None  # called before a wait while nothing is there to be read
        self.rest: Callable[[], None] | None = None  # called before each wait: all that was read is done with, or held
        self.interruptible = False  # a signal handler may raise StormWentAwayError now: the component waits for Storm
        self.leaving = False  # set by such a handler; the next wait raises
        self.gone = False  # Storm is not at the other end any more

    # --- reading ---

    def read(self) -> bytes:
        """Return the next message without its end. Raises StormWentAwayError: there will be none."""
        with self._reader_lock:
            if not self._frames:
                self._fill()
            else:
                self.flush_old()
            return self._frames.popleft()

    def _fill(self) -> None:
        """Wait for bytes until a message is whole."""
        rest = self._rest
        while True:
            if self.idle is not None and not self._is_readable():
                self.idle()
                if self._frames:  # it has asked Storm for something, and read on
                    return
            if self.rest is not None:
                self.rest()
            with self._writer_lock:
                self.flush()
                self.waits = True
            try:
                piece = self._read_some()
            finally:
                self.waits = False
            if not piece:
                self.gone = True
                raise StormWentAwayError()
            searched = max(len(rest) - len(END), 0)
            foreign = b"\r" in piece or rest.endswith(b"\r")
            rest += piece
            if foreign:
                rest[:] = rest.replace(b"\r\n", b"\n")  # there is no raw one inside JSON texts
                searched = 0
            if rest.find(END, searched) >= 0:
                break
        whole = bytes(rest).split(END)
        rest[:] = whole.pop()
        self._frames.extend(whole)

    def is_quiet(self, wait_s: float) -> bool:
        """Wait for that time; return whether nothing came, and no end was requested. False if unknown."""
        return self._source_number is not None and not self._is_readable(wait_s) and not self.leaving

    def _is_readable(self, wait_s: float = 0.0) -> bool:
        return self._source_number is not None and bool(select.select([self._source_number], [], [], wait_s)[0])

    def _read_some(self) -> bytes:
        # A handler that raises does so only between these two, so a signal that came before is seen here, and one that
        # comes later interrupts the read.
        self.interruptible = True
        try:
            if self.leaving:
                self.gone = True
                raise StormWentAwayError()
            if self._source_number is not None:
                return os.read(self._source_number, READ_BYTES)
            return bytes(self._source.read1(READ_BYTES))
        finally:
            self.interruptible = False

    # --- writing ---

    def write(self, message: bytes, now: bool = False) -> None:
        """Take a message; ``now`` lets it leave at once. Raises StormWentAwayError: nothing reads at the other end."""
        with self._writer_lock:
            self._held.append(message)
            self._held_bytes += len(message)
            if now or self.waits or self._held_bytes >= HELD_BYTES:
                self.flush()

    def flush_old(self) -> None:
        """Let everything leave that is held, if nothing has left for :data:`HELD_S`; raises as :meth:`flush`."""
        if self._held and time.monotonic() - self._flushed_at > HELD_S:
            self.flush()

    def flush(self) -> None:
        """Let everything leave that is held."""
        with self._writer_lock:
            self._flushed_at = time.monotonic()
            if not self._held:
                return
            self._held.append(b"")  # so that the last message has an end, too
            data = END.join(self._held)
            self._held.clear()
            self._held_bytes = 0
            if self.gone:
                return
            try:
                self._write_all(data)
            except (OSError, ValueError, StormWentAwayError):  # a closed file is a ValueError
                self.gone = True
                raise StormWentAwayError() from None

    def _write_all(self, data: bytes) -> None:
        if self._sink_number is None:
            self.sink.write(data)
            self.sink.flush()
            return
        left = memoryview(data)
        # A full pipe without a reader would block for ever. But a signal's handler runs in the main thread, and raises
        # there: another thread that writes, such as that of stderr, says nothing of whether the main thread may be
        # interrupted. If it said so, the handler would raise in the middle of something; and behind it, while the main
        # thread waits for Storm, it would say no.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self.interruptible = True
        try:
            while left:
                left = left[os.write(self._sink_number, left) :]
        finally:
            if is_main:
                self.interruptible = False


def _descriptor(stream: Any) -> int | None:
    """Return a file's descriptor; None where it is a file in memory."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number if isinstance(number, int) else None


LINE_MAX = 8_192  # Bytes from which on a line is logged in parts
WAITING_MAX = 1_000  # Lines that are kept until Storm takes messages; the first ones go
END_S = 1.0  # For what is still in the pipe when the component ends; a program that it started may hold it open


class Stderr:
    """Takes the place of descriptors 2 and 1 until :meth:`close`.

    Args:
        log: sends a line to Storm, and returns whether it could; a line that it could not send goes to where descriptor
            2 led before. Called by one thread, and not before :meth:`begin`.
    """

    def __init__(self, log: Callable[[str], bool]) -> None:
        self._log = log
        self._kept = os.dup(2)
        self._is_closed = False
        self._out, into = os.pipe()
        os.dup2(into, 2)
        os.dup2(into, 1)  # what a program that the component starts prints
        os.close(into)
        self._waiting: deque[str] | None = deque(maxlen=WAITING_MAX)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="downspout-stderr", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Log from now on, and what was written before: Storm has taken its first message, which no log may be."""
        with self._lock:
            waiting, self._waiting = self._waiting or (), None
            for line in waiting:
                self._send(line)

    def close(self) -> None:
        """Give the descriptors back, once all that was written is logged; what could not be, is written there."""
        if self._is_closed:
            return
        self._is_closed = True
        os.dup2(self._kept, 2)
        os.dup2(self._kept, 1)
        self._thread.join(END_S)
        with self._lock:
            waiting, self._waiting = self._waiting or (), None
            for line in waiting:  # Storm has never taken a message
                self._write(line)

    def _send(self, line: str) -> None:
        if not self._log(line):
            self._write(line)

    def _write(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._kept, f"{line}\n".encode())

    def _read(self) -> None:
        begun = b""
        while data := os.read(self._out, 65_536):
            *lines, begun = (begun + data).split(b"\n")
            if len(begun) >= LINE_MAX:
                lines, begun = [*lines, begun], b""
            for line in lines:
                self._take(line)
        if begun:
            self._take(begun)

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        for at in range(0, len(text), LINE_MAX):
            with self._lock:
                if self._waiting is None:
                    self._send(text[at : at + LINE_MAX])
                else:
                    self._waiting.append(text[at : at + LINE_MAX])
