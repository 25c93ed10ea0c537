"""How a spout on Storm asks the sinks to flush, while it waits for acks: a stream of its own that all of them read.

A sink holds rows until they are many or old. Where one record is out alone, or a hand-over waits, nothing else comes,
and all would wait for that age. The local engine drains its bolts itself; Storm cannot. So each
spout of ours has one more stream (:data:`FLUSH`), to which all bolts with a method ``drain`` are subscribed, by an
``all`` grouping, however many bolts, whosever, are in between. It is added where the topology is built
(:mod:`downspout.wire.specs`), and no engine of ours sees it.

The request may come before the tuple that it is about, so it holds for :data:`FLUSH_S`: as long, the bolt drains
whenever nothing more is there to be read. A spout that dies does not have to call it off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from pystorm.bolt import Bolt
from pystorm.spout import Spout
from streamparse import Grouping
from streamparse.thrift import GlobalStreamId, StreamInfo

from downspout.protocols import BoltOffers, SpoutOffers, offers

FLUSH = "downspout.flush"  # The stream; not to be seen in a graph of ours
FLUSH_S = 5.0  # How long a request holds; spouts repeat it meanwhile


def connect(specs: Iterable[Any]) -> None:
    """Let all bolts that hold tuples back hear of the spouts that wait for acks."""
    by_class = [(spec, spec.component_cls) for spec in specs]
    holding = [spec for spec, cls in by_class if issubclass(cls, Bolt) and offers(cls, BoltOffers.drain)]
    for spec, cls in by_class:
        if holding and issubclass(cls, Spout) and offers(cls, SpoutOffers.waits_for_acks):
            spec.outputs[FLUSH] = StreamInfo(output_fields=["seconds"], direct=False)
            for bolt in holding:
                bolt.inputs[GlobalStreamId(componentId=spec.name, streamId=FLUSH)] = Grouping.ALL


class Flusher:
    """Drains one bolt, once it was asked to, whenever there is nothing to read.

    Args:
        pipe: from which it reads; None: another wire, on which it drains only when a request comes.
    """

    def __init__(self, bolt: Any, pipe: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._bolt, self._pipe, self._clock = bolt, pipe, clock
        self._until = 0.0
        self._idle: Callable[[], None] | None = None  # What the bolt does itself while there is nothing to read

    def processor(self, stock: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return the ``process`` of the bolt, which takes requests and hands all else to its own."""

        def process(tup: Any) -> None:
            if tup.stream == FLUSH:
                self._take(tup)
            else:
                stock(tup)

        return process

    def _take(self, tup: Any) -> None:
        self._until = self._clock() + FLUSH_S
        if self._pipe is None:
            self._bolt.drain()
        else:
            if self._pipe.idle != self._rest:
                self._idle = self._pipe.idle
            self._pipe.idle = self._rest
        if not self._bolt.auto_ack:
            self._bolt.ack(tup)

    def _rest(self) -> None:
        """Nothing is there to be read."""
        if self._clock() < self._until:
            self._bolt.drain()
        else:
            self._pipe.idle = self._idle
        if self._idle is not None:
            self._idle()
