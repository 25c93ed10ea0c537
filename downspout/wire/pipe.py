"""Messages over a pair of streams, each ended by a line ``end``; read and written in few, large pieces.

*Reading* takes at most 64 KiB at a time (pystorm asks for 1 MiB, which costs fifteen times as much per read), and never
waits while a whole message is buffered.

*Writing* is buffered. The buffer is flushed (1) before a read that may block, (2) at 64 KiB, (3) when the next message
is read and 10 ms have passed, (4) on request, and (5) at once while another thread blocks in a read. The fifth is for
components with threads: the reader has flushed and sleeps, so no other rule would apply. It does not race: the reader
takes the writer's lock, flushes and sets ``waits`` under that lock; a writer appends its message and then checks
``waits`` under the same lock. If the writer comes first, the reader flushes its message; otherwise it sees that the
reader waits.

A signal handler may interrupt a wait by raising: no data is lost, and the pipe remains usable.

**stderr.** Storm reads a component's stderr only now and then, and never while it waits for a message. A pipe holds 64
KiB, so a component, or a program that it starts, that writes more in one call would block for ever, and Storm with it.
:class:`Stderr` reads descriptor 2 in a thread and logs it through Storm.
"""

from __future__ import annotations

import math
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
HELD_S = 0.01  # How long written messages may stay buffered while messages keep arriving
END = b"\nend\n"


class Lock(Protocol):
    """The type of ``threading.RLock()``."""

    def __enter__(self) -> bool:
        """Acquire the lock."""

    def __exit__(self, *args: object) -> None:
        """Release the lock."""


class Pipe:
    """Messages over two streams: binary files with a descriptor, or objects with ``read1`` and ``write``."""

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
        self.idle: Callable[[], None] | None = None  # called before a read that would block
        self.rest: Callable[[], None] | None = None  # called before each read: every message so far is done or held
        self.interruptible = False  # a signal handler may raise StormWentAwayError now: the component waits for Storm
        self.leaving = False  # set by such a handler; the next wait raises
        self.gone = False  # Storm has closed its end

    # --- reading ---

    def read(self) -> bytes:
        """Return the next message without its end. Raises StormWentAwayError: Storm has closed its end."""
        with self._reader_lock:
            if not self._frames:
                self._fill()
            else:
                self.flush_old()
            return self._frames.popleft()

    def _fill(self) -> None:
        """Read until a message is complete."""
        rest = self._rest
        while True:
            if self.idle is not None and not self._is_readable():
                self.idle()
                if self._frames:  # it waited for Storm's answer and read further messages
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
                rest[:] = rest.replace(b"\r\n", b"\n")  # JSON texts contain no raw line breaks
                searched = 0
            if rest.find(END, searched) >= 0:
                break
        whole = bytes(rest).split(END)
        rest[:] = whole.pop()
        self._frames.extend(whole)

    def is_quiet(self, wait_s: float) -> bool:
        """Return whether no input and no request to exit arrives within ``wait_s``. False if unknown."""
        return self._source_number is not None and not self._is_readable(wait_s) and not self.leaving

    def _is_readable(self, wait_s: float = 0.0) -> bool:
        if self._source_number is None:
            return False
        poll = select.poll()  # select() refuses descriptors from 1,024 on, which a bolt with many files gets to
        poll.register(self._source_number, select.POLLIN)
        return bool(poll.poll(math.ceil(wait_s * 1000)))

    def _read_some(self) -> bytes:
        # A handler raises only while ``interruptible`` is set. An earlier signal has set ``leaving``, checked below; a
        # later one interrupts the read.
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
        """Buffer a message; ``now`` flushes it at once. Raises StormWentAwayError: Storm has closed its end."""
        with self._writer_lock:
            self._held.append(message)
            self._held_bytes += len(message)
            if now or self.waits or self._held_bytes >= HELD_BYTES:
                self.flush()

    def flush_old(self) -> None:
        """Flush if the last flush is more than :data:`HELD_S` ago; raises as :meth:`flush`."""
        if self._held and time.monotonic() - self._flushed_at > HELD_S:
            self.flush()

    def flush(self) -> None:
        """Send all buffered messages. Raises StormWentAwayError: Storm has closed its end."""
        with self._writer_lock:
            self._flushed_at = time.monotonic()
            if not self._held:
                return
            self._held.append(b"")  # so that the last message is ended, too
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
        # A full pipe that nobody reads would block for ever, so a signal may interrupt the write. Handlers run and
        # raise in the main thread, so only that thread sets the flag. If another one (that of stderr) set it, a handler
        # could raise while the main thread processes a tuple; and clearing it afterwards would make the main thread's
        # own wait uninterruptible.
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
    """Return a file's descriptor; None for a file in memory."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number if isinstance(number, int) else None


LINE_MAX = 8_192  # Longer lines are logged in parts of so many bytes
WAITING_MAX = 1_000  # Lines kept until Storm accepts messages; the oldest are dropped
END_S = 1.0  # To drain the pipe when the component ends; a program that it started may hold it open


class Stderr:
    """Redirects descriptors 2 and 1 to Storm's log until :meth:`close`.

    Args:
        log: sends a line to Storm and returns whether it succeeded; if not, the line is written to the original
            descriptor 2. Called by one thread, and not before :meth:`begin`.
    """

    def __init__(self, log: Callable[[str], bool]) -> None:
        self._log = log
        self._kept = os.dup(2)
        self._is_closed = False
        self._out, into = os.pipe()
        os.dup2(into, 2)
        os.dup2(into, 1)  # output of programs that the component starts
        os.close(into)
        self._waiting: deque[str] | None = deque(maxlen=WAITING_MAX)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="downspout-stderr", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Log the lines so far and all later ones. Called after the first message to Storm, which must not be a log."""
        with self._lock:
            waiting, self._waiting = self._waiting or (), None
            for line in waiting:
                self._send(line)

    def close(self) -> None:
        """Restore the descriptors and log the remaining output; lines that cannot be logged are written there."""
        if self._is_closed:
            return
        self._is_closed = True
        os.dup2(self._kept, 2)
        os.dup2(self._kept, 1)
        self._thread.join(END_S)
        with self._lock:
            waiting, self._waiting = self._waiting or (), None
            for line in waiting:  # `begin` was never called
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
