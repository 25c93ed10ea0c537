"""What becomes of a command whose output nobody reads to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parquet.support import write_rows


@pytest.mark.slow
def test_a_closed_pipe_is_no_success(tmp_path: Path) -> None:
    """A command whose reader has gone ends with 141, as the shell's own would, never with an exact audit's 0."""
    write_rows(tmp_path / "out", [("t", "id", 0, offset, "") for offset in range(3)])
    next((tmp_path / "out").glob("*.parquet")).unlink()
    command = [sys.executable, "-m", "downspout", "audit", str(tmp_path / "out"), "--files-only"]
    whole = subprocess.run(command, capture_output=True, text=True, check=False)
    assert whole.returncode == 10
    cut = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert cut.stdout is not None
    cut.stdout.close()
    _, said = cut.communicate()
    assert (cut.returncode, said) == (141, b"")
