"""The demo's saved state, and its handling of directories that were deleted or belong to another topic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demos import state
from demos.state import Output
from downspout.errors import DownspoutError
from downspout.sink import Layout


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_group_stays_with_the_output(tmp_path: Path) -> None:
    group = Output(tmp_path / "a").group("topic-1")
    assert Output(tmp_path / "a").group("topic-1") == group
    assert Output(tmp_path / "b").group("topic-1") != group


@pytest.mark.parametrize("sink", state.SINKS)
def test_group_is_new_when_a_sink_was_deleted(tmp_path: Path, sink: str) -> None:
    """Without one of the sinks' directories all is read again, and the other sink's files stay."""
    output = Output(tmp_path)
    group = output.group("topic-1")
    (other,) = (name for name in state.SINKS if name != sink)
    kept = put(tmp_path / other / "part.parquet")
    (tmp_path / sink).rmdir()
    assert output.group("topic-1") != group
    assert kept.exists()


def test_files_of_another_topic_are_deleted(tmp_path: Path) -> None:
    """When the topic is another one, what the demo made of the old one goes, and nothing else does."""
    output = Output(tmp_path)
    group = output.group("topic-1")
    made = [put(tmp_path / name / "file") for name in ("flights", "route_delays", "report", "charts")]
    foreign = put(tmp_path / "mine" / "file")
    assert output.group("topic-2") != group
    assert not any(path.exists() for path in made)
    assert foreign.exists()


def test_files_that_the_demo_did_not_make_are_kept(tmp_path: Path) -> None:
    """Sinks that were filled by `downspout run` before the first demo are continued."""
    kept = put(tmp_path / "flights" / "part.parquet")
    Output(tmp_path).group("topic-1")
    assert kept.exists()


def test_report_is_current_until_something_moves(tmp_path: Path) -> None:
    """A noted report is current until a log entry appears, an input changes, or a file of it is gone."""
    output, program = Output(tmp_path), put(tmp_path / "pipeline.py")
    entry = put(Layout(tmp_path / "flights").log / "1.json")
    chart = put(tmp_path / "charts" / "a.png")
    assert not output.report_is_current(output.fingerprint(program), [chart])
    output.note_report(noted := output.fingerprint(program))
    assert output.report_is_current(output.fingerprint(program), [chart])
    put(entry.with_name("2.json"))
    assert output.fingerprint(program) != noted
    entry.with_name("2.json").unlink()
    put(program, "changed")
    assert output.fingerprint(program) != noted
    put(program)
    assert output.report_is_current(output.fingerprint(program), [chart])
    chart.unlink()
    assert not output.report_is_current(output.fingerprint(program), [chart])


def test_only_one_demo_at_a_time() -> None:
    """While one process holds the lock another is told so, and afterwards may take it."""
    other = "from demos.state import only_one\nwith only_one(): print('got it')"
    with state.only_one():
        held = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "another demo is running here" in held.stderr
    free = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert free.stdout.strip() == "got it"


def test_lock_is_refused_within_a_process_too() -> None:
    """Two holders in one process are refused as well: the lock belongs to the open file."""
    with state.only_one(), pytest.raises(DownspoutError, match="another demo"), state.only_one():
        pass


def test_broker_is_known_by_its_process() -> None:
    """A broker counts as the demo's own only by the process id that was noted, until it is taken back."""
    assert not state.started_broker(42)
    state.note_broker(42)
    assert state.started_broker(42)
    assert not state.started_broker(43)
    state.note_broker(None)
    assert not state.started_broker(42)
