"""Components on the wire under pystorm's own ``run``, with Storm's end of the pipe in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pystorm.bolt
import pytest
import streamparse
from streamparse import Stream

from downspout.component import Bolt
from downspout.errors import ConfigError
from downspout.ledger import Origin
from downspout.wire import MultilangComponent, WireError
from downspout.wire.json_messages import BEYOND_INT
from tests.wire.storm_pipe import Sink, Source, frame, handshake

FIELDS = ["origin", "value"]
ORIGIN = ["lines", "", 0, 17, ""]


def tup(number: int, *values: Any, stream: str = "default") -> dict[str, Any]:
    return {"id": str(number), "comp": "spout", "stream": stream, "task": 1, "tuple": list(values)}


HEARTBEAT = {"comp": None, "tuple": [], "task": -1, "stream": "__heartbeat", "id": "-5"}


def run(cls: Any, directory: Path, *messages: Any, conf: dict[str, Any] | None = None) -> tuple[list[Any], Any]:
    """Run a component on these messages; return what it said, without pid and logs, and its exit code."""
    context = {
        "source->stream->fields": {"spout": {"default": FIELDS, "other": ["a"]}},
        "stream->outputfields": {"default": ["value"], "direct": ["value"]},
    }
    script = [frame(message) for message in (handshake(directory, conf or {}, context, "bolt"), *messages)]
    sink = Sink()
    component = cls(Source(lambda: script.pop(0) if script else None), sink, rdb_signal=None)
    with pytest.raises(SystemExit) as end:
        component.run()
    said = [message for message in sink.said if "pid" not in message and message.get("command") != "log"]
    return said, end.value.code


class Echo(Bolt):
    outputs: ClassVar = [Stream(["value"]), Stream(["value"], name="direct", direct=True)]
    work: ClassVar[Callable[[Any, Any], None]]

    def process(self, given: Any) -> None:
        type(self).work(self, given)


def echo(work: Callable[[Any, Any], None], base: Any = Echo, **attributes: Any) -> Any:
    return type("Echo", (base,), {"work": work, **attributes})


def test_a_bolt_is_given_origins_as_origins(tmp_path: Path) -> None:
    """An origin comes over the pipe as a list, and the bolt sees an Origin, as it does in the local engine."""
    seen: list[Any] = []
    run(echo(lambda bolt, given: seen.append(given)), tmp_path, tup(1, ORIGIN, None), tup(2, "JFK", b"".hex()))
    assert [type(given.values.origin) for given in seen] == [Origin, str]
    assert seen[0].values.origin == Origin("lines", "", 0, 17)
    assert type(seen[0]) is pystorm.Tuple
    assert seen[0].values._fields == tuple(FIELDS)


def test_a_tuple_of_the_wrong_length_fails_at_once(tmp_path: Path) -> None:
    """It is failed and reported with both numbers, and the next tuple is processed; stock pystorm loses it silently."""
    cls = echo(lambda bolt, given: bolt.emit([given.values.value]))
    said, _ = run(cls, tmp_path, tup(1, ORIGIN), tup(2, ORIGIN, "x"), tup(3, 1, 2, 3))
    assert [message["id"] for message in said if message["command"] == "fail"] == ["1", "3"]
    assert [message["id"] for message in said if message["command"] == "ack"] == ["2"]
    errors = [message["msg"] for message in said if message["command"] == "error"]
    assert "a tuple of spout:default has 1 values; the stream has 2 fields (origin, value)" in errors[0]


def test_an_emit_of_the_wrong_length_never_reaches_storm(tmp_path: Path) -> None:
    """Storm would end the worker; here the tuple fails and the message names stream and fields."""
    said, _ = run(echo(lambda bolt, given: bolt.emit([1, 2])), tmp_path, tup(1, ORIGIN, "x"))
    assert [message["command"] for message in said] == ["error", "sync", "fail"]
    assert "an emit to stream 'default' has 2 values; the stream has 1 fields (value)" in said[0]["msg"]


def test_a_value_that_cannot_travel_fails_its_tuple(tmp_path: Path) -> None:
    """Stock pystorm logs, sends nothing and acks: the tuple is lost. Here it fails, and the field is named."""
    said, _ = run(echo(lambda bolt, given: bolt.emit([{1, 2}])), tmp_path, tup(1, ORIGIN, "x"))
    assert [message["command"] for message in said] == ["error", "sync", "fail"]
    assert WireError.__name__ in said[0]["msg"]
    assert "stream 'default', field value: a set cannot be sent" in said[0]["msg"]


def test_heartbeats_are_answered_in_order(tmp_path: Path) -> None:
    """The answer to a heartbeat leaves behind what was emitted before it, and nothing follows the end."""
    cls = echo(lambda bolt, given: bolt.emit([given.values.value]))
    said, code = run(cls, tmp_path, tup(1, ORIGIN, "x"), HEARTBEAT, tup(2, ORIGIN, "y"))
    assert [message["command"] for message in said] == ["emit", "ack", "sync", "emit", "ack"]
    assert code == 2


def test_a_direct_emit_is_what_storm_can_read(tmp_path: Path) -> None:
    """Storm 2.8 takes the lowest 32 bits of the task, and only of a number that is beyond 32 bits."""
    said, _ = run(echo(lambda bolt, given: bolt.emit([1], stream="direct", direct_task=7)), tmp_path, tup(1, ORIGIN, 1))
    task = said[0]["task"]
    assert task > 2**31 - 1  # or Storm's parser makes an Integer of it
    assert task % 2**32 == 7
    assert task - 7 == BEYOND_INT


def test_task_ids_that_come_between_tuples(tmp_path: Path) -> None:
    """An emit that waits for task ids gets its own, and the tuples that Storm had sent before are processed after."""
    got: list[Any] = []
    cls = echo(lambda bolt, given: got.append(bolt.emit([given.values.value], need_task_ids=True)))
    said, _ = run(cls, tmp_path, tup(1, ORIGIN, "x"), tup(2, ORIGIN, "y"), [5], [6, 7])
    assert got == [[5], [6, 7]]
    assert [message["tuple"] for message in said if message["command"] == "emit"] == [["x"], ["y"]]
    assert [message["id"] for message in said if message["command"] == "ack"] == ["1", "2"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [(ConfigError("kafka.group is odd", cure="another"), "kafka.group is odd. Try: another"), (KeyError("x"), "'x'")],
    ids=["ours", "any"],
)
def test_what_initialize_raises_reaches_storm(
    error: Exception, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A component that cannot start says so with Python's whole traceback, to Storm and on stderr, and exits 1."""

    def fail(self: Any, conf: Any, context: Any) -> None:
        raise error

    said, code = run(echo(lambda bolt, given: None, initialize=fail), tmp_path, tup(1, ORIGIN, 1))
    assert code == 1
    (message,) = said
    assert message["command"] == "error"
    for text in (message["msg"], capsys.readouterr().err):
        assert f"{type(error).__name__}: {shown}" in text
        assert "in fail" in text  # the line that raised


class Batches(MultilangComponent, streamparse.BatchingBolt):
    outputs: ClassVar = ["value"]

    def process_batch(self, key: Any, tups: Any) -> None:
        self.emit([len(tups)])


def test_stock_components_may_opt_in(tmp_path: Path) -> None:
    """A batching bolt of streamparse's with MultilangComponent before it batches, anchors and acks as ever."""
    tick = {"id": "t", "comp": "__system", "stream": "__tick", "task": -1, "tuple": [1]}
    said, _ = run(Batches, tmp_path, tup(1, ORIGIN, "x"), tup(2, ORIGIN, "y"), {**tick, "id": "a"}, {**tick, "id": "b"})
    assert [(message["command"], message.get("id")) for message in said] == [
        ("ack", "a"), ("ack", "b"), ("emit", None), ("ack", "1"), ("ack", "2"),
    ]  # fmt: skip
    assert said[2]["anchors"] == ["1", "2"]


def test_an_exception_on_the_way_out_is_complete(tmp_path: Path) -> None:
    """A component that ends after an exception has sent all of it before the process is gone."""

    def fail(bolt: Any, given: Any) -> None:
        raise ValueError("x" * 100_000)

    said, code = run(echo(fail, exit_on_exception=True), tmp_path, tup(1, ORIGIN, 1))
    assert [message["command"] for message in said] == ["error", "sync", "fail"]
    assert "x" * 100_000 in said[0]["msg"]
    assert code == 1


def quit_at_one(bolt: Any, given: Any) -> None:
    if given.id == "1":
        sys.exit("boom")


@pytest.mark.parametrize(("ends", "code"), [(True, 1), (False, 2)])
def test_an_exit_is_the_tuples_failure(ends: bool, code: int, tmp_path: Path) -> None:
    """sys.exit in process: Storm gets the traceback and the tuple's fail; exit_on_exception says what is next."""
    said, found = run(echo(quit_at_one, exit_on_exception=ends), tmp_path, tup(1, ORIGIN, 1), tup(2, ORIGIN, 2))
    expected = [("error", None), ("sync", None), ("fail", "1")] + ([] if ends else [("ack", "2")])
    assert [(message["command"], message.get("id")) for message in said] == expected
    assert "SystemExit: boom" in said[0]["msg"]
    assert "in quit_at_one" in said[0]["msg"]
    assert found == code


def test_an_exit_fails_the_batch(tmp_path: Path) -> None:
    """sys.exit in process_batch: the traceback reaches Storm, and each tuple of the batch fails."""

    class Leaving(Batches):
        def process_batch(self, key: Any, tups: Any) -> None:
            sys.exit("boom")

    tick = {"comp": "__system", "stream": "__tick", "task": -1, "tuple": [1]}
    ticks = [{**tick, "id": "a"}, {**tick, "id": "b"}]
    said, code = run(Leaving, tmp_path, tup(1, ORIGIN, "x"), tup(2, ORIGIN, "y"), *ticks)
    assert [message["id"] for message in said if message["command"] == "fail"] == ["1", "2"]
    assert "SystemExit: boom" in next(message["msg"] for message in said if message["command"] == "error")
    assert code == 1


def test_an_exit_in_initialize_reaches_storm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """sys.exit in initialize is told like any other error there, and the exit code is not the component's to choose."""

    def leave(self: Any, conf: Any, context: Any) -> None:
        sys.exit(0)

    (message,), code = run(echo(lambda bolt, given: None, initialize=leave), tmp_path, tup(1, ORIGIN, 1))
    assert code == 1
    for text in (message["msg"], capsys.readouterr().err):
        assert "SystemExit: 0" in text
        assert "in leave" in text


def test_an_exit_of_the_last_work_changes_no_exit_code(tmp_path: Path) -> None:
    """sys.exit in before_exit is logged; the process ends as it would have."""
    _, code = run(echo(lambda bolt, given: None, before_exit=lambda self: sys.exit(0)), tmp_path, tup(1, ORIGIN, 1))
    assert code == 2
