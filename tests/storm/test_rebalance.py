"""`downspout storm rebalance`: its request to nimbus, and its message if that is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thriftpy2.rpc
from streamparse import thrift
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TTransportException

from downspout.cli import main, storm
from downspout.errors import ConfigError, StormError
from downspout.storm import program


class Nimbus:
    """A client of a nimbus, which notes what it is asked and raises what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.error: Exception | None = None
        self.closed = 0
        self.status = "ACTIVE"

    def rebalance(self, name: str, options: Any) -> None:
        self.asked.append((name, options))
        if self.error is not None:
            raise self.error

    deactivate = activate = killTopologyWithOpts = lambda self, name, options=None: self.rebalance(name, options)

    def getClusterInfo(self) -> Any:
        return SimpleNamespace(topologies=[SimpleNamespace(name="flights", status=self.status)])

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def nimbus(monkeypatch: pytest.MonkeyPatch) -> Nimbus:
    made = Nimbus()
    monkeypatch.setattr(thriftpy2.rpc, "make_client", lambda *given, **named: made)
    monkeypatch.setattr(storm, "_node", lambda arguments: SimpleNamespace(address=("127.0.0.1", 6627)))
    return made


@pytest.mark.parametrize(
    ("given", "wait_s", "workers", "executors"),
    [
        ([], None, None, None),
        (["--workers", "3"], None, 3, None),
        (["--wait", "0"], 0, None, None),
        (["--par", "parse=4", "--par", "a=b=2", "--wait", "7", "--workers", "1"], 7, 1, {"parse": 4, "a=b": 2}),
    ],
)
def test_nimbus_is_asked_for_what_the_options_say(
    nimbus: Nimbus,
    given: list[str],
    wait_s: int | None,
    workers: int | None,
    executors: dict[str, int] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is not given is left to nimbus: as many workers and threads as before, the topology's message timeout."""
    assert main(["storm", "rebalance", "flights", *given]) == 0
    ((name, options),) = nimbus.asked
    assert (name, options.wait_secs, options.num_workers, options.num_executors) == (
        "flights", wait_s, workers, executors,
    )  # fmt: skip
    assert nimbus.closed == 1
    assert "`downspout storm stats flights` shows its progress" in capsys.readouterr().out


@pytest.mark.parametrize("pair", ["parse", "parse=", "=4", "parse=0", "parse=-1", "parse=two"])
def test_threads_of_no_component_or_no_number_are_refused(
    nimbus: Nimbus, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A --par that is no COMPONENT=N is an error with an example, and nimbus is not asked."""
    assert main(["storm", "rebalance", "flights", "--par", pair]) == ConfigError.exit_code
    assert f"--par {pair} needs a component and a number. Try: --par parse=4" in capsys.readouterr().err
    assert nimbus.asked == []


@pytest.mark.parametrize("given", [["--workers", "0"], ["--workers", "x"], ["--wait", "-1"], ["--wait", "1.5"]])
def test_numbers_that_make_no_sense_are_refused(
    nimbus: Nimbus, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line's own error names option and value, and nimbus is not asked."""
    with pytest.raises(SystemExit, match="2"):
        main(["storm", "rebalance", "flights", *given])
    assert f"argument {given[0]}: '{given[1]}' is not a whole number from" in capsys.readouterr().err
    assert nimbus.asked == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (thrift.NotAliveException(msg="flights is not alive"), "flights is not alive. Try: `sparse list`"),
        (
            thrift.InvalidTopologyException(msg="no such component"),
            "refuses: no such component. Try: the names and numbers",
        ),
        (TTransportException(message="closed"), "closed. Try: `downspout storm status`"),
        (TimeoutError("timed out"), "timed out. Try: `downspout storm status`"),
    ],
    ids=["not alive", "invalid", "closed", "late"],
)
def test_what_nimbus_refuses_is_said(
    nimbus: Nimbus, error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topology that does not run, a component that it does not have, no answer: one line, exit code 9."""
    nimbus.error = error
    assert main(["storm", "rebalance", "flights"]) == StormError.exit_code
    text = capsys.readouterr()
    assert text.err.startswith("downspout: Nimbus 127.0.0.1:6627")
    assert said in text.err
    assert (text.out, nimbus.closed) == ("", 1)


def test_no_nimbus_is_said(nimbus: Nimbus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody answers at the node's address, the error names it."""

    def refuse(*given: Any, **named: Any) -> Callable[[], None]:
        raise TTransportException(message="Could not connect")

    monkeypatch.setattr(thriftpy2.rpc, "make_client", refuse)
    assert main(["storm", "rebalance", "flights"]) == StormError.exit_code
    assert "No nimbus answers at 127.0.0.1:6627: Could not connect" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rebalance", "activate", "deactivate", "kill"])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("REBALANCING", "flights is REBALANCING; until that ends, Storm does not {} it. Try: again when"),
        ("KILLED", "flights is KILLED; until that ends, Storm does not {} it. Try: submit it again when"),
        ("ACTIVE", "Nimbus 127.0.0.1:6627: Internal error processing deactivate. Try: `downspout storm status`"),
    ],
)
def test_a_status_in_which_nimbus_refuses_is_named(
    nimbus: Nimbus,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    status: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nimbus answers "Internal error" where the status forbids it: that, and when to try again, is said instead."""
    nimbus.error = TApplicationException(TApplicationException.INTERNAL_ERROR, "Internal error processing deactivate")
    nimbus.status = status
    monkeypatch.setattr(program, "StormNode", lambda directory: SimpleNamespace(address=("127.0.0.1", 6627)))
    call = (lambda: main(["storm", "rebalance", "flights"])) if command == "rebalance" else None
    assert (call() if call else program.main([command, "flights"])) == StormError.exit_code
    assert capsys.readouterr().err.startswith(f"downspout: {said.format(command)}")
    assert nimbus.closed == 1
