"""Costs of commands, statistics and tables: bench/harness.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import harness
from bench.harness import BenchError, Cost, HungError, Options, by_turns, median, run, save, table

BURN = "import time\nwhile time.process_time() < {0}: pass\n"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def wait_until(holds: Callable[[], bool]) -> bool:
    return any(holds() or time.sleep(0.05) for _ in range(1_200))


def test_cpu_time_of_children_is_counted() -> None:
    """What a command's own children burnt is in its cost."""
    child = BURN.format(0.4)
    cost = run(python(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)"), 60)
    assert cost.cpu_s >= 0.4


def test_cpu_time_of_an_orphan_is_counted() -> None:
    """What a program burns whose parent has ended before it (a JVM behind its Python) is in the cost, too."""
    child = BURN.format(0.4)
    cost = run(python(f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])"), 60)
    assert cost.cpu_s >= 0.4


@pytest.fixture
def until_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return lines of a program that wait until a look at its memory has begun after them, and has ended."""
    held, seen, members = tmp_path / "held", tmp_path / "seen", harness.members_of

    def look(session: int) -> Any:
        is_held = held.exists()
        found = members(session)
        if is_held:
            seen.touch()
        return found

    monkeypatch.setattr(harness, "members_of", look)
    return f"import os, time\nopen({str(held)!r}, 'w')\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"


@pytest.mark.slow
@pytest.mark.parametrize("own_session", [False, True])
def test_memory_is_that_of_all_processes_together(own_session: bool, until_seen: str) -> None:
    """Two processes that hold 64 MiB each at the same time have held 128 MiB together, whatever session each is in."""
    held = "import sys\nheld = b'x' * (64 << 20)\n"
    child = held + "print(flush=True)\nsys.stdin.read()\n"
    parent = (
        "import subprocess, sys\n"
        "pipe = subprocess.PIPE\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=pipe, stdout=pipe, "
        f"start_new_session={own_session})\n"
        f"child.stdout.readline()\n{held}{until_seen}child.communicate()\n"
    )
    assert run(python(parent), 60).rss_bytes >= 128 << 20


@pytest.mark.slow
def test_our_own_memory_is_not_the_commands(until_seen: str) -> None:
    """A command that holds little is not charged with the memory of the harness that starts it."""
    ballast = b"x" * (400 << 20)
    cost = run(python(until_seen), 60)
    assert 0 < cost.rss_bytes < len(ballast)


def test_a_command_that_fails_has_no_cost() -> None:
    """A failed run raises, with the end of what it printed."""
    with pytest.raises(BenchError, match=r"ended with 3 after .*\n(.*\n)*no such topic"):
        run(python("import sys\nprint('no such topic')\nsys.exit(3)"), 60)


@pytest.mark.slow
def test_a_command_that_never_ends_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, kill = tmp_path / "pid", harness.kill_all

    def kill_who_has_a_child(session: int) -> None:  # to have one takes a while on a busy machine
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        kill(session)

    monkeypatch.setattr(harness, "kill_all", kill_who_has_a_child)
    with pytest.raises(HungError, match="did not end in 2 s"):
        run(["sh", "-c", f"sleep 600 & echo $! > {note}; wait"], 2.0)
    stat = Path(f"/proc/{note.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.slow
def test_a_command_that_ends_well_once_its_children_are_killed_never_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is over its time has no figure, whatever its exit code."""
    monkeypatch.setattr(harness, "kill_all", lambda session: None)
    with pytest.raises(HungError):
        run(["sleep", "1"], 0.2)


def test_each_contender_is_first_once() -> None:
    """Over as many runs as there are contenders, each of them begins one."""
    order = list(by_turns("abc", 3))
    assert [order[place][1] for place in (0, 3, 6)] == ["a", "b", "c"]
    assert sorted(order) == [(number, one) for number in range(3) for one in "abc"]


def test_medians_are_taken_figure_by_figure() -> None:
    """One slow run changes no median: not even that of another figure."""
    runs = [Cost(1.0, 5.0, 10), Cost(9.0, 4.0, 30), Cost(2.0, 6.0, 20)]
    assert median(runs) == Cost(2.0, 5.0, 20)


def test_a_table_refuses_a_row_of_another_length() -> None:
    """A figure cannot slip into the column of another one."""
    with pytest.raises(ValueError, match="2 columns, and a row of 1"):
        table(["what", "CPU-s"], [["loop"]])


def test_quick_is_small_unless_a_size_is_given() -> None:
    """A quick run has small sizes and no place among the results; what is given is kept."""
    options = Options("purpose", runs=5)
    options.size("--records", 1000, 10, type=int)
    full, quick = options.read([]), options.read(["--quick"])
    assert (full.runs, full.records, full.results.name) == (5, 1000, "results")
    assert (quick.runs, quick.records) == (1, 10)
    assert quick.results != full.results
    assert options.read(["--quick", "--records", "7"]).records == 7


def test_a_report_is_saved_with_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is in the Markdown file, and every run's figures are in the JSON file."""
    save(tmp_path / "new", "peers", "# Report", {"loop": [Cost(1.0, 2.0, 3)]}, ["a note"])
    assert capsys.readouterr().out == (tmp_path / "new" / "peers.md").read_text() == "# Report\n\na note\n"
    found = json.loads((tmp_path / "new" / "peers.json").read_text())
    assert found == {"loop": [{"wall_s": 1.0, "cpu_s": 2.0, "rss_bytes": 3}]}
