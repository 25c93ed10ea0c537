"""Measurement and reports for the benchmarks: cost of processes, runs by turns, statistics and tables.

A *contender* is a command line. It runs as a separate process, by turns with the others. Measured is the CPU time of
the process **and all its descendants** (the JVM of a Spark session, worker processes). CPU time comes first because,
unlike wall time, it is reliable on a busy machine.

The descendants are all members of the session that the command leads, and their descendants, which may have their own
sessions. We are a subreaper: orphans become our children, so their CPU time is counted when they end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from downspout.errors import MissingExtraError
from downspout.system.java import for_spark

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
QUICK_RESULTS = ROOT / "build" / "bench"
"""The folder for quick runs, whose figures are not results."""
NO_RESULT = """**A quick run: no result.** It shows that all works. Among so few records starting costs more than all
else, and to take it off leaves noise, which may be below zero."""

SAMPLE_S = 0.1
ORPHANS_S_MAX = 60.0
_SET_CHILD_SUBREAPER = 36
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

T = TypeVar("T")


class BenchError(Exception):
    """A run failed, or its result is wrong, so it has no figure."""


class HungError(BenchError):
    """A run did not end in time."""


@dataclass(frozen=True)
class Cost:
    """The cost of a run.

    Attributes:
        wall_s: from start to exit, in seconds.
        cpu_s: user and system time of all its processes, in seconds.
        rss_bytes: the largest total resident size of its processes; shared pages count for each.
    """

    wall_s: float
    cpu_s: float
    rss_bytes: int


# --- one run ---


class Process(NamedTuple):
    """A line of the process table: times in seconds, ``waited_s`` that of children it has waited for."""

    parent: int
    session: int
    own_s: float
    waited_s: float
    started: int
    rss_bytes: int

    @property
    def cpu_s(self) -> float:
        """The time of both."""
        return self.own_s + self.waited_s


def processes() -> dict[int, Process]:
    """Return the table of processes, by number.

    Raises:
        BenchError: this is not Linux.
    """
    if not Path("/proc/self/stat").exists():
        raise BenchError("Benchmarks count the CPU time of whole process trees, which needs Linux's /proc")
    numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return {number: process for number in numbers if (process := process_of(number))}


def process_of(pid: int) -> Process | None:
    """Return the line of one process; None if it has ended."""
    try:
        # A name may contain blanks and brackets, so the fields from 3 on (proc(5)) begin after the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    own, waited = (sum(map(int, pair)) / _TICKS for pair in (fields[11:13], fields[13:15]))
    return Process(int(fields[1]), int(fields[3]), own, waited, int(fields[19]), int(fields[21]) * _PAGE)


def _with_descendants(table: Mapping[int, Process], roots: Collection[int]) -> dict[int, Process]:
    children: dict[int, list[int]] = {}
    for number, process in table.items():
        children.setdefault(process.parent, []).append(number)
    found, todo = {}, list(roots)
    while todo:
        if (one := todo.pop()) in table and one not in found:
            found[one] = table[one]
            todo += children.get(one, [])
    return found


def run(command: Sequence[str], timeout_s: float, *, environment: Mapping[str, str] | None = None,
        cwd: Path | None = None) -> Cost:  # fmt: skip
    """Run a command to its end; return its cost, including its start.

    Args:
        command: the program and its arguments.
        timeout_s: timeout in seconds.
        environment: variables in addition to ours.
        cwd: where it runs; default: here.

    Raises:
        HungError: it did not end in time, and was killed.
        BenchError: it failed. Both messages have the end of its output.
    """
    with _adopting_orphans(), tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            cwd=cwd, env=os.environ | dict(environment or {}),
        )  # fmt: skip
        try:
            with _watched(process.pid, timeout_s) as peak:
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                wall_s = time.monotonic() - start
                cpu_s = used.ru_utime + used.ru_stime + _reap(process.pid)
        finally:
            kill_all(process.pid)
        # If its children were killed first, it may exit with 0.
        is_late = wall_s >= timeout_s
        if process.returncode or is_late:
            output.seek(0)
            said = f"{' '.join(command)}\n{output.read()[-3000:].decode(errors='replace')}"
            if is_late:
                raise HungError(f"did not end in {timeout_s:.0f} s:\n{said}")
            raise BenchError(f"ended with {process.returncode} after {wall_s:.0f} s:\n{said}")
    return Cost(wall_s, cpu_s, peak[0])


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Adopt orphans while a program is measured."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def _watched(session: int, timeout_s: float) -> Iterator[list[int]]:
    """Yield a list with the session's largest resident size, updated meanwhile; kill the session at the timeout."""
    peak, over, deadline = [0], threading.Event(), time.monotonic() + timeout_s

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            members = members_of(session)
            alone = max((_high_water(pid) for pid in members), default=0)  # peaks between samples
            peak[0] = max(peak[0], alone, sum(process.rss_bytes for process in members.values()))
            if time.monotonic() > deadline:
                kill_all(session)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def members_of(session: int) -> dict[int, Process]:
    table = processes()
    return _with_descendants(table, [pid for pid, process in table.items() if process.session == session])


def _high_water(pid: int) -> int:
    """Return the largest resident size that one process ever had, in bytes.

    Not ``ru_maxrss``, which starts with the size of its parent, ours.
    """
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _reap(session: int) -> float:
    """Wait for the orphans of a command, and return their CPU time in seconds."""
    cpu_s, deadline = 0.0, time.monotonic() + ORPHANS_S_MAX
    while members := members_of(session):
        for pid in [pid for pid, process in members.items() if process.parent == os.getpid()]:
            ended, _, used = os.wait4(pid, os.WNOHANG)
            if ended:
                cpu_s += used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            raise BenchError(f"Processes {sorted(members)} did not end by themselves")
        time.sleep(0.01)
    return cpu_s


def kill_all(session: int) -> None:
    """Kill the remaining processes of a session, usually none; its id is not reused while a member lives."""
    for pid in members_of(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# --- many runs ---


def by_turns(contenders: Sequence[T], runs: int) -> Iterator[tuple[int, T]]:
    """Yield ``(run, contender)``: each once per run, in rotating order, so that none has a favoured position.

    >>> list(by_turns("abc", 2))
    [(0, 'a'), (0, 'b'), (0, 'c'), (1, 'b'), (1, 'c'), (1, 'a')]
    """
    for number in range(runs):
        for place in range(len(contenders)):
            yield number, contenders[(number + place) % len(contenders)]


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each figure over some runs."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        int(statistics.median(cost.rss_bytes for cost in costs)),
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format the median and the range of values.

    >>> spread([3.0, 1.0, 2.0]), spread([2.0], 1)
    ('2.00 (1.00 – 3.00)', '2.0')
    """
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} – {max(values):,.{digits}f})"


def mib(size: float) -> str:
    """Return a size in bytes as whole MiB."""
    return f"{size / 2**20:,.0f} MiB"


# --- reports ---


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are right-aligned.

    Raises:
        ValueError: a row has another number of cells.

    >>> print(table(["what", "CPU-s"], [["loop", "5.0"]]))
    | what | CPU-s |
    | --- | ---: |
    | loop | 5.0 |
    """
    if wrong := [row for row in rows if len(row) != len(columns)]:
        raise ValueError(f"{len(columns)} columns, and a row of {len(wrong[0])}: {wrong[0]}")
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def machine(load_before: float) -> str:
    """Describe the machine and its load, without which no figure is meaningful."""
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE / 2**30
    return (
        f"{os.cpu_count()} cores ({_cpu_model()}), {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}; load {load_before:.1f} before and "
        f"{load():.1f} after; {time.strftime('%Y-%m-%d', time.gmtime())}."
    )


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def say(line: str) -> None:
    """Notify the waiting parent."""
    print(line, file=sys.stderr, flush=True)


def save(folder: Path, name: str, text: str, figures: Any = None, notes: Sequence[str] = ()) -> None:
    """Print a report with notes, and write it to ``<name>.md``, and the figures of all runs to ``<name>.json``."""
    if folder == QUICK_RESULTS:
        notes = [*notes, NO_RESULT]
    text = "\n\n".join([text, *notes])
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    if figures is not None:
        content = json.dumps(figures, indent=1, default=lambda value: vars(value))
        (folder / f"{name}.json").write_text(content + "\n", encoding="utf-8")


# --- the command line ---


def begin(main: Callable[[], None]) -> None:
    """Run a benchmark; print its errors without a traceback."""
    with suppress(MissingExtraError):  # contenders that need Java report it themselves
        for_spark(os.environ)  # Spark contenders only check JAVA_HOME and the PATH
    try:
        main()
    except BenchError as error:
        sys.exit(str(error))


class Options(argparse.ArgumentParser):
    """The command line of a benchmark: ``--runs``, ``--quick``, ``--results``, and its own options.

    Args:
        purpose: the benchmark's module docstring.
        runs: number of runs of each contender.
    """

    def __init__(self, purpose: str | None, runs: int) -> None:
        super().__init__(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._quick: dict[str, Any] = {"runs": 1}
        self.add_argument("--runs", type=int, default=runs, help=f"of each contender; default: {runs}")
        self.add_argument("--quick", action="store_true", help="few records, one run: does it work? No result")
        self.add_argument("--results", type=Path, help="where the report goes; default: bench/results, quick: build")

    def size(self, name: str, full: Any, quick: Any, **given: Any) -> None:
        """Add an option for a size, with its defaults in full and quick runs."""
        self._quick[name.strip("-").replace("-", "_")] = quick
        self.add_argument(name, default=full, **given)

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the options; in a quick run, sizes default to small ones."""
        plain = self.parse_args(arguments)
        if plain.quick:
            self.set_defaults(**self._quick)
            plain = self.parse_args(arguments)
        plain.results = plain.results or (QUICK_RESULTS if plain.quick else RESULTS)
        return plain
