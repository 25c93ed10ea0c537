"""Descriptor 2 of a component's process, read by a thread and logged through Storm.

Storm reads what a component writes to stderr only now and then: while it waits for a message, it does not. A pipe holds
64 KiB. So a component that writes more in one call, or a program that it starts, would wait for ever, and Storm for it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

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
