"""The page of a run that was started without ``--ui``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.clock import SYSTEM_CLOCK
from downspout.engine import from_class, resolve
from downspout.errors import ConfigError
from downspout.kafka import KafkaCluster
from downspout.run import Several, runner
from downspout.testing import FakeKafka
from downspout.web import on_request, runs_under_way
from downspout.web.on_request import RunOnRequest
from tests.command import PYTHON_CODE, cli
from tests.waiting import eventually
from tests.web.running import TOPIC, Running, Shop, _Noting, in_a_thread
from tests.web.test_ui_broker import ROOT, address_in, fill

WAIT_S = 120.0


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which no other test's runs listen."""
    with tempfile.TemporaryDirectory(prefix="ui") as folder:  # pytest's own is too long for a socket's name
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield on_request.folder()


@contextmanager
def quiet_run() -> Iterator[Running]:
    """Run the shop in a thread, without a page."""
    graph, made = from_class(Shop, "shop"), Running("")
    with FakeKafka(f"shop-{time.monotonic_ns()}", SYSTEM_CLOCK) as kafka:
        kafka.create_topic(TOPIC, 1)
        for number in range(10):
            kafka.produce(TOPIC, f"order {number}".encode(), partition=0)
        given = [f"kafka.bootstrap={kafka.bootstrap}"]
        with on_request.on_request(RunOnRequest(graph, resolve(graph, given))) as later:
            view = Several(_Noting(made), later)

            def run() -> None:
                made.results.append(runner.run(graph, overrides=given, view=view, watching=later.watch))

            with in_a_thread(made, run):
                yield made


def test_a_run_serves_its_page_while_it_is_asked_for(mine: Path) -> None:
    """The page is there from the request until the last reader goes, once for all of them, and again later."""
    with quiet_run() as made:
        for _ in range(2):
            (first,), (second,) = runs_under_way(), runs_under_way()
            with closing(first):
                with closing(second):
                    made.url = first.open_page("127.0.0.1:0")
                    assert second.open_page("127.0.0.1:0") == made.url
                run = made.until(lambda run: run["totals"]["completed"] == 10)
                assert (run["topology"], run["windows"]["all"]["span_s"] > 0) == ("shop", True)
            port = int(made.url.rstrip("/").rpartition(":")[2])
            eventually(lambda port=port: not _answers(port))
    assert runs_under_way() == []


def test_a_run_whose_place_another_takes_is_known(mine: Path) -> None:
    """A second run of one topology with one group names the first; one with another group, or brokers, does not."""
    graph = from_class(Shop, "shop")
    first = resolve(graph, ["kafka.bootstrap=a:1"])
    with on_request.on_request(RunOnRequest(graph, first)):
        assert on_request.replaced_by(graph, first) == [os.getpid()]
        for given in ("kafka.bootstrap=b:1", "kafka.group=second"):
            other = resolve(graph, ["kafka.bootstrap=a:1", given])
            assert on_request.replaced_by(graph, other) == []
        assert on_request.replaced_by(from_class(Shop, "other"), first) == []
    assert on_request.replaced_by(graph, first) == []


def test_what_else_is_in_the_folder_is_no_run(mine: Path) -> None:
    """Files and folders of other processes are passed over, and stay."""
    (mine / "held").mkdir(parents=True, mode=0o700)
    mine.chmod(0o700)
    (mine / "note").touch()
    with quiet_run():
        (run,) = runs_under_way()
        run.close()
    assert {path.name for path in mine.iterdir()} == {"held", "note"}


def _answers(port: int) -> bool:
    with socket.socket() as end:
        return end.connect_ex(("127.0.0.1", port)) == 0


def test_the_end_of_a_run_is_the_end_of_the_wait(mine: Path) -> None:
    """A reader is not left alone when the run ends."""
    with quiet_run():
        (run,) = runs_under_way()
        run.open_page("127.0.0.1:0")
    with closing(run):
        run.wait()


@pytest.mark.slow
def test_a_run_that_nobody_looks_at_takes_no_metrics(mine: Path) -> None:
    """Its view does nothing, and nothing of the page is imported."""
    code = "import sys\nimport downspout.web.on_request\n"
    code += (
        "print([name for name in ('starlette', 'uvicorn', 'psutil', 'downspout.web.server') if name in sys.modules])"
    )
    done = cli(code, program=PYTHON_CODE)
    assert done.stdout == "[]\n"
    taken: list[int] = []
    graph = from_class(Shop, "shop")
    with on_request.on_request(RunOnRequest(graph, resolve(graph, {}))) as later:
        later.look(0.0, lambda: taken.append(1))  # type: ignore[arg-type,return-value]
    assert taken == []


def test_a_port_that_is_taken_is_the_reader_s_error(mine: Path) -> None:
    """The command says it, and the run goes on."""
    with quiet_run(), socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for _ in range(2):
            (run,) = runs_under_way()
            with closing(run), pytest.raises(ConfigError, match="cannot listen there"):
                run.open_page(f"127.0.0.1:{other.getsockname()[1]}")


def test_what_is_not_there_is_named(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a run, and with one of another name, the command says what there is; a killed one's socket goes."""
    assert main(["ui", "run"]) == ConfigError.exit_code
    assert "no run is under way on this machine" in capsys.readouterr().err
    with quiet_run():
        assert main(["ui", "run", "other"]) == ConfigError.exit_code
        assert "no run of other is under way on this machine; there are shop (process" in capsys.readouterr().err
        dead = mine / "1"
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(dead))
        (run,) = runs_under_way()
        run.close()
        assert not dead.exists()


def test_a_folder_that_others_can_open_is_not_used(mine: Path) -> None:
    """A run goes on without a page on request, and a reader does not look there."""
    mine.mkdir(mode=0o700)
    mine.chmod(0o755)
    with quiet_run() as made:
        assert list(mine.iterdir()) == []
        assert runs_under_way() == []
    assert len(made.results) == 1


@pytest.mark.broker
@pytest.mark.slow
def test_workers_under_way_are_shown(mine: Path, tmp_path: Path) -> None:
    """`downspout ui run` shows a run of two workers that was started without a page; Ctrl-C ends the page alone."""
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        fill(KafkaCluster(kafka.bootstrap), [f"order {number}" for number in range(100)], 2)
        command = [sys.executable, "-m", "downspout", "run", "tests/web/running.py", "--workers", "2", "--quiet"]
        run = subprocess.Popen([*command, "--set", f"kafka.bootstrap={kafka.bootstrap}"], cwd=ROOT)
        try:
            eventually(lambda: list(mine.glob("*")), alive=run)
            log = tmp_path / "log"
            with log.open("w") as file:
                shown = subprocess.Popen(
                    [sys.executable, "-m", "downspout", "ui", "run", "running", "--port", "0"], cwd=ROOT, stderr=file
                )
            made = Running(address_in(log, shown))
            found = made.until(lambda run: run["totals"]["completed"] >= 100 and len(run["workers"]) == 2)
            assert found["topology"] == "running"
            shown.send_signal(signal.SIGINT)
            assert shown.wait(WAIT_S) == 0
            assert run.poll() is None
        finally:
            run.send_signal(signal.SIGTERM)
            assert run.wait(WAIT_S) == 143
