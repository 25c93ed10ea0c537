"""The CPU time of a tree that runs: bench/cpu_meter.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.cpu_meter import CpuMeter
from tests.command import PYTHON_CODE, cli

BURN = "import time\nwhile time.process_time() < 1.5: pass\n"
TELL = "print(time.process_time(), flush=True)\n"
IGNORING = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"  # as PySpark's daemon does
CHILD = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURN + TELL!r}]).wait()\n"
TELLING = (
    "import sys, time\nsys.stdin.readline()\nbegun = time.process_time()\n{0}\n"
    "print(time.process_time() - begun, 'itself', flush=True)\nsys.stdin.read()\n"
)


@contextmanager
def tree(program: str) -> Iterator[tuple[CpuMeter, subprocess.Popen[bytes]]]:
    """Run a program that begins with the first line that it gets, and answers when it is done."""
    command = [sys.executable, "-c", TELLING.format(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            with CpuMeter(process.pid) as meter:
                yield meter, process
        finally:
            process.communicate(timeout=60)


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("program", [BURN, CHILD, IGNORING + CHILD], ids=["itself", "child", "child, ignored"])
def test_time_counts_once_whoever_took_it(program: str) -> None:
    """What a process burns counts once: it or its child, whether or not its parent waits for the end."""
    with tree(program) as (meter, process):
        assert process.stdin is not None
        assert process.stdout is not None
        before = meter.cpu_s
        process.stdin.write(b"now\n")
        process.stdin.flush()
        used_s, is_last = 0.0, False
        while not is_last:  # the child's time, if there is one, and then the program's own
            figure, *last = process.stdout.readline().split()
            used_s, is_last = used_s + float(figure), bool(last)
        # Of a child that its parent does not wait for, what came after the meter's last look is not known.
        assert 0.6 * used_s < meter.cpu_s - before < 1.6 * used_s


@pytest.mark.slow
def test_of_our_own_process_looking_does_not_count() -> None:
    """A meter of the process that it runs in leaves out what it costs itself."""
    looking = (
        "import os, time\nfrom bench.cpu_meter import CpuMeter\n"
        "with CpuMeter(os.getpid()) as meter:\n"
        "    before, begun = meter.cpu_s, time.process_time()\n"
        "    while time.process_time() - begun < 0.2: time.sleep(0.1)\n"
        "    print(meter.cpu_s - before, time.process_time() - begun)\n"
    )
    done = cli(looking, program=PYTHON_CODE)
    counted, used = map(float, done.stdout.split())
    assert counted < 0.5 * used
