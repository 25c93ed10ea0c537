"""A component's output to stderr while Storm waits for an answer and does not read it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from downspout.component import Bolt
from downspout.wire.pipe import LINE_MAX, Stderr
from tests.wire.storm_pipe import Storm, handshake

pytestmark = pytest.mark.slow
LINES, LINE = 3_000, "x" * 99
"""Much more than the 64 KiB that a pipe holds."""


class Noisy(Bolt):
    """Writes to stderr as its tuple says, by itself or by a program that it starts."""

    outputs = ()

    def process(self, tup: Any) -> None:
        if tup.values[0] == "itself":
            for _ in range(LINES):
                sys.stderr.write(f"{LINE}\n")
            sys.stderr.flush()
        else:
            code = f"import sys; sys.{tup.values[0]}.write('{LINE}\\n' * {LINES})"
            subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("who", ["itself", "stderr", "stdout"])
def test_a_component_may_write_more_than_a_pipe_holds(tmp_path: Path, who: str) -> None:
    """It goes on to its ack, and each line is in Storm's log; also those of a program, on both of its outputs."""
    context = {
        "source->stream->fields": {"source": {"default": ["what"]}},
        "task->component": {"3": "noisy", "1": "source"},
    }
    storm = Storm("tests.wire.test_stderr.Noisy", handshake(tmp_path, {}, context, "noisy"))
    try:
        storm.send({"id": "7", "comp": "source", "stream": "default", "task": 1, "tuple": [who]})
        said: Counter[str] = Counter()

        def is_all(message: Any) -> bool:
            said[message.get("msg") or message.get("command") or ""] += 1
            return said[LINE] == LINES and said["ack"] == 1

        storm.until(is_all)
    finally:
        storm.process.kill()
        storm.process.communicate()


def test_nothing_is_sent_before_storm_takes_messages() -> None:
    """What is written before the handshake comes after it, in order; a last line needs no line feed."""
    sent: list[str] = []
    before = os.dup(1)
    made = Stderr(
        lambda line: sent.append(line) is None
    )  # within the test: pytest changes these descriptors between its phases
    try:
        os.write(2, b"one\n")
        early = [*sent]
        made.begin()
        os.write(2, b"two\nthree")
        os.write(1, b" \xff four\n" + b"y" * (LINE_MAX + 1) + b"\n")
        os.write(2, b"five")
    finally:
        made.close()
        os.dup2(before, 1)
        os.close(before)
    assert early == []
    assert sent == ["one", "two", "three � four", "y" * LINE_MAX, "y", "five"]
