"""Processes that die at call n: a topology runs against a Kafka and a database of which each call is a step.

What a process works with is handed to it :class:`Stepped`. A test is told of each step and may kill there; of the dead
nothing has an effect any more. Whoever comes next finds Kafka, the clock and the files as they were at that moment.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from downspout.errors import DownspoutError
from downspout.kafka import clusters
from downspout.offsets.stores.sql import open_database
from downspout.testing import ROUND_S, FakeKafka, Killed, VirtualClock, run_topology
from tests.machine import Process
from tests.sampling import WHOLE

ROOM = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where worlds are built: in memory, where there is such a place."""
EVERY = 1 if WHOLE else 9
"""In ``make test`` every so many-th step is tried: an odd number, so that each of two ways in turn has its turn."""
OPENS = ("consumer", "producer", "transactional_producer")
Kill = Callable[[int, str], Any]
"""Is told of each step (number, what); True kills there."""
_numbers = itertools.count()


class HastyClock(VirtualClock):
    """Virtual time in large steps: who waits for a session to end need not look a hundred times."""

    def sleep(self, seconds: float) -> None:
        """Let at least a fifth of a second pass, unless it is the time that a round takes."""
        self.advance(seconds if seconds <= ROUND_S else max(seconds, 0.2))


class Stepped:
    """Hands each call on, unless the process is dead; some are two steps: before it, and when it took effect.

    Args:
        process: whose it is.
        real: what does the work.
        is_step: is asked of each call, by its name.
    """

    def __init__(self, process: Process, real: Any, is_step: Callable[[str], bool] = lambda name: False) -> None:
        self._process, self._real, self._is_step = process, real, is_step

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            says = (lambda: self._process.step(self.label(name, args))) if self._is_step(name) else self._process.check
            says()
            answer = found(*args, **options)
            says()
            return Stepped(self._process, answer, self._is_step) if name in OPENS else answer

        return call

    def label(self, name: str, args: Sequence[Any]) -> str:
        return name

    def __enter__(self) -> Stepped:
        self._real.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._real.__exit__(*error)


class Database(Stepped):
    """A database, of which each statement is two steps."""

    def label(self, name: str, args: Sequence[Any]) -> str:
        return " ".join(str(args[0] if args else name).split())[:60]

    def close(self) -> None:
        """Close; of the dead the files are not looked at any more."""
        self._real.close()


class World:
    """What outlives the processes that run a topology: Kafka, the time, and what there is to be found in the end."""

    steps: ClassVar[Collection[str]] = ()
    """Calls of Kafka that are steps."""
    takes_over: ClassVar[bool] = False
    """Whether a process may end because another one has taken over; else an error is the test's."""

    def __init__(self, topology: Any, **settings: Any) -> None:
        self.topology, self.settings = topology, settings
        self.clock = HastyClock()
        self.kafka = FakeKafka(f"killing-{next(_numbers)}", self.clock)

    def lives(self, kill: Kill = lambda number, what: False, **settings: Any) -> bool:
        """Let a process run; return whether it got to the end."""

        def before(process: Process, step: Any) -> None:
            if kill(step.number, step.operation):
                self.died()
                raise Killed

        process = Process(f"life-{next(_numbers)}", before)
        config = {"kafka.bootstrap": f"fake://{process.name}", "topology.message.timeout.secs": 30, **self.settings}
        clusters.register(config["kafka.bootstrap"], Stepped(process, self.kafka, self.is_step))
        try:
            with self.stepped(process):
                run_topology(self.topology, config=config | settings, clock=self.clock)
        except Killed:
            return False
        except DownspoutError:
            assert process.dead or self.takes_over, "it ended with an error"
            return False
        finally:
            clusters.unregister(config["kafka.bootstrap"])
        return True

    def is_step(self, call: str) -> bool:
        return call in self.steps

    @contextmanager
    def stepped(self, process: Process) -> Iterator[None]:
        """Let more than Kafka be stepped for this process."""
        yield

    def died(self) -> None:
        """Keep what the dead leaves behind."""

    def moments(self) -> list[str]:
        """Return what each step of a run is that nothing happens to."""
        found: list[str] = []
        assert self.lives(lambda number, what: found.append(what))
        assert self.violations() == []
        return found

    def violations(self) -> list[str]:
        """Return what is wrong in the end."""
        raise NotImplementedError

    def committed(self, topic: str) -> Counter[str]:
        return Counter((record.value or b"").decode() for record in self.kafka.records(topic))


class DatabaseWorld(World):
    """Kafka and a file of SQLite, of which each statement is two steps.

    What a ``kill -9`` leaves is what is in the files at that moment, as the system has them, with the lock gone and the
    transaction open. So the files are copied there and then, and whoever comes next gets the copy.
    """

    openers: ClassVar[Sequence[str]] = ()
    """Where databases are opened."""
    urls: ClassVar[Sequence[str]] = ()
    """Settings that say where the file is."""

    def __init__(self, topology: Any, folder: Path, **settings: Any) -> None:
        super().__init__(topology, **settings)
        self.folder, self.copies = folder, 0
        folder.mkdir(parents=True)
        self._is_in(folder / "0.db")

    def _is_in(self, file: Path) -> None:
        self.file = file
        self.settings |= dict.fromkeys(self.urls, f"sqlite:///{file}")

    @contextmanager
    def stepped(self, process: Process) -> Iterator[None]:
        def opened(*args: Any, **options: Any) -> Any:
            real = open_database(*args, **options)
            return Database(process, real, lambda name: name in ("begin", "commit", "run", "run_many"))

        with ExitStack() as stack:
            for opener in self.openers:
                stack.enter_context(patch(opener, opened))
            yield

    def died(self) -> None:
        self.copies += 1
        copy = self.folder / f"{self.copies}.db"
        for suffix in ("", "-wal", "-journal"):
            if (found := Path(f"{self.file}{suffix}")).exists():
                shutil.copyfile(found, f"{copy}{suffix}")
        self._is_in(copy)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(statement).fetchall()


def kill_everywhere(
    make: Callable[[Path], World], recover: Callable[[World, str, int], None], recoveries: Sequence[str], few: int
) -> None:
    """Kill at any step, let whoever comes next recover, and hold that nothing is wrong in the end.

    Args:
        make: a world in a new folder.
        recover: brings a world to the end after a kill: how, and at which step it was.
        recoveries: ways to recover.
        few: how many of them are tried at a step in ``make test``, by turns.
    """
    root = Path(tempfile.mkdtemp(dir=ROOM))
    try:
        points = make(root / "whole").moments()
        wrong: list[str] = []
        cells = Counter[str]()
        for turn, point in enumerate(range(1, len(points) + 1, EVERY)):
            for recovery in recoveries if WHOLE else [recoveries[(turn + n) % len(recoveries)] for n in range(few)]:
                world = make(folder := root / str(next(_numbers)))
                assert not world.lives(lambda number, _, point=point: number == point)
                recover(world, recovery, point)
                cells[recovery] += 1
                wrong += [f"{point} {points[point - 1]}, {recovery}: {each}" for each in world.violations()]
                shutil.rmtree(folder)
        assert wrong == []
        assert len(cells) == len(recoveries)
        assert len(points) > 100
        print(f"{len(points)} steps, {sum(cells.values())} cells")
    finally:
        shutil.rmtree(root, ignore_errors=True)
