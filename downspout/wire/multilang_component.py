"""``MultilangComponent``: a pystorm component on this wire, notified before it exits.

    class Shout(MultilangComponent, streamparse.Bolt):
        ...

Neither the class nor Storm needs another change. Other engines are unaffected: only ``run``, which the process on Storm
calls, replaces the serializer. Besides the faster wire (``pipe``, ``values``):

* A tuple with a wrong number of values fails at once, with an error that says so. Stock pystorm neither acks nor fails
  it; it times out and is replayed for ever.
* An exception in ``initialize`` reaches Storm with its whole traceback, so the user sees Python's error, not Java's.
* ``SystemExit`` from the component's own code is an error like any other: it is reported with its traceback, its tuple
  fails, and ``exit_on_exception`` decides whether the process ends. Stock pystorm ends it silently.
* A component's ``before_exit`` is called on SIGTERM, end of input or an exception. It has :data:`EXIT_S_MAX` seconds,
  then the process ends in any case: Storm's supervisor sends SIGKILL 3 s after SIGTERM.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, cast

from pystorm.bolt import BatchingBolt, Bolt
from pystorm.component import Component
from pystorm.exceptions import StormWentAwayError
from pystorm.serializers.json_serializer import JSONSerializer
from pystorm.spout import Spout

from downspout.errors import USER_ERRORS, ComponentError, UserError
from downspout.protocols import BoltOffers, offered, takes_chunks
from downspout.system.process_notes import NoteWriter
from downspout.wire.json_messages import WireSerializer
from downspout.wire.pipe import Stderr
from downspout.wire.side_streams import Flusher
from downspout.wire.tuple_io import acker, chunk_emitter, chunk_processor, emitter, reader, reads_as_pystorm

EXIT_S_MAX = 2.5
GC_THRESHOLDS = (100_000, 20, 50)
"""Reference counting frees tuples, and every collection would scan those in flight in vain. Cycles are still collected,
but seldom, as in the local engine."""
INFO = 2  # Storm's log level for lines of stderr
WENT_AWAY = 2  # pystorm's exit code when Storm is gone


class MultilangComponent(Component):
    """Mixin: list it before pystorm's or streamparse's class among the bases."""

    before_exit: Callable[[], None] | None = None
    serializer: Any
    _leaving = _runs = False
    _note: NoteWriter | None = None
    _stderr: Stderr | None = None

    @property
    def on_wire(self) -> bool:
        """Whether the component runs on Storm with our serializer."""
        return isinstance(self.serializer, WireSerializer)

    @property
    def on_storm(self) -> bool:
        """Whether the component runs on Storm, with any serializer."""
        return self._runs

    @property
    def on_foreign_wire(self) -> bool:
        """Whether the component runs on Storm with another serializer (msgpack)."""
        return self._runs and not self.on_wire

    @property
    def chunk_streams(self) -> frozenset[str]:
        """On Storm: the streams that carry whole chunks; on the others, their records are emitted one by one."""
        found: frozenset[str] = self.serializer.whole if self.on_wire else frozenset()
        return found

    def run(self) -> None:
        """Serve Storm until the connection ends."""
        self._runs = True
        if type(self.serializer) is JSONSerializer:
            self.serializer = WireSerializer.instead_of(self.serializer)
            if self.serializer.owns_process:
                gc.freeze()
                gc.set_threshold(*GC_THRESHOLDS)
                self._stderr = Stderr(self._log_stderr)
        self._hear_sigterm()
        try:
            super().run()
        except StormWentAwayError:
            self._exit(WENT_AWAY)
        except USER_ERRORS as error:  # in the handshake or `initialize`; pystorm and _rounds catch later errors
            if self._leaving:
                raise
            self._report_error(error)
            self._exit(1)
        finally:
            self._flush()
            self._give_back_stderr()

    def _log_stderr(self, line: str) -> bool:
        """Log a line of stderr through Storm at once, as the component may hang next; return whether it was sent."""
        try:
            self.serializer.send_message({"command": "log", "msg": line, "level": INFO})
            self.serializer.flush()
        except (StormWentAwayError, OSError, ValueError):
            return False
        return not self.serializer.pipe.gone  # a pipe that is gone drops messages

    def _give_back_stderr(self) -> None:
        if self._stderr is not None:
            self._stderr.close()

    def _setup_component(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super()._setup_component(storm_conf, context)
        if self._stderr is not None:
            self._stderr.begin()
        if self.on_wire:
            self.serializer.learn(storm_conf, context)
            self._keep_note(storm_conf, context)
            self._shorten(context)
            self._know_chunks()
            self._run: Callable[[], None] = self._rounds(self._run)
        bolt: Any = self
        if self._runs and issubclass(type(bolt), Bolt) and offered(bolt, BoltOffers.drain):
            pipe = self.serializer.pipe if self.on_wire else None
            bolt.process = Flusher(bolt, pipe).processor(bolt.process)

    def _rounds(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a loop over ``run`` that turns SystemExit into an error; pystorm handles the first error."""

        # pystorm handles Exception, which SystemExit is not. One handler around the loop costs nothing per tuple. A
        # TicklessBatchingBolt's thread raises its errors in the main thread, so inside this loop.
        def rounds() -> None:
            try:
                while True:
                    run()
            except SystemExit as error:
                if self._leaving:
                    raise
                raise ComponentError(f"{type(self).__qualname__} raised {type(error).__name__}: {error}") from error

        return rounds

    def _keep_note(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Record which tuples the process holds, in case it dies; impossible for a bolt with its own reading."""
        cls: Any = type(self)
        topology, task = storm_conf.get("storm.id"), context.get("taskid")
        if not topology or task is None or issubclass(cls, BatchingBolt):  # a BatchingBolt may work in another thread
            return
        if issubclass(cls, Bolt) and cls.read_tuple is not Bolt.read_tuple:
            return
        try:
            self._note = NoteWriter(str(topology), int(task))
        except OSError as error:
            logging.getLogger(__name__).info("cannot record which tuples this process holds: %s", error)
            return
        self.serializer.pipe.rest = self._note.idle

    def _shorten(self, context: Mapping[str, Any]) -> None:
        """Replace pystorm's methods with faster ones, unless the class overrides them."""
        cls: Any = type(self)
        component, pystorms = cast(Any, self), cast(Any, super())
        if issubclass(cls, Bolt):
            if cls.read_tuple is Bolt.read_tuple:
                component.read_tuple = reader(component, context, self._note)
            if cls.ack is Bolt.ack and cls.send_message is Component.send_message:
                component.ack = acker(self.serializer.pipe, pystorms.ack)
        elif issubclass(cls, Spout) and cls.emit is Spout.emit and cls.send_message is Component.send_message:
            component.emit = emitter(self.serializer.send_emit, chunk_emitter(component, pystorms.emit))

    def _know_chunks(self) -> None:
        """Make ``emit`` accept chunks and call ``process_chunk`` for them, unless the class overrides pystorm's
        methods."""
        cls: Any = type(self)
        component: Any = self
        if cls.emit in (Bolt.emit, BatchingBolt.emit) and cls.send_message is Component.send_message:
            component.emit = chunk_emitter(component, component.emit)
        if not issubclass(cls, Bolt) or issubclass(cls, BatchingBolt) or not reads_as_pystorm(cls):
            return
        if takes_chunks(cls) and offered(component, BoltOffers.process_chunk):
            component.process = chunk_processor(component, component.process)
            # Evaluated per chunk, because ``initialize`` may remove the method.
            self.serializer.takes_chunks = lambda: callable(component.process_chunk)

    # --- the end ---

    def _hear_sigterm(self) -> None:
        """Make SIGTERM end the component while it waits for Storm: only there is its state surely consistent."""
        if self.before_exit is None or threading.current_thread() is not threading.main_thread():
            return
        pipe = getattr(self.serializer, "pipe", None)

        def leave(number: int, frame: Any) -> None:
            if pipe is None or pipe.leaving:
                os._exit(128 + number)
            pipe.leaving = True
            if pipe.interruptible:
                pipe.gone = True
                raise StormWentAwayError()

        signal.signal(signal.SIGTERM, leave)

    def _exit(self, status_code: int) -> NoReturn:
        """Run ``before_exit`` for at most :data:`EXIT_S_MAX` seconds, then end the process."""
        self._leaving = True
        if self._note is not None:
            self._note.idle()  # after an orderly exit no tuple is suspected
        self._flush()
        if self.before_exit is not None:
            limit = threading.Timer(EXIT_S_MAX, os._exit, (status_code,))
            limit.daemon = True
            limit.start()
            try:
                self.before_exit()
            except USER_ERRORS:
                logging.getLogger(__name__).warning("an error at the end of the component", exc_info=True)
            limit.cancel()
            limit.join()
        self._give_back_stderr()
        self._flush()
        super()._exit(status_code)
        raise SystemExit(status_code)

    def _flush(self) -> None:
        if self.on_wire:
            with suppress(StormWentAwayError):
                self.serializer.flush()

    def _report_error(self, error: UserError) -> None:
        """Report an error that ended the component before its first tuple, to Storm and on stderr."""
        what = "".join(traceback.format_exception(error))
        with suppress(StormWentAwayError):
            self.send_message({"command": "error", "msg": f"{type(self).__qualname__} could not start\n{what}"})
        sys.stderr.write(what)
        sys.stderr.flush()
