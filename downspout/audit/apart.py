"""Run the audit's topology in a process of its own, so that a record that kills it ends neither audit nor report.

The process is started anew after each death, and the records it died on are halved until the one that kills stands
alone: one death for each halving, about eleven of a second or two for the 2,000 records of a batch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from downspout.audit.expected import Failed
from downspout.audit.replay import RunOn, TopologyReplay, make_replay
from downspout.errors import DownspoutError, TopologyError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import Record
from downspout.sink.notes import Run
from downspout.system.process import end_with_parent

KILLERS_MAX = 10  # Each costs up to a dozen starts of a process, so an audit that finds more is given up

Outcomes = dict[tuple[str, int, int], Iterable[str] | Failed]


class ReplayApart:
    """A :data:`~downspout.audit.audit.Replay` in a process of its own; close it after use.

    Attributes:
        several: whether a record may have a row through each of several inputs.
        dead_letters: the dead-letter topics of the topology's Kafka spouts.
        topics: what the spouts that lead to the sink read, where they name it.
        patterns: and where they say by ``kafka.pattern``.

    Raises:
        TopologyError, SinkError: as :func:`~downspout.audit.replay.make_replay` does.
    """

    def __init__(
        self,
        target: str,
        directory: Path,
        run_on: RunOn,
        *,
        topology: str | None = None,
        overrides: Sequence[str] = (),
        run: Run | None = None,
    ) -> None:
        self._target = target
        self.make = partial(
            make_replay, target, directory, run_on, topology=topology, overrides=tuple(overrides), run=run
        )
        here = self.make()  # what is wrong with it is said before anything is started
        self.several, self.dead_letters = here.several, here.dead_letters
        self.topics, self.patterns = here.topics, here.patterns
        self._child: tuple[BaseProcess, Connection] | None = None
        self._killers: list[str] = []

    def __call__(self, records: Sequence[Record]) -> Mapping[tuple[str, int, int], Iterable[str] | Failed]:
        """Run the topology on the records.

        Raises:
            TopologyError: more than :data:`KILLERS_MAX` records have ended the process that ran them.
            DownspoutError: what the topology's run raised.
        """
        return self._run(list(records))

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            process, pipe = self._child
            pipe.close()  # it ends by itself at the end of its input, unless it is busy
            process.terminate()
            process.join()
            self._child = None

    def _run(self, records: Sequence[Record]) -> Outcomes:
        process, pipe = self._child = self._child or self._start()
        try:
            pipe.send(records)
            answer: Outcomes | Exception = pipe.recv()
        except (EOFError, OSError):
            answer = self._narrow(records, self._bury(process))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _narrow(self, records: Sequence[Record], death: str) -> Outcomes:
        """Return what becomes of records of which one, or more, ended the process."""
        if len(records) > 1:
            half = len(records) // 2
            return {**self._run(records[:half]), **self._run(records[half:])}
        (killer,) = records
        self._killers.append(f"{coordinates(killer.topic, killer.partition, killer.offset)} ({death})")
        if len(self._killers) > KILLERS_MAX:
            raise TopologyError(
                f"{self._target}: {counted(len(self._killers), 'record')} end the process that runs them: "
                f"{', '.join(self._killers[:3])}, …",
                cure="to mend the bolt first; or --from and --to, for a part that has fewer",
            ) from None
        return {(killer.topic, killer.partition, killer.offset): Failed(f"ends the process that runs it ({death})")}

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")  # a forked process would inherit half of each thread
        ours, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(theirs, self.make), name="audit-replay", daemon=True)
        # Until it can answer for itself Ctrl-C is not for it: the one report of that is ours. Its helper, which
        # multiprocessing starts first, would lift the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        try:
            first: Outcomes | Exception = ours.recv()
        except EOFError:
            death = self._bury(process)
            raise TopologyError(
                f"{self._target}: a process that starts it without any record ends at once ({death})",
                cure="`downspout check` on it, and what its bolts do in initialize",
            ) from None
        if isinstance(first, Exception):
            ours.close()  # at the end of its input it ends
            process.join()
            raise first
        return process, ours

    def _bury(self, process: BaseProcess) -> str:
        """Return how a process that has ended did so."""
        process.join()
        self._child = None
        code = process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _answer(pipe: Connection, make: Callable[[], TopologyReplay]) -> None:
    """Run the topology without any record, and then on whatever comes through the pipe, until the other end closes."""
    end_with_parent()  # also from within a bolt that hangs
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches both processes; one of them tells of it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.dup2(2, 1)  # what bolts print is no part of the report, which may be JSON
    replay = make()
    records: Sequence[Record] = []  # what its start alone does is not a record's fault
    while True:
        try:
            answer: Outcomes | DownspoutError = dict(replay(records))
        except DownspoutError as error:
            answer = error
        sys.stdout.flush()  # what was printed would be lost with this process, which may be killed
        try:
            pipe.send(answer)
            records = pipe.recv()
        except (EOFError, ConnectionError):  # the audit is done
            return
