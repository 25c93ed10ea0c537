"""A process that runs the topology in a simulated world: born, stepped, killed, paused, ended in order."""

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
FAULTS_MAX = 2  # How often bolts fail tuples of one record on purpose: so seldom that none is given up for it


def place_of(origin: Any) -> str:
    """Name the record that an origin names, as in all messages.

    >>> place_of(("orders", "6jPMvg1sQ2uJmzGz1yRHQw", 3, 918, ""))
    'orders[3]@918'
    """
    return f"{origin[0]}[{origin[2]}]@{origin[3]}"


def places_in(values: Any) -> list[str]:
    """Name the records that the values of a tuple are of: one, or those of a chunk; none where there is no origin."""
    if isinstance(values, pa.RecordBatch):
        return [place_of(origin) for origin in each(values.column(FIELD))] if FIELD in values.schema.names else []
    origin = getattr(values, FIELD, None)
    return [] if origin is None else [place_of(origin)]


@dataclass
class Fuse:
    """Something happens to a process after so many effects, of those that it aims at (none named: of any)."""

    left: int
    action: Callable[[SimulatedProcess], None]
    aim: frozenset[str] = frozenset()


class SimulatedProcess:
    """One process of the topology, from its start to its end.

    Args:
        number: its member number; another process may have had it before.
        life: which process of that number it is, from 1.
    """

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world = world
        self.number = number
        self.name = f"p{number}.{life}"
        self.due = world.clock.monotonic()
        self.alive = True
        self.busy = False  # Whether it is in the middle of a turn: then others may have theirs, but not it
        self.leaving = False
        self.replaced = False  # Whether another process of its number was started, as if it were dead
        self.fuse: Fuse | None = None
        self.bolt_faults: deque[str] = deque()  # What bolts do with their next tuples instead of processing them
        self.disk_faults = 0
        self.store_faults: deque[str] = deque()  # What becomes of requests to the object store
        self.store_fault_in = 0  # After how many more of them
        self.silences: dict[str, tuple[str, float]] = {}  # By service, what the network drops, and until when
        self.connection = Connection(world.kafka, self)
        self.bootstrap = f"{world.kafka.bootstrap}/{self.name}"
        clusters.register(self.bootstrap, cast(port.Cluster, self.connection))
        self._chance = random.Random(f"{world.plan.seed}/{self.name}")
        self._started = False
        self.runs = False  # Whether it has started, and does not leave: then no outage may end it
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
        """Have one turn: start, do a round, or end in order.

        Raises:
            Killed: it was killed.
            DownspoutError: a component ended the run; it has wound up.
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
        """Do something; where that fails, end as ``downspout run`` does."""
        try:
            work()
        except DownspoutError:
            self.engine.wind_up(quietly=True)
            raise

    def leave(self) -> None:
        """End in order; that may take long, so others have their turns whenever it waits."""
        self.note("leaves")
        self.runs = False
        self.engine.stop()
        with self.world.among_others(self):
            self._or_wind_up(self.engine.drain)
            self.engine.wind_up(quietly=False)
        self.note("has left")

    def die(self) -> None:
        """Be dead from now on: connections and disk too."""
        self.alive = False
        for consumer in self.connection.consumers:
            consumer.crash()

    def bury(self) -> None:
        """Let nobody find it any more."""
        clusters.unregister(self.bootstrap)
        if self.world.batches is not None:
            self.world.batches.forget(self.name)

    # --- what its connections and its disk ask ---

    def effect(self, what: str) -> None:
        """Be killed or paused, if that is due."""
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
        """Write something down."""
        self.world.trace.note(self.name, what)

    def travel(self) -> None:
        """Let the time pass that a request takes."""
        if self.world.plan.latency_s:
            self.world.clock.advance(self._chance.random() * self.world.plan.latency_s)

    def wait_in_vain(self) -> None:
        """Let the time pass after which a request is given up."""
        self.world.clock.advance(self._chance.uniform(0.5, 4.0))

    def disk_error(self, operation: str) -> OSError | None:
        """Return the failure of the disk that is due now, if any."""
        if self.disk_faults <= 0 or operation in ("make_folder", "remove"):
            return None
        self.disk_faults -= 1
        self.world.injected["disk"] += 1
        return full()

    def fall_silent(self, service: str, dropped: str, seconds: float) -> None:
        """Let the network drop what it and a service send each other, for a while."""
        self.note(f"hears nothing of {service} for {seconds:.1f} s: {dropped} are lost")
        self.silences[service] = dropped, self.world.clock.monotonic() + seconds
        if service == KAFKA and dropped == REQUESTS:
            for consumer in self.connection.consumers:
                consumer.freeze()

    def silence(self, service: str) -> str:
        """Return what the network drops between it and a service now; nothing: it works."""
        dropped, until = self.silences.get(service, ("", 0.0))
        return dropped if self.world.clock.monotonic() < until else ""

    def store_fault(self, kind: str) -> str:
        """Return what becomes of the next request to the object store."""
        if dropped := self.silence(STORE):
            return "lost" if dropped == REQUESTS else "unanswered"
        if not self.store_faults or (kind not in WRITES and self._chance.random() < 0.8):
            return ""  # what writes is more interesting
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
        """Return what the bolt does with this tuple instead; each record is faulted only so often."""
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
        """Note what spouts emit."""
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
        """Bolts' acks are not noted; those of whole trees are."""

    def on_fail(self, task: Any, tuple_id: str) -> None:
        """Likewise."""

    def on_tree(self, task: Any, msg_id: Any, failure: Failure | None) -> None:
        """Note what spouts are told."""
        if self.world.batches is not None:
            self.note(f"{msg_id} is {'done' if failure is None else f'failed ({failure.kind} {failure.component})'}")
            return
        if split_id(msg_id) is None:
            return
        _, topic, _, partition, offset = msg_id.split("/")
        self.world.progress[topic, int(partition)] += failure is None
        what = "acked" if failure is None else f"failed ({failure.kind} {failure.component})"
        self.note(f"{what} {topic}[{partition}]@{offset}")
