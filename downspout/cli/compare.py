"""``downspout compare``: check that a topology makes the same tables on every engine."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from downspout.cli.arguments import add_settings, add_topology, exit_codes, place
from downspout.errors import ConfigError
from downspout.formatting import counted

if TYPE_CHECKING:
    from rich.progress import Progress

NAMES = ("local", "local-record", "local-chunk", "storm", "spark", "spark-record", "spark-chunk", "native")
BY_DEFAULT = ("local", "storm", "spark", "native")  # Engines with a fixed kafka.emit run only on request


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="check that a topology makes the same tables on every engine",
        description="Run a topology over the same offsets on the local engine, on Storm (if `downspout storm start` "
        "runs one), on Spark, and as its native Spark version (topologies/x_spark.py), and compare the finished "
        "tables row by row. Each engine has its own directories and consumer groups, which are deleted afterwards.",
        epilog=exit_codes(
            _0="equal",
            _1="different",
            _2="fewer than two engines ran, an engine of --engines did not finish, or an option is wrong",
            _4="no broker",
        )
        + " Reading starts where kafka.start says (LATEST: at the beginning) and stops at the current end. If a bolt "
        "writes elsewhere, it does so once for each engine.",
    )
    add_topology(parser)
    parser.add_argument("--engines", metavar="NAMES", help=f"some of {','.join(NAMES)} (default: those of "
                        f"{','.join(BY_DEFAULT)} that are available); -record, -chunk: kafka.emit")  # fmt: skip
    parser.add_argument("--keep", type=place, metavar="DIR", help="write tables and logs to this folder, and keep them")
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Compare, print, and return the exit code."""
    from downspout.cli.terminal import log_to_stderr
    from downspout.compare.comparison import run
    from downspout.compare.outputs import freeze

    log_to_stderr(quiet=True)
    engines = parse_engines(arguments.engines)
    with directory(arguments.keep) as folder, sigterm_as_ctrl_c(), Shown() as shown:
        job = freeze(arguments.target, arguments.topology, arguments.overrides, folder)
        shown("compare", f"{job.graph.name}, {counted(job.records, 'offset')}, in {folder}")
        report = run(job, engines or BY_DEFAULT, explicit=bool(engines), progress=shown)
    print(json.dumps(report.as_dict(), indent=2, default=str) if arguments.json else report.render())
    return report.exit_code


def parse_engines(text: str | None) -> list[str]:
    """Return the named engines, each once.

    >>> parse_engines("native, local"), parse_engines(None)
    (['native', 'local'], [])
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"--engines {text}: there is no engine {name!r}", cure=f"some of {','.join(NAMES)}")
    if len(set(names)) == 1:
        raise ConfigError(f"--engines {text}: a comparison needs at least two engines", cure="--engines local,spark")
    return list(dict.fromkeys(names))


@contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    """Yield an empty folder: the user's, or a temporary one."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="downspout-compare-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_empty = not any(keep.iterdir())
    except OSError as error:
        raise ConfigError(f"--keep {keep}: {error.strerror}", cure="a folder that can be written to") from None
    if not is_empty:
        raise ConfigError(f"--keep {keep}: the folder is not empty", cure="a new folder")
    yield keep.absolute()


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: stop the engines, and delete temporary files."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Shown:
    """Shows progress on standard error: a line per event, and on a terminal a clock for the running engine."""

    def __enter__(self) -> Self:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._running: Progress | None = None
        return self

    def __call__(self, engine: str, what: str) -> None:
        """Show what an engine does; the clock of ``runs`` continues through messages that begin with ``waiting``."""
        if self._running is not None and what.startswith("waiting"):
            self._running.console.print(f"{engine}: {what}", markup=False, soft_wrap=True)
            return
        self._stop()
        if what != "runs" or not self._console.is_terminal:
            self._console.print(f"{engine}: {what}", markup=False, soft_wrap=True)
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._running = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=self._console, transient=True,
        )  # fmt: skip
        self._running.add_task(f"{engine} runs", total=None)
        self._running.start()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def __exit__(self, *_: object) -> None:
        self._stop()
