"""How the tasks of a run end: spouts get their last acks and are deactivated (ours commit then), and all are closed.

Each on its own: if one raises, or a signal interrupts it, the others still end. A spout that was interrupted inside one
of its own calls is left alone until it is closed, because that call may have left it in any state.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from downspout.engine.bolt_task import BoltTask
from downspout.engine.spout_task import SpoutTask
from downspout.engine.task import Task


class Ending:
    """Ends tasks, once."""

    def __init__(self, spouts: Sequence[SpoutTask], bolts: Sequence[BoltTask]) -> None:
        self._spouts = spouts
        self._bolts = bolts
        self._resting = threading.Lock()
        """Two threads may let the spouts rest: this one, and one for which a bolt hangs too long."""
        self.has_begun = False
        self._struck: set[Task] = set()

    def interrupted(self, trace: TracebackType | None) -> None:
        """Take note of where an interrupt struck."""
        while trace is not None:
            task = trace.tb_frame.f_locals.get("self")
            if isinstance(task, Task):
                self._struck.add(task)
            trace = trace.tb_next

    def rest(self, *, settle: bool, errors: list[BaseException]) -> None:
        """Tell spouts what is done, where ``settle`` says so, and let them rest."""
        with self._resting:
            for spout in self._spouts:
                if spout.instance is None or spout in self._struck:
                    continue
                with _for_itself(errors):
                    if settle:
                        spout.settle()
                    spout.deactivate()

    def close(self, errors: list[BaseException]) -> None:
        """Close all tasks, those last that were interrupted."""
        for task in sorted([*self._spouts, *self._bolts], key=self._struck.__contains__):
            if task.instance is not None:
                with _for_itself(errors):
                    task.close()

    def end(self, *, work: Callable[[], object] | None, is_active: bool) -> list[BaseException]:
        """End all tasks; return what they raised.

        Args:
            work: what is to be done first; None: nothing, since the run did not end in order.
            is_active: whether spouts are to rest.
        """
        self.has_begun = True
        errors: list[BaseException] = []
        if work is not None:
            with _for_itself(errors):
                work()
        if is_active:
            self.rest(settle=work is None, errors=errors)
        self.close(errors)
        return errors

    def last_resort(self, seconds: float) -> None:
        """From another thread, where a bolt does not let go of this one: let the spouts rest, for so long at most."""
        if self.has_begun:
            return
        self.has_begun = True
        thread = threading.Thread(target=self.rest, kwargs={"settle": True, "errors": []}, daemon=True)
        thread.start()
        thread.join(seconds)


@contextlib.contextmanager
def _for_itself(errors: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        errors.append(error)
