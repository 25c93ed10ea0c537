"""The whole demo as a user runs it: a process of its own, a real broker, real Spark, interrupted and run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from demos.flights_data import load_flights, reference_routes
from demos.on_local import CHARTS
from downspout.sink import Layout
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

COUNT = 5_000
PROJECT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
HELD = """
import runpy, time
from downspout.sink.storage import Disk
commit = Disk.put_if_absent
def held(self, path, content, temporary):
    while path.parent.name == "log" and len(list(path.parent.glob("*.json"))) >= 10:
        time.sleep(0.1)
    return commit(self, path, content, temporary)
Disk.put_if_absent = held
runpy.run_module("demos.on_local", run_name="__main__", alter_sys=True)
"""
"""The demo with sinks that commit half of their flushes: however quick it is, it is not done before it is killed."""


class Demo:
    """Runs the demo in an own home with an own output; ends what it started."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "output"
        self._environment = {
            **os.environ,
            "DOWNSPOUT_HOME": str(folder / "home"),
            "DOWNSPOUT_PARQUET_FLUSH_ROWS": "250",
            "PYTHONPATH": str(PROJECT),
            "PYTHONUNBUFFERED": "1",
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *program: str) -> subprocess.Popen[str]:
        """Start it, or a program that does what it does."""
        command = [sys.executable, *(program or ("-m", "demos"))]
        command += ["--flights", str(COUNT), "--output", str(self.output)]
        process = subprocess.Popen(
            command, cwd=PROJECT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._started.append(process)
        return process

    def run(self) -> tuple[int, str]:
        """Run it to its end; return the exit code and what it said."""
        process = self.start()
        said, _ = process.communicate()
        return process.returncode, said

    def flushes(self) -> int:
        return len(list((Layout(self.output / "flights").log).glob("*.json")))

    def end(self) -> None:
        """Kill what still runs; the broker ends with its demo."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    demo.end()


def read_until(process: subprocess.Popen[str], start: str) -> None:
    """Read what a process says up to a line that starts so."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(start):
            return
    pytest.fail(f"it never said {start!r}: {''.join(said)}")


@pytest.mark.sweep
def test_demo_is_exact_however_it_is_interrupted(demo: Demo) -> None:
    """After Ctrl-C in step 2 and kill -9 in the middle of step 3 the demo ends right; then it has nothing to do."""
    first = demo.start()
    read_until(first, "2 ")
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate()
    assert first.returncode == 130, said
    assert "Interrupted. Run it again" in said

    second = demo.start("-c", HELD)
    eventually(demo.flushes, every_s=0.002, alive=second, otherwise=lambda: second.communicate()[0])
    second.kill()
    second.wait()
    assert 0 < demo.flushes() < COUNT / 250

    code, said = demo.run()
    assert code == 0, said
    assert f"{COUNT:,} of {COUNT:,} offsets are in the files, each exactly once" in said
    assert "✗" not in said
    assert all((demo.output / "charts" / name).read_bytes().startswith(PNG) for name in CHARTS)
    wanted = reference_routes(load_flights(COUNT))
    found = pd.read_parquet(demo.output / "report" / "routes")[list(wanted.columns)]
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, check_exact=True)

    code, said = demo.run()
    assert code == 0, said
    assert said.count("nothing new") == 3
    assert "starting Spark" not in said

    # An audit that cannot fail proves nothing: take one file away.
    next((demo.output / "flights").glob("month=*/*.parquet")).unlink()
    code, said = demo.run()
    assert code == 1, said
    assert " missing (" in said
