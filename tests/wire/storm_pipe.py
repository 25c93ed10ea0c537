"""Storm's end of the pipe: in memory for transcripts, and over real pipes for processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from downspout.wire import WireSerializer

ROOT = Path(__file__).resolve().parents[2]
END = b"\nend\n"
EMITS_S_MAX = 90.0
"""How long tuples may take to come, on a machine that does much else."""
UNHURRIED = """
import runpy, sys
from downspout.kafka import consumer
from downspout.wire import multilang_component
multilang_component.EXIT_S_MAX, consumer.REMOTE_MS_MAX = 60.0, 60_000
sys.argv[0] = "streamparse_run"
runpy.run_module("streamparse.run", run_name="__main__", alter_sys=False)
"""
"""streamparse_run with a minute for what Storm gives seconds: for tests of what is done, and not of how soon."""


def frame(message: Any) -> bytes:
    return json.dumps(message).encode() + END


def received(data: bytes) -> Any:
    """Return a message as a component of ours reads it."""
    return WireSerializer(io.BytesIO(data + END), io.BytesIO(), threading.RLock(), threading.RLock()).read_message()


def handshake(directory: Path, conf: dict[str, Any], context: dict[str, Any], component: str = "reader") -> Any:
    return {
        "pidDir": str(directory),
        "conf": {"topology.name": "shop", "storm.id": "shop-1", "pystorm.log.level": "error", **conf},
        "context": {"taskid": 3, "componentid": component, "task->component": {"3": component}, **context},
    }


class Sink(io.RawIOBase):
    """What the component writes: whole messages go to ``said``, in order."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self._rest = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        *whole, self._rest = (self._rest + bytes(data)).split(END)
        self.said += map(json.loads, whole)
        return len(data)


class Source(io.RawIOBase):
    """What the component reads: each read asks ``next_message`` for more; None is the end of input."""

    def __init__(self, next_message: Callable[[], bytes | None]) -> None:
        self._next = next_message

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        return self._next() or b""


class Storm:
    """A component in a process of its own, with Storm's end of its pipes."""

    def __init__(self, component: str, hello: Any, *, unhurried: bool = False, **environment: str) -> None:
        program = ["-c", UNHURRIED] if unhurried else ["-m", "streamparse.run"]
        self.process = subprocess.Popen(
            [sys.executable, *program, component],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
        self._rest = b""
        self._said = self._messages()
        self.send(hello)

    def send(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(frame, messages)))
        self.process.stdin.flush()

    def _messages(self) -> Iterator[Any]:
        assert self.process.stdout is not None
        while piece := self.process.stdout.read1(65536):
            *whole, self._rest = (self._rest + piece).split(END)
            yield from map(json.loads, whole)

    def until(self, last: Callable[[Any], bool]) -> list[Any]:
        heard = []
        for message in self._said:
            heard.append(message)
            if last(message):
                return heard
        raise AssertionError(f"the component ended; it said {heard}\n{self.process.communicate()[1].decode()}")

    def rest(self) -> str:
        """Return all that the component says until it ends: messages that came already, too, and its stderr."""
        messages = [*self._said]
        return f"{messages}{self.process.communicate()[1].decode()}"

    def ask(self, command: str, tup_id: str = "") -> list[Any]:
        """Be ShellSpout: send a command and return what came before its sync, logs left out."""
        self.send({"command": command, "id": tup_id})
        heard = self.until(lambda message: message.get("command") == "sync")
        return [message for message in heard[:-1] if message.get("command") not in (None, "log")]

    def emits(self, count: int = 1) -> list[Any]:
        found: list[Any] = []
        until = time.monotonic() + EMITS_S_MAX
        while time.monotonic() < until:
            found += self.ask("next")
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} tuples came in {EMITS_S_MAX:g} s")

    def end_input(self) -> int:
        """Close the component's input, as a JVM that dies does; return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=120)


# --- what Storm's own serializer does to values: json-smart 2.x in its permissive mode, observed with Storm 2.8.3 ---


def through_java(data: bytes) -> bytes:
    """Return a message as Java writes it after having read it."""
    return java_json(json.loads(data)).encode("utf-8", "replace")


def java_json(value: Any) -> str:
    if isinstance(value, str):
        return '"' + "".join(map(_java_char, value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))) + '"'
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(java_json, value)) + "]"
    # A HashMap has an order of its own.
    return "{" + ",".join(f"{java_json(key)}:{java_json(value[key])}" for key in reversed(list(value))) + "}"


def _java_char(char: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if char in short:
        return short[char]
    code = ord(char)
    return f"\\u{code:04X}" if code < 32 or 127 <= code < 160 or 0x2000 <= code < 0x2100 else char


def _java_double(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    if value and not 1e-3 <= abs(value) < 1e7:
        digits, _, exponent = f"{value!r}e0".partition("e")
        text = format(value, ".16E") if "e" not in repr(value) else f"{digits}E{int(exponent.removesuffix('e0'))}"
        return text if "." in text else text.replace("E", ".0E")
    return repr(value)
