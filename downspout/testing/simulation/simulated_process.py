"""A process that runs the topology in a simulated world: started, stepped, killed, paused or shut down."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from downspout.component import Failure
from downspout.engine.bolt_task import BoltTask
from downspout.engine.bulk_calls import for_many
from downspout.engine.graph import Graph
from downspout.engine.loop import Bounds, Engine
from downspout.engine.settings import reads
from downspout.engine.task import Task
from downspout.errors import DownspoutError
from downspout.kafka import clusters, port
from downspout.ledger.origin import split_id
from downspout.origins import FIELD, each
from downspout.sink.sink_bolt import SinkBolt
from downspout.testing.simulation.fault_proxy import KAFKA, REQUESTS, STORE, Connection, FaultyDisk, Killed, full
from downspout.testing.simulation.store import WRITES, SimulatedStore
from downspout.wire.side_streams import TRANSACTIONS

if TYPE_CHECKING:
    from downspout.testing.simulation.world import World

__all__ = ["Fuse", "SimulatedProcess", "place_of", "places_in"]

ROUND_S = 0.001  # Virtual seconds that a round of the engine takes at least
FAULTS_MAX = 2  # Injected failures per record: too few for the spout to give it up


def place_of(origin: Any) -> str:
    """Format an origin like a record in messages.

    >>> place_of(("orders", "6jPMvg1sQ2uJmzGz1yRHQw", 3, 918, ""))
    'orders[3]@918'
    """
    return f"{origin[0]}[{origin[2]}]@{origin[3]}"


def places_in(values: Any) -> list[str]:
    """Return the records of a tuple's values: one, or those of a chunk; empty without an origin."""
    if isinstance(values, pa.RecordBatch):
        return [place_of(origin) for origin in each(values.column(FIELD))] if FIELD in values.schema.names else []
    origin = getattr(values, FIELD, None)
    return [] if origin is None else [place_of(origin)]


@dataclass
class Fuse:
    """Triggers an action after a number of effects, of those in ``aim`` (empty: of any)."""

    left: int
    action: Callable[[SimulatedProcess], None]
    aim: frozenset[str] = frozenset()


class SimulatedProcess:
    """One process of the topology, from its start to its end.

    Args:
        number: its member number, perhaps of earlier processes too.
        life: the count of processes with that number, from 1.
    """

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world = world
        self.number = number
        self.name = f"p{number}.{life}"
        self.due = world.clock.monotonic()
        self.alive = True
        self.busy = False  # Whether it is in the middle of a turn, while others may have theirs
        self.leaving = False
        self.replaced = False  # Whether another process with its number was started, as if it were dead
        self.fuse: Fuse | None = None
        self.bolt_faults: deque[str] = deque()  # Faults at the next tuples of bolts
        self.disk_faults = 0
        self.store_faults: deque[str] = deque()  # Faults of requests to the object store
        self.store_fault_in = 0  # Requests before the next of these
        self.silences: dict[str, tuple[str, float]] = {}  # By service, what the network drops, and until when
        self.connection = Connection(world.kafka, self)
        self.bootstrap = f"{world.kafka.bootstrap}/{self.name}"
        clusters.register(self.bootstrap, cast(port.Cluster, self.connection))
        self._chance = random.Random(f"{world.plan.seed}/{self.name}")
        self._started = False
        self.runs = False  # Whether it has started and is not leaving: then no outage may end it
        self.engine = Engine(
            world.graph,
            self._confs(world.graph, world.confs),
            bounds=Bounds(drain_s=float(world.plan.config["run.drain_s"])),
            clock=world.clock,
            rng=self._chance,
            observer=self,
            created=self._created,
            round_s=ROUND_S,
        )

    def _confs(self, graph: Graph, given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        confs = {name: dict(conf) for name, conf in given.items()}
        for name, conf in confs.items():
            conf["run.member"] = self.number
            if reads(graph.components[name], "kafka"):
                conf["kafka.bootstrap"] = self.bootstrap
        if self.world.batches is not None:
            url = self.world.batches.opened_by(self, self.name)
            for name, conf in confs.items():
                conf |= {f"{scope}.store": url for scope in ("batch", "state") if reads(graph.components[name], scope)}
        return confs

    # --- its turns ---

    def step(self) -> None:
        """Take one turn: start, do a round, or shut down.

        Raises:
            Killed: it was killed.
            DownspoutError: a component ended the run, which is wound up.
        """
        if not self._started:
            self._started = True
            self.note("starts")
            self._or_wind_up(self.engine.start)
            self.runs = True
        elif self.leaving:
            self.leave()
        else:
            self._or_wind_up(self.engine.round)

    def _or_wind_up(self, work: Callable[[], None]) -> None:
        """Call ``work``; on an error, end like ``downspout run``."""
        try:
            work()
        except DownspoutError:
            self.engine.wind_up(quietly=True)
            raise

    def leave(self) -> None:
        """Shut down; others take their turns whenever it waits."""
        self.note("leaves")
        self.runs = False
        self.engine.stop()
        with self.world.among_others(self):
            self._or_wind_up(self.engine.drain)
            self.engine.wind_up(quietly=False)
        self.note("has left")

    def die(self) -> None:
        """Die, with connections and disk."""
        self.alive = False
        for consumer in self.connection.consumers:
            consumer.crash()

    def bury(self) -> None:
        """Unregister its addresses."""
        clusters.unregister(self.bootstrap)
        if self.world.batches is not None:
            self.world.batches.forget(self.name)

    # --- what its connections and its disk ask ---

    def effect(self, what: str) -> None:
        """Trigger a fuse that is due. Raises Killed: the process is dead."""
        if not self.alive:
            raise Killed
        fuse = self.fuse
        if fuse is not None and (not fuse.aim or what in fuse.aim):
            fuse.left -= 1
            if fuse.left < 0:
                self.fuse = None
                self.note(f"at {what}:")
                fuse.action(self)

    def note(self, what: str) -> None:
        """Add an event to the trace."""
        self.world.trace.note(self.name, what)

    def travel(self) -> None:
        """Advance the clock by the time of a request."""
        if self.world.plan.latency_s:
            self.world.clock.advance(self._chance.random() * self.world.plan.latency_s)

    def wait_in_vain(self) -> None:
        """Advance the clock by the timeout of a request."""
        self.world.clock.advance(self._chance.uniform(0.5, 4.0))

    def disk_error(self, operation: str) -> OSError | None:
        """Return the disk error for this operation, if any."""
        if self.disk_faults <= 0 or operation in ("make_folder", "remove"):
            return None
        self.disk_faults -= 1
        self.world.injected["disk"] += 1
        return full()

    def fall_silent(self, service: str, dropped: str, seconds: float) -> None:
        """Make the network drop messages between it and a service, for a while."""
        self.note(f"hears nothing from {service} for {seconds:.1f} s: {dropped} are lost")
        self.silences[service] = dropped, self.world.clock.monotonic() + seconds
        if service == KAFKA and dropped == REQUESTS:
            for consumer in self.connection.consumers:
                consumer.freeze()

    def silence(self, service: str) -> str:
        """Return what the network drops between it and a service now; empty: nothing."""
        dropped, until = self.silences.get(service, ("", 0.0))
        return dropped if self.world.clock.monotonic() < until else ""

    def store_fault(self, kind: str) -> str:
        """Return the fault of the next request to the object store; empty: none."""
        if dropped := self.silence(STORE):
            return "lost" if dropped == REQUESTS else "unanswered"
        if not self.store_faults or (kind not in WRITES and self._chance.random() < 0.8):
            return ""  # prefer writes
        self.store_fault_in -= 1
        if self.store_fault_in >= 0:
            return ""
        self.world.injected["store"] += 1
        return self.store_faults.popleft()

    # --- what its components do ---

    def _created(self, task: Task) -> None:
        if isinstance(task.instance, SinkBolt):
            if self.world.bucket is not None:
                task.instance.disk = SimulatedStore(self, self.world.bucket)
            else:
                task.instance.disk = FaultyDisk(self, self.world.shared_folder, self._chance.random)
        if isinstance(task, BoltTask):
            self._plant_faults(task)

    def _plant_faults(self, task: BoltTask) -> None:
        real_many = for_many(task.instance, "process_many", "process")
        for name in ("process", "process_chunk"):
            if callable(real := getattr(task.instance, name, None)):
                setattr(task.instance, name, self._with_faults(task, real))
        if real_many is None:
            return

        def process_many(tups: list[Any]) -> int:
            one_by_one = self.bolt_faults or self.world.faults.may_kill(tups)
            return 0 if one_by_one else int(real_many(tups))

        task.instance.process_many = process_many

    def _with_faults(self, task: BoltTask, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def process(tup: Any) -> None:
            if self.world.faults.kills(self, tup):
                self.die()
                raise Killed
            if self.bolt_faults and (kind := self._fault_for(task, tup)):
                if kind == "bolt_raises":
                    raise RuntimeError("the simulation lets this bolt raise")
                if kind == "bolt_fails":
                    task.instance.fail(tup)
                    return
                task.held.pop(tup.id, None)
                return
            real(tup)

        return process

    def _fault_for(self, task: BoltTask, tup: Any) -> str | None:
        """Return the fault for this tuple, if any; each record gets at most ``FAULTS_MAX``."""
        found = places_in(tup.values) or [""]
        if any(self.world.faulted[place] >= FAULTS_MAX for place in found):
            return None
        self.world.faulted.update(found)
        kind = self.bolt_faults.popleft()
        self.world.injected[kind] += 1
        self.note(f"{kind}: {task.place} with {' '.join(found)}")
        return kind

    # --- the observer of its engine ---

    def on_emit(self, task: Any, stream: str, values: Any, targets: list[str]) -> None:
        """Trace emits of spouts."""
        if task.component.is_spout and self.world.batches is not None:
            self.world.emitted += 1
            self.note(f"emits {stream}: {values[0]}")
        elif stream == TRANSACTIONS:
            self.note(f"tells {values[0]}")
        elif task.component.is_spout:
            chunk: Any = values if isinstance(values, pa.RecordBatch) else None
            self.world.emitted += 1 if chunk is None else chunk.num_rows
            self.world.chunks += chunk is not None
            told = values if chunk is None else f"{chunk.num_rows} records"
            self.note(f"emits {' '.join(places_in(values)) or told}")

    def on_ack(self, task: Any, tuple_id: str) -> None:
        """Do nothing: ``on_tree`` traces completed trees."""

    def on_fail(self, task: Any, tuple_id: str) -> None:
        """Do nothing: ``on_tree`` traces failed trees."""

    def on_tree(self, task: Any, msg_id: Any, failure: Failure | None) -> None:
        """Trace acks and fails of spouts."""
        if self.world.batches is not None:
            self.note(f"{msg_id} is {'done' if failure is None else f'failed ({failure.kind} {failure.component})'}")
            return
        if split_id(msg_id) is None:
            return
        _, topic, _, partition, offset = msg_id.split("/")
        self.world.progress[topic, int(partition)] += failure is None
        what = "acked" if failure is None else f"failed ({failure.kind} {failure.component})"
        self.note(f"{what} {topic}[{partition}]@{offset}")
