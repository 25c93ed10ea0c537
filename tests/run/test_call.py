"""``downspout.run(…)`` from Python: in this process, in a script, and in the kernel of a notebook."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import streamparse

import downspout
from downspout.errors import ConfigError, TopologyError
from downspout.run import live_view as live
from tests.export.test_run_metrics import served_at
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 300
NUMBERS = """
import streamparse
from streamparse import Topology

class Numbers(streamparse.Spout):
    outputs = ["number"]
    def initialize(self, conf, context):
        self.left = int(conf.get("numbers.count", 10))
    def next_tuple(self):
        if self.left:
            self.left -= 1
            self.emit([self.left], tup_id=str(self.left))
    def exhausted(self):
        return not self.left
    end_reached = exhausted

class Keep(streamparse.Bolt):
    outputs = []
    def process(self, tup):
        if tup.values.number == 3:
            self.logger.warning("three")

class Count(Topology):
    config = {"numbers.count": 10}
    numbers = Numbers.spec()
    keep = Keep.spec(inputs=[numbers])
"""
"""A topology that needs no Kafka; what a notebook's cell defines."""


exec(NUMBERS)
Count: Any = globals()["Count"]


@pytest.mark.parametrize("how", ["argument", "setting"])
def test_metrics_are_served_beside_it(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """With `metrics_port`, or the setting, Prometheus and Kubernetes read at that port while the run goes on."""
    caplog.set_level(logging.INFO, "downspout.export")
    over = threading.Event()
    found: dict[str, str] = {}

    class Waits(Count.numbers.component_cls):
        def exhausted(self) -> bool:
            return over.is_set() and not self.left

        end_reached = exhausted

    def read() -> None:
        def read_both() -> bool:
            for path in ("metrics", "healthz"):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/{path}") as answer:
                    found[path] = answer.read().decode()
            return "downspout_run_completed_total" in found.get("metrics", "")

        try:
            url = served_at(caplog)
            eventually(read_both)
        finally:
            over.set()

    numbers = Waits.spec()
    waiting = type("Waiting", (streamparse.Topology,), {"config": Count.config, "numbers": numbers})
    reader = threading.Thread(target=read)
    reader.start()
    if how == "argument":
        report = downspout.run(waiting, until="end", quiet=True, metrics_port=0)
    else:
        report = downspout.run(waiting, until="end", quiet=True, settings={"run.metrics_port": 0})
    reader.join()
    assert report.result.completed == 10
    assert found["healthz"] == "ok\n"
    assert 'downspout_run_completed_total{topology="' in found["metrics"]


def test_a_class_is_run_and_its_report_is_the_summary() -> None:
    """`downspout.run` takes a class, and returns the result with the summary of the command line as its text."""
    report = downspout.run(Count, until="end", quiet=True)
    assert (report.result.reason, report.result.completed) == ("end", 10)
    assert repr(report) == live.summary(report.name, report.result)
    assert report.name == "test_call"


def test_the_package_can_be_called_too() -> None:
    """When `downspout.run` has been imported as a package, a call of it does the same."""
    import downspout.run.live_view

    assert downspout.run.live_view is live
    assert downspout.run(Count, until="end", quiet=True).result.completed == 10


def test_mistakes_are_errors_of_ours() -> None:
    """A file that is missing, a setting that is unknown, and several workers are errors with a cure."""
    with pytest.raises(TopologyError, match="does not exist"):
        downspout.run("topologies/nothing.py")
    with pytest.raises(ConfigError, match=r"Try: kafka\.group"):
        downspout.run(Count, settings={"kafak.group": "x"}, quiet=True)
    with pytest.raises(ConfigError, match=r"run.workers = 2.*downspout run FILE --workers"):
        downspout.run(Count, settings={"run.workers": 2}, quiet=True)


def test_what_a_notebook_shows_is_no_markup() -> None:
    """Texts of records and components are escaped in the report of a cell."""
    report = downspout.run(Count, until="end", quiet=True)
    report.warnings.append("<script>alert(1)</script>")
    assert "<script>" not in report._repr_html_()
    assert "&lt;script&gt;" in report._repr_html_()


@pytest.mark.slow
def test_ctrl_c_drains_and_returns_in_a_script(tmp_path: Path) -> None:
    code = NUMBERS + textwrap.dedent("""
        import downspout
        class Endless(Numbers):
            def next_tuple(self):
                print("runs", flush=True)
            def end_reached(self):
                return False
        class Long(Topology):
            numbers = Endless.spec()
        report = downspout.run(Long, quiet=True)
        print("ended", report.name, report.result.reason, report.result.signal, flush=True)
    """)
    file = tmp_path / "script.py"
    file.write_text(code, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(file)], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=ANSWER_S)
    finally:
        process.kill()
        process.wait()
    assert output.splitlines()[-1] == "ended script signal 2" or output.splitlines()[-1].startswith(
        "ended script-Long signal 2"
    )
    assert process.returncode == 0


class Kernel:
    """A notebook's kernel, and what its cells show."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self._client = client

    def cell(self, code: str, seen: Callable[[str], None] = lambda kind: None) -> tuple[str, list[tuple[str, Any]]]:
        """Run a cell; return its status, and each message with its content."""
        found: list[tuple[str, Any]] = []

        def take(message: Any) -> None:
            found.append((message["msg_type"], message["content"]))
            seen(message["msg_type"])

        reply = self._client.execute_interactive(code, output_hook=take, timeout=ANSWER_S, allow_stdin=False)
        return str(reply["content"]["status"]), found


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    from jupyter_client import KernelManager

    manager = KernelManager(kernel_cmd=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    manager.start_kernel(cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=ANSWER_S)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.sweep
@pytest.mark.slow
def test_a_notebook_shows_the_run_and_its_report(kernel: Kernel) -> None:
    """A cell has one output that is renewed while its class runs, and the report as its result."""
    assert kernel.cell(NUMBERS + "import downspout")[0] == "ok"
    status, shown = kernel.cell('downspout.run(Count, until="end")')
    assert status == "ok", shown
    kinds = [kind for kind, _ in shown]
    assert kinds.count("display_data") == 1
    table = next(content["data"]["text/html"] for kind, content in shown if kind == "display_data")
    assert "numbers" in table
    assert "keep" in table
    last = next(content["data"]["text/html"] for kind, content in reversed(shown) if kind == "update_display_data")
    assert "10 done" in last
    result = next(content["data"] for kind, content in shown if kind == "execute_result")
    assert "Count stopped after" in result["text/plain"]
    assert "10 tuple trees complete" in result["text/html"]


@pytest.mark.sweep
@pytest.mark.slow
def test_the_interrupt_of_a_notebook_drains_and_the_kernel_goes_on(kernel: Kernel) -> None:
    """An interrupt ends the run in order: the cell has its report, no traceback, and the next cell runs."""
    assert kernel.cell(NUMBERS + "import downspout\nNumbers.end_reached = lambda self: False")[0] == "ok"
    interrupted: list[str] = []

    def interrupt(kind: str) -> None:
        if kind in ("display_data", "update_display_data") and not interrupted:
            interrupted.append(kind)
            kernel.manager.interrupt_kernel()

    status, shown = kernel.cell("report = downspout.run(Count)\nreport", interrupt)
    assert (status, bool(interrupted)) == ("ok", True), shown
    assert "it received a signal" in next(c["data"]["text/plain"] for kind, c in shown if kind == "execute_result")
    status, shown = kernel.cell("print(report.result.completed, report.result.drained)")
    assert (status, [c["text"] for kind, c in shown if kind == "stream"]) == ("ok", ["10 True\n"])
