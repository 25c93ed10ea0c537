"""Ctrl-C before a command has begun."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.cli import interrupts, main
from downspout.system import handled_by

IMPORTS = """
import pathlib, signal
signal.raise_signal(signal.SIGINT)
pathlib.Path("imported").touch()
from streamparse import Spout, Topology
class Ones(Spout):
    outputs = ["n"]
class Made(Topology):
    ones = Ones.spec()
"""


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Ctrl-C do what it does in a new process, whatever handler a library has left, and imports take any time."""
    monkeypatch.setattr(interrupts, "PATIENCE_S", 600.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_import_is_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the middle of an import waits for its end; then the command ends with 130 and one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.py").write_text(IMPORTS)
    assert main(["check", "made.py"]) == 130
    assert (tmp_path / "imported").exists()
    assert "Traceback" not in (err := capsys.readouterr().err)
    assert err.endswith("downspout: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_a_run_that_begins_meanwhile_answers_alone() -> None:
    """Ctrl-C in an import that waits until a run has its own handler is that run's, and the command's no more."""
    heard = threading.Event()
    importing = compile("signal.raise_signal(signal.SIGINT)", "<frozen importlib._bootstrap>", "exec")
    try:
        with interrupts.after_imports():
            exec(importing, {"signal": signal})
            with handled_by(lambda number, frame: heard.set()):
                assert heard.wait(60)
    except KeyboardInterrupt:
        pytest.fail("interrupted as well")


@pytest.mark.slow
def test_ctrl_c_before_a_command_has_begun_leaves_no_traceback() -> None:
    """The program takes care of Ctrl-C before it imports anything: exit code 130, one line."""
    code = "import signal, downspout.__main__; signal.raise_signal(signal.SIGINT)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (130, "downspout: interrupted\n")
