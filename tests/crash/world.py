"""One Kafka, one disk, and processes that run a topology on them; and the invariants of the files."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.audit.audit import audit
from downspout.engine import Bounds, Engine, Graph, from_class, resolve
from downspout.kafka import TopicPartition
from downspout.origins import each
from downspout.sink import DirectoryState, Entry, Layout
from downspout.testing import ROUND_S, FakeKafka, Killed, VirtualClock
from tests.crash import words
from tests.crash.kafka_handle import KafkaHandle
from tests.crash.words import FIRST, GROUP, LATER, LINES, SHORT, TOPIC, rows_of
from tests.disks import SimulatedDisk, visible
from tests.killing import HastyClock
from tests.machine import Loss, Process, Step, Volume

OUT = "out"
HOME = f"{OUT}/_downspout"
LOG = f"{HOME}/log/"
STUCK_S = 100_000.0
"""Virtual seconds after which a process is taken for stuck; one may sleep for hours."""
_worlds = itertools.count()
_graphs: dict[type, tuple[Graph, dict[str, dict[str, Any]]]] = {}
_rows: dict[tuple[str, bytes], Counter[Any]] = {}


class Violation(BaseException):
    """A promise was broken. Not an Exception: the engine would make something else of it."""


def _graph(topology: type) -> tuple[Graph, dict[str, dict[str, Any]]]:
    if topology not in _graphs:
        graph = from_class(topology, "crash")
        options = {"run.until": "end", "kafka.bootstrap": "fake://set-later"}
        confs = resolve(graph, options=options, environ={}, file=Path("/nonexistent")).confs()
        _graphs[topology] = graph, confs
    return _graphs[topology]


@dataclass
class Life:
    process: Process
    disk: SimulatedDisk
    kafka: KafkaHandle
    settings: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = False

    @property
    def alive(self) -> bool:
        return not (self.ended or self.process.dead)


@dataclass
class World:
    """Everything that outlives a process.

    Args:
        root: an empty folder.
        topology: what the processes run.
        settings: of all components, stronger than the topology's.
        change: called with each component before its ``initialize``: how mutants get in.
        seed: of what a power cut leaves by chance.
        modes: settings of the first process, and in turn of those after it.
        turn: how many processes there were before this world was forked off.
        clock: the time.
        kafka: not given: one with the lines.
        volume: the disk; not given: an empty one.

    Attributes:
        before: called ahead of each step of each process.
        expected: the rows that must be there in the end.
        lives: all processes that were started.
    """

    root: Path
    topology: type = words.Rows
    settings: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Any], None] = lambda instance: None
    seed: int = 0
    modes: Sequence[Mapping[str, Any]] = ({},)
    turn: int = 0
    clock: VirtualClock = field(default_factory=HastyClock)
    kafka: Any = None
    volume: Any = None

    def __post_init__(self) -> None:
        if self.volume is None:
            self.volume = Volume(self.root, self.clock, self.seed)
        self._sums: dict[str, tuple[int, Counter[Any]]] = {}
        self.expected: Counter[Any] = Counter()
        self.before: Callable[[Life, Step], None] = lambda life, step: None
        self.lives: list[Life] = []
        self.number = next(_worlds)
        if self.kafka is None:
            self.kafka = FakeKafka(f"crash-{self.number}", self.clock)
            self.kafka.create_topic(TOPIC, partitions=2)
            for partition, lines in (SHORT if self.topology is words.Alone else LINES).items():
                self.produce(partition, lines)

    def produce(self, partition: int, lines: list[str]) -> None:
        first = self.kafka.log(TopicPartition(TOPIC, partition)).end
        for line in lines:
            self.kafka.produce(TOPIC, line.encode(), partition=partition)
        self.expected += rows_of(partition, lines, first)

    @property
    def directory(self) -> Path:
        return self.root / OUT

    # --- processes ----------------------------------------------------------------------------------------

    def start(self, name: str, *, late: bool = False) -> Life:
        """Return a new process; with ``late`` the first partition's records reach it after two further flushes."""
        life: Life

        def before(process: Process, step: Step) -> None:
            self.before(life, step)

        process = Process(f"{name}-{self.number}-{len(self.lives)}", before)
        late_until = self.flushes() + 2

        def withholds(partition: TopicPartition) -> bool:
            return late and partition == FIRST and self.flushes() < late_until

        kafka = KafkaHandle(process, self.kafka, self.check_commits, withholds)
        life = Life(process, SimulatedDisk(self.volume, process), kafka, self.mode())
        self.lives.append(life)
        return life

    def mode(self) -> Mapping[str, Any]:
        before, others = self.turn + len(self.lives), len(self.modes) - 1
        return self.modes[1 + before % others] if before and others else self.modes[0]

    def run(self, life: Life, member: int = 1, name: str = "crash", group: str = GROUP) -> None:
        """Run the topology to its end in this process, or until it dies."""
        graph, confs = _graph(self.topology)
        confs = copy.deepcopy(confs)
        for conf in confs.values():
            conf |= {"topology.name": name, "storm.id": f"{name}-{member}", "run.member": member, "kafka.group": group}
            conf |= {"kafka.bootstrap": life.kafka.bootstrap, "parquet.directory": str(self.directory)}
            conf |= {**self.settings, **life.settings}
        engine = Engine(
            graph, confs, bounds=Bounds("end", STUCK_S, None, 30.0), clock=self.clock,
            rng=random.Random(len(self.lives)), created=lambda task: self._plant(life, task.instance), round_s=ROUND_S,
        )  # fmt: skip
        told = logging.root.manager.disable
        logging.disable()  # of the thousands of unclean starts, each is told
        try:
            reason = engine.run().reason
        finally:
            life.kafka.close()
            logging.disable(told)
        if reason != "end":
            raise Violation(f"{life.process.name} came to no end: {reason}")

    def live(self, life: Life, member: int = 1) -> bool:
        """Run the process; return whether it came to its end."""
        try:
            self.run(life, member)
            life.ended = True
        except Killed:
            for consumer in life.kafka.consumers:
                consumer.crash()
            return False
        except Exception as error:
            raise Violation(f"{life.process.name} ended with {type(error).__name__}: {error}") from error
        return True

    def kill(self, life: Life, loss: Loss) -> None:
        """End this process; where the machine loses its power, all of them.

        Raises:
            Killed: always.
        """
        if loss != "keep":
            self.volume.power_cut(loss)
        life.process.dead = True
        raise Killed(life.process.name)

    def _plant(self, life: Life, instance: Any) -> None:
        """Give a sink the process's disk, and make each of its acks a step that is looked at."""
        if isinstance(instance, ParquetBolt | AggregateBolt):
            instance.disk = life.disk
            ack, process, process_chunk = instance.ack, instance.process, instance.process_chunk
            rows: dict[str, list[tuple[int, int, str]]] = {}

            def note(tup: Any) -> None:
                rows[tup.id] = [(tup.values.origin[2], tup.values.origin[3], tup.values.word)]
                process(tup)

            def note_chunk(tup: Any) -> None:
                origins, words = each(tup.values.column("origin")), tup.values.column("word").to_pylist()
                rows[tup.id] = [(o.partition, o.offset, word) for o, word in zip(origins, words, strict=True)]
                process_chunk(tup)

            def check_and_ack(tup: Any) -> None:
                tuple_id = tup if isinstance(tup, str) else tup.id
                if tuple_id in rows:
                    life.process.step("ack", rows[tuple_id][0])
                    for row in rows[tuple_id]:
                        self.check_durable(row, "acked")
                ack(tup)

            instance.process, instance.process_chunk, instance.ack = note, note_chunk, check_and_ack
        self.change(instance)

    # --- what is there ------------------------------------------------------------------------------------

    def flushes(self) -> int:
        return sum(path.startswith(LOG) and path.endswith(".json") for path in self.volume.files())

    def seen(self) -> Counter[Any]:
        """Return the rows that a plain reader sees; of counts, how many for each word."""
        return self._sum("seen", lambda: visible(self.volume.files()))

    def durable(self) -> Counter[Any]:
        """Return the rows that a reader sees if the power is cut now, once a sink has opened the directory."""

        def files() -> dict[str, bytes]:
            there = self.volume.files(durable=True)
            history = DirectoryState()
            for path in sorted(path for path in there if path.startswith(LOG) and path.endswith(".json")):
                history.take(_entry(there[path]))
            layout = Layout(Path(OUT))
            places = {path: (f"{OUT}/{path}", layout.staged(path).as_posix()) for path in history.files}
            return {
                both[0]: content
                for both in places.values()
                if (content := there.get(both[0], there.get(both[1]))) is not None
            }

        return self._sum("durable", files)

    def _sum(self, what: str, files: Callable[[], Mapping[str, bytes]]) -> Counter[Any]:
        """Return the rows of files, and remember them until something changes."""
        if what not in self._sums or self._sums[what][0] != self.volume.version:
            found: Counter[Any] = Counter()
            for path, content in files().items():
                found.update(_rows_in(path, content))
            self._sums[what] = self.volume.version, found
        return self._sums[what][1]

    @property
    def wanted(self) -> Counter[Any]:
        """Return what a plain reader should see in the end."""
        if self.topology is not words.Counts:
            return self.expected
        return Counter(word for _, _, word in self.expected.elements())

    # --- what must be true --------------------------------------------------------------------------------

    def check_now(self, when: str) -> None:
        """Raise Violation if a reader sees a row more than once."""
        if further := self.seen() - self.wanted:
            raise Violation(f"{when}: more than once: {dict(further)}")

    def check_durable(self, row: tuple[int, int, str], what: str) -> None:
        """Raise Violation if a row would not outlive a power cut."""
        if self.topology is not words.Counts and row not in self.durable():
            raise Violation(f"{row} is {what}, and a power cut would take it away")

    def check_commits(self) -> None:
        """Raise Violation if Kafka has the word for a row that would not outlive a power cut."""
        below = {tp.partition: found.offset for tp, found in self.kafka.committed(GROUP).items()}
        done = Counter(row for row in self.expected.elements() if row[1] < below.get(row[0], 0))
        wanted = done if self.topology is not words.Counts else Counter(word for _, _, word in done.elements())
        if lost := wanted - self.durable():
            raise Violation(f"committed up to {below}, and a power cut would take away: {dict(lost)}")

    def check_settled(self) -> None:
        """Raise Violation unless each row is there exactly once: for a reader, after a power cut, for the audit."""
        self.check_now("in the end")
        self.check_commits()
        for what, state in (("missing", self.seen()), ("not durable", self.durable())):
            if missing := self.wanted - state:
                raise Violation(f"in the end: {what}: {dict(missing)}")
        report = audit(self.directory, cluster=self.kafka, topics=[TOPIC])
        if report.exit_code or report.found.staged or report.found.gone or report.found.unknown:
            raise Violation(f"in the end: {report.verdict} {report.notes}")

    def fork(self, root: Path, loss: Loss, seed: int = 0, turn: int = 0) -> World:
        """Return a world in which all processes have died now; this one goes on."""
        kafka, clock = copy.deepcopy((self.kafka, self.clock))
        for member in kafka.group(GROUP).members.values():
            member.silent_since = clock.monotonic()
        volume = self.volume.fork(root, loss, clock, seed)
        made = World(root, self.topology, self.settings, self.change, clock=clock, kafka=kafka, volume=volume)
        made.expected, made.modes, made.turn = self.expected.copy(), self.modes, turn
        return made

    def state(self) -> Hashable:
        """Return a value that is the same for worlds in the same state, as far as that matters once all are dead."""
        commits = sorted((tp, found.offset, found.metadata) for tp, found in self.kafka.committed(GROUP).items())
        return self.volume.state(), tuple(commits)

    def close(self) -> None:
        self.kafka.close()


@functools.lru_cache(10_000)
def _entry(content: bytes) -> Entry:
    try:
        return Entry.from_bytes(content)
    except ValueError as error:
        raise Violation(f"a power cut would leave an entry torn: {error}") from error


def _rows_in(path: str, content: bytes) -> Counter[Any]:
    """Return the rows of a data file, as :meth:`World.seen` counts them."""
    word = path.split("/")[-2].removeprefix("word=")
    if (word, content) not in _rows:
        rows: Counter[Any] = Counter()
        try:
            table = pq.ParquetFile(io.BytesIO(content)).read(use_threads=False)
        except pa.ArrowInvalid:  # torn
            table = pa.table({"word": [], "count": [], "sum_length": []})
        if "_offset" in table.schema.names:
            columns = table["_partition"].to_pylist(), table["_offset"].to_pylist()
            rows.update((partition, offset, word) for partition, offset in zip(*columns, strict=True))
        else:
            for name, count, length in zip(
                *(table[c].to_pylist() for c in ("word", "count", "sum_length")), strict=True
            ):
                rows[name] += count
                assert length == count * len(name)
        if len(_rows) > 50_000:
            _rows.clear()
        _rows[word, content] = rows
    return _rows[word, content]


__all__ = ["GROUP", "LATER", "OUT", "Life", "Violation", "World"]
