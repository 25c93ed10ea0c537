"""`downspout run --log-format json`: each line is an object with its coordinates in Kafka and in the topology."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from downspout import exit_guard
from downspout.export import json_log
from downspout.export.json_log import JsonFormatter, JsonLines, complain, coordinates_of, hand_on

ROOT = Path(__file__).parents[2]

LOUD = """
import sys, warnings
from streamparse import Bolt, Spout, Topology

class Ones(Spout):
    outputs = ["n"]
    done = False
    def next_tuple(self):
        if not self.done:
            self.emit([1], tup_id="1")
        self.done = True

class Loud(Bolt):
    auto_fail = True
    def process(self, tup):
        print("two\\nlines", file=sys.stderr)
        print("to standard output")
        print("half", end="", file=sys.stderr, flush=True)
        self.logger.info("took %s", "orders[0]@7", extra={"customer": "c1"})
        warnings.warn("look out")
        raise ValueError("no \\"luck\\"")

class Made(Topology):
    ones = Ones.spec()
    loud = Loud.spec(inputs=[ones])
"""


def logged(*arguments: Any, **keywords: Any) -> dict[str, Any]:
    record = logging.getLogger("downspout.x").makeRecord(
        "downspout.x", logging.WARNING, "x.py", 1, *arguments, **keywords
    )
    found: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return found


def test_a_record_is_an_object() -> None:
    """It has time, level, logger and message, and the time is one with a zone."""
    found = logged("%s of %s", (1, 2), None)
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    assert found == {"level": "WARNING", "logger": "downspout.x", "message": "1 of 2"}


def test_what_the_call_gives_is_kept() -> None:
    """Fields of ``extra`` are keys, whatever they hold; a traceback is text under ``exception``."""
    try:
        raise ValueError("no")
    except ValueError:
        found = logged("failed", (), sys.exc_info(), extra={"order": {"id": 7}, "path": Path("x")})
    assert found["order"] == {"id": 7}
    assert found["path"] == "x"
    assert found["exception"].endswith("ValueError: no")


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ({("a", 1): 2}, "{('a', 1): 2}"),
        (CIRCLE, "[[...]]"),
        (Shy(), "<Shy whose __repr__ raised RuntimeError>"),
    ],
    ids=["nan", "infinity", "keys", "circle", "repr"],
)
def test_what_json_cannot_hold_is_text(value: Any, text: str) -> None:
    """No line is lost, and each is JSON to any reader; what else the call gave stays as it is."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    record = logging.makeLogRecord({"name": "x", "msg": "m", "rate": value, "order": {"id": 7}})
    found = json.loads(JsonFormatter().format(record), parse_constant=refuse)
    assert (found["message"], found["rate"], found["order"]) == ("m", text, {"id": 7})


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("orders[3]@918: makes no progress", {"topic": "orders", "partition": 3, "offset": 918}),
        ("group g has no commit for a.b-c[0]: it", {"topic": "a.b-c", "partition": 0}),
        ("counts[task 4]: orders[3]@918: KeyError", {
            "topic": "orders", "partition": 3, "offset": 918, "component": "counts", "task": 4}),
        ("orders[3]@1 and orders[3]@2", {}),
        ("after\norders[3]@1", {}),
        ("took [1,000] words [pid=4]", {}),
        ("x[0][1] and [2]", {}),
    ],
)  # fmt: skip
def test_coordinates_are_fields_where_there_is_one_place(message: str, found: dict[str, Any]) -> None:
    """Of a message that names several places, or none, nothing is guessed; a traceback is not searched."""
    assert coordinates_of(message) == found


def test_what_is_printed_is_a_line_too() -> None:
    """A text of several lines that is printed at once is one message, a warning of ours has its level."""
    out = io.StringIO()
    lines = JsonLines(out)
    print("two", "words\nmore", file=lines)
    print("downspout: warning: 2 dead letters", file=lines)
    print("downspout:", "metrics are at …", file=lines)
    print(file=lines)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(each["level"], each["logger"], each["message"]) for each in found] == [
        ("INFO", "stderr", "two words\nmore"),
        ("WARNING", "downspout", "2 dead letters"),
        ("INFO", "downspout", "metrics are at …"),
    ]


def test_an_error_that_ends_a_command_has_the_level_of_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is an ERROR of the logger ``downspout``; without JSON it is text behind the program's name."""
    complain("no broker at orders[3]@918")
    assert capsys.readouterr().err == "downspout: no broker at orders[3]@918\n"
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", JsonLines(out))
    complain("no broker at orders[3]@918")
    found = json.loads(out.getvalue())
    assert (found["level"], found["logger"], found["message"], found["offset"]) == (
        "ERROR", "downspout", "no broker at orders[3]@918", 918,
    )  # fmt: skip


def test_a_traceback_is_a_field() -> None:
    """A traceback at the end of a message is under ``exception``, also that of a group or behind its cause."""
    stack = "Traceback (most recent call last):\n  File x\nKeyError: 'a'"
    for trace in (stack, f"  + Exception Group {stack}", f"{stack}\n\nDuring the handling\n\n{stack}"):
        found = logged("%s\n%s", ("counts[task 4]: KeyError: 'a'", trace), None)
        assert (found["message"], found["exception"]) == ("counts[task 4]: KeyError: 'a'", trace)
    found = json.loads(json_log.line_of(stack))
    assert (found["message"], found["exception"]) == ("KeyError: 'a'", stack)


def test_an_exception_that_is_not_caught_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python would print of an error that ends the process, or a thread, is one object with its traceback."""
    out = io.StringIO()
    for owner, name in ((sys, "excepthook"), (threading, "excepthook"), (exit_guard, "_shaped")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(sys, "stderr", out)
    json_log.install()
    try:
        raise ValueError("no")
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    thread = threading.Thread(target=lambda: [][1], name="helper")
    thread.start()
    thread.join()
    threading.Thread(target=sys.exit).start()
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("ERROR", "downspout", "ValueError: no")
    assert first["exception"].startswith("Traceback")
    assert second["message"] == "thread helper: IndexError: list index out of range"
    assert second["exception"].endswith("IndexError: list index out of range")


@pytest.mark.parametrize(
    "line",
    ['{"level": "INFO", "message": "m"}', "Fatal Python error: Segmentation fault", "[1, 2]", "[" * 100_000],
    ids=["JSON", "fault", "list", "brackets"],
)
def test_a_workers_line_has_its_number(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON gets a field, and anything else becomes a message."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", JsonLines(out))
    hand_on(2, line)
    found = json.loads(out.getvalue())
    assert found["worker"] == 2
    assert found["message"] == ("m" if "{" in line else line)


def test_extras_do_not_hide_what_every_line_has() -> None:
    """A call's ``extra`` named as one of the line's own keys is left out, and the line says what it would without."""
    record = logging.makeLogRecord({"name": "a.b", "levelno": 40, "levelname": "ERROR", "msg": "lost"})
    vars(record).update({"level": "low", "time": "noon", "logger": "me", "exception": 1, "topic": "orders", "sku": 7})
    found = json.loads(json_log.JsonFormatter().format(record))
    assert (found["level"], found["logger"], found["message"]) == ("ERROR", "a.b", "lost")
    assert found["time"].endswith("Z")
    assert "exception" not in found
    assert (found["topic"], found["sku"]) == ("orders", 7)


def test_answers_to_signals_are_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a signal's handler writes, past Python's own buffers, has the same form."""
    out, written = io.StringIO(), []
    monkeypatch.setattr(sys, "stderr", out)
    for owner, name in ((sys, "excepthook"), (threading, "excepthook"), (exit_guard, "_shaped")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(os, "write", lambda descriptor, data: written.append(data))
    json_log.install()
    exit_guard.say("waiting")
    exit_guard.say("the run ends here", is_error=True)
    monkeypatch.undo()
    found = [json.loads(line) for line in written]
    assert [(each["level"], each["logger"], each["message"]) for each in found] == [
        ("INFO", "downspout", "waiting"),
        ("ERROR", "downspout", "the run ends here"),
    ]


@pytest.mark.slow
def test_every_line_of_a_run_is_an_object(tmp_path: Path) -> None:
    """Log, prints, warnings, tracebacks, the view, the answer to a signal and the summary: all of it can be parsed."""
    (tmp_path / "loud.py").write_text(LOUD)
    process = subprocess.Popen(
        [sys.executable, "-m", "downspout", "run", "loud.py", "--log-format", "json", "--json", "-"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        first = []
        for line in process.stderr:
            first.append(line)
            if "luck" in line:
                break
        process.send_signal(signal.SIGTERM)
        summary, rest = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143, rest
    assert json.loads(summary)["components"]["loud"]["errors"] == 1
    found = [json.loads(line) for line in [*first, *rest.splitlines()]]
    messages = [each["message"] for each in found]
    assert any('no "luck"' in each["message"] and "Traceback" in each.get("exception", "") for each in found)
    assert not any("Traceback" in each for each in messages)
    (warned,) = (each for each in found if "look out" in each["message"])
    assert (warned["level"], warned["logger"]) == ("WARNING", "py.warnings")
    assert {"two\nlines", "to standard output", "half"} <= set(messages)
    assert any(each.startswith("SIGTERM: waiting for") for each in messages)
    assert any("stopped after" in each and "tuple tree" in each for each in messages)
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in found)


@pytest.mark.slow
def test_what_ends_a_run_is_an_error_line(tmp_path: Path) -> None:
    """A run that cannot begin says why in an object with the level of an error."""
    done = subprocess.run(
        [sys.executable, "-m", "downspout", "run", "none.py", "--log-format", "json"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    found = json.loads(done.stderr)
    assert (done.returncode, found["level"], found["logger"]) == (2, "ERROR", "downspout")
    assert "none.py" in found["message"]
