"""`downspout run --metrics-port`: the metrics during a run, and an unchanged end of the run."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from downspout.cli import main
from downspout.clock import SYSTEM_CLOCK
from downspout.testing import FakeKafka
from tests.spout.reasons import OTHERS_NEED_IT
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
WAIT_S = 200

COUNTS = """
import threading
from streamparse import Bolt, Topology
from spouts.kafka import KafkaSpout

GATE = threading.Event()

class Counts(Bolt):
    def process(self, tup):
        if tup.values.value == "hang":
            GATE.wait()

class Made(Topology):
    reader = KafkaSpout.spec(topics=["orders"], fields=["value"], group="readers", bootstrap="fake://watched",
                             commit_period_ms=100)
    counts = Counts.spec(inputs=[reader])
"""

ONES = """
from streamparse import Bolt, Spout, Topology

class Ones(Spout):
    outputs = ["n"]
    def next_tuple(self):
        self.emit([1], tup_id="1")

class Takes(Bolt):
    def process(self, tup):
        pass

class Made(Topology):
    ones = Ones.spec()
    takes = Takes.spec(inputs=[ones])
"""


def page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def served_at(caplog: pytest.LogCaptureFixture) -> str:
    """Return where the run serves its metrics: at a free port, which its log names."""

    def told() -> str:
        return next((str(record.args[0]) for record in caplog.records if "metrics are at" in record.msg), "")  # type: ignore[index]

    return eventually(told, otherwise=lambda: caplog.text)


def series(url: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in read(page(f"{url}/metrics")[1]):
        for sample in family.samples:
            of = found.setdefault(sample.name, {})
            name = sample.labels.get("component", sample.labels.get("group", ""))
            of[name] = of.get(name, 0.0) + sample.value
    return found


def open_gate(file: Path) -> None:
    """Let a bolt of the topology in this file go on. Other modules have a GATE, too, and some run code when asked."""
    gates = [vars(each)["GATE"] for each in list(sys.modules.values()) if vars(each).get("__file__") == str(file)]
    assert gates, f"{file} is not loaded"
    for gate in gates:
        gate.set()


@contextmanager
def beside(look: Callable[[], None]) -> Iterator[None]:
    """Let another thread look at the run of this one, and end it with SIGTERM then."""
    errors: list[BaseException] = []

    def looking() -> None:
        try:
            look()
        except BaseException as error:
            errors.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=looking)
    thread.start()
    yield
    thread.join()
    for error in errors:
        raise error


@pytest.mark.slow
@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_a_run_can_be_scraped_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Counters of spout and bolt, partitions and the group's lag are those of the run; the port closes with it."""
    (tmp_path / "counts.py").write_text(COUNTS)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, "downspout.export")
    urls: list[str] = []
    with FakeKafka("watched", clock=SYSTEM_CLOCK) as kafka:
        for value in range(10):
            kafka.produce("orders", str(value).encode())

        def look() -> None:
            urls.append(url := served_at(caplog))
            eventually(lambda: page(f"{url}/readyz") == (200, "ready\n"))
            eventually(lambda: series(url).get("kafka_consumergroup_lag") == {"readers": 0.0})
            found = series(url)
            assert found["downspout_records_total"] == {"reader": 10.0}
            assert found["downspout_executed_total"] == {"reader": 0.0, "counts": 10.0}
            assert found["downspout_partition_committed"] == {"reader": 10.0}
            assert found["downspout_run_completed_total"] == {"": 10.0}
            assert page(f"{url}/healthz") == (200, "ok\n")

        with beside(look):
            assert main(["run", str(tmp_path / "counts.py"), "--quiet", "--metrics-port", "0"]) == 143
    assert page(f"{urls[0]}/healthz")[0] == 0


@pytest.mark.slow
@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_a_bolt_that_hangs_is_told_and_the_last_metrics_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Health names the bolt, the record and the line; what was counted before can still be read, with its age."""
    (tmp_path / "counts.py").write_text(COUNTS)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, "downspout.export")
    with FakeKafka("watched", clock=SYSTEM_CLOCK) as kafka:
        kafka.produce("orders", b"first")

        def look() -> None:
            url = served_at(caplog)
            eventually(lambda: series(url).get("downspout_executed_total", {}).get("counts") == 1.0)
            kafka.produce("orders", b"hang")
            try:
                eventually(lambda: page(f"{url}/healthz")[0] == 503)
                said = page(f"{url}/healthz")[1]
                assert re.search(r"counts has worked on orders\[0\]@1 for .+ s, .*counts.py:11", said), said
                assert page(f"{url}/readyz")[0] == 503
                found = series(url)
                assert found["downspout_executed_total"]["counts"] >= 1.0
                assert found["downspout_run_age_seconds"][""] > 0.0
            finally:
                open_gate(tmp_path / "counts.py")
            eventually(lambda: page(f"{url}/readyz") == (200, "ready\n"))

        with beside(look):
            options = ["--quiet", "--metrics-port", "0", "--set", "run.stuck_s=1"]
            assert main(["run", str(tmp_path / "counts.py"), *options]) == 143


@pytest.mark.slow
def test_health_shows_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tuple that has no place in Kafka is shown in the log as what it holds, and at the port as a tuple."""
    monkeypatch.chdir(tmp_path)
    hangs = ONES.replace("        pass", "        GATE.wait()").replace("[1]", '["jane@example.org"]')
    (tmp_path / "hangs.py").write_text("import threading\nGATE = threading.Event()\n" + hangs)
    caplog.set_level(logging.INFO, "downspout.export")

    def look() -> None:
        try:
            url = served_at(caplog)
            eventually(lambda: page(f"{url}/healthz")[0] == 503)
            said = page(f"{url}/healthz")[1]
            assert re.search(r"takes has worked on a tuple for .+ s, .*hangs.py:13", said), said
        finally:
            open_gate(tmp_path / "hangs.py")

    with beside(look):
        options = ["--quiet", "--metrics-port", "0", "--set", "run.stuck_s=1"]
        assert main(["run", "hangs.py", *options]) == 143


@pytest.fixture
def ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ones.py").write_text(ONES)
    return tmp_path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "downspout", "run", "ones.py", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_whose_metrics_are_read(ones: Path, number: int, code: int) -> None:
    """The exit is that of a run without metrics, though a client keeps a connection open."""
    process = start(ones, "--metrics-port", "0")
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "metrics are at" in line)
        url = line.partition("at ")[2].partition("/metrics")[0]
        assert url.startswith("http://127.0.0.1:")
        eventually(lambda: series(url).get("downspout_executed_total", {}).get("takes", 0.0) > 0.0)
        process.send_signal(number)
        err = process.communicate(timeout=WAIT_S)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, err
    assert "after a clean drain" in err


def test_a_port_in_use_is_told_before_anything_runs(
    ones: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the port, the address and a cure, and the exit code of a wrong option."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("DOWNSPOUT_RUN_METRICS_PORT", str(port))
        assert main(["run", "ones.py", "--records", "1"]) == 2
    err = capsys.readouterr().err
    assert (
        f"--metrics-port 127.0.0.1:{port}: cannot listen there: Address already in use. Try: stop what uses the port"
        in err
    )
    assert "stopped after" not in err


@pytest.mark.slow
def test_a_run_without_a_port_imports_nothing_for_it(ones: Path) -> None:
    """Neither a library nor what serves or sends metrics is loaded, but only what looks whether that is wanted."""
    code = (
        "import sys; from downspout.cli import main; main(['run', 'ones.py', '--records', '1', '--quiet']); "
        "print([m for m in sys.modules if m.startswith(('prometheus_client', 'opentelemetry', 'downspout.export.', "
        "'starlette', 'uvicorn'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['downspout.export.beside']\n"
