"""Commands' standard output, and commands whose output is not read to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from downspout.cli import main
from tests.sink.support import write_rows

SINKING = """
import os
from streamparse import Topology
from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout

os.system("echo by a program")

class Sinking(Topology):
    spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
    sink = ParquetBolt.spec(inputs=[spout], directory="out", schema=["value:binary"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--topology", "sinking.py")], ids=["alone", "topology"])
def test_a_closed_pipe_is_no_success(tmp_path: Path, more: tuple[str, ...]) -> None:
    """A command whose reader has gone ends with 141, as the shell's own would, never with an exact audit's 0."""
    write_rows(tmp_path / "out", [("t", "id", 0, offset, "") for offset in range(3)])
    next((tmp_path / "out").glob("*.parquet")).unlink()
    (tmp_path / "sinking.py").write_text(SINKING, encoding="utf-8")
    command = [sys.executable, "-m", "downspout", "audit", "out", "--files-only", "--json", *more]
    whole = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert whole.returncode == 10
    assert json.loads(whole.stdout)["exit_code"] == 10
    assert whole.stderr == ("by a program\n" if more else "")
    cut = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert cut.stdout is not None
    cut.stdout.close()
    _, said = cut.communicate()
    assert (cut.returncode, said.decode()) == (141, whole.stderr)


PRINTING = """
import atexit, os
from streamparse import Bolt, Spout, Topology

print("loaded")
os.system("echo by a program")
atexit.register(print, "at the end")

class Ones(Spout):
    outputs = ["n"]
    def next_tuple(self):
        self.emit([1], tup_id="1")

class Prints(Bolt):
    def process(self, tup):
        print("printed")
        os.write(1, b"written\\n")

class Printing(Topology):
    ones = Ones.spec()
    prints = Prints.spec(inputs=[ones])
"""


@pytest.mark.slow
def test_a_summary_on_standard_output_stands_there_alone(tmp_path: Path) -> None:
    """With `--json -` what a topology's file and its bolts print, also past Python, goes to stderr."""
    (tmp_path / "printing.py").write_text(PRINTING, encoding="utf-8")
    command = [sys.executable, "-m", "downspout", "run", "printing.py", "--records", "3", "--json", "-"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, text=True, check=False)
    assert json.loads(done.stdout)["reason"] == "records", done.stderr
    for said in ("loaded", "by a program", "printed", "written", "at the end"):
        assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (">/dev/full", 2, "downspout: standard output: No space left on device. Try: to write it elsewhere\n"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_standard_output_that_is_full_or_closed_is_no_traceback(
    tmp_path: Path, ends: str, code: int, said: str
) -> None:
    """Who closes what a command writes to does not want to read it; a device that is full is an error with a reason."""
    (tmp_path / "printing.py").write_text(PRINTING, encoding="utf-8")
    line = f'"{sys.executable}" -m downspout run printing.py --records 3 --json - {ends}'
    done = subprocess.run(line, shell=True, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_summary_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody runs for hours to learn then that there is no such directory."""
    (tmp_path / "printing.py").write_text(PRINTING, encoding="utf-8")
    command = ["run", str(tmp_path / "printing.py"), "--records", "3", "--json"]
    for path in (tmp_path, tmp_path / "no" / "x.json"):
        assert main([*command, str(path)]) == 2
        assert "printed" not in capsys.readouterr().out
