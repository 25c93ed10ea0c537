"""What a command does not need, its start does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
from downspout.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("imported", *sys.modules)
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["settings", "run"]])
def test_a_help_imports_no_large_library(words: list[str]) -> None:
    """Helps, the version and the table of settings are there without numpy, pyarrow, kafka-python and streamparse."""
    command = [sys.executable, "-c", CODE, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "downspout.cli" in imported, done.stderr
    assert not imported & {"numpy", "pyarrow", "kafka", "streamparse", "pandas"}
