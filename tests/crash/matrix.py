"""The matrix: every step of a scenario × every recovery × every state that a crash can leave the disk in.

A *scenario* is a story of one or two processes; each of its steps is a *point*. A run of the matrix tells the story
until that point, lets there happen what the recovery says, and looks at the files.

============  =====================================================================================
recovery      at the point
============  =====================================================================================
``same``      the process dies; it is started again under the same name
``other``     it dies; another member of the group takes over
``late``      it dies; of what comes again, a part comes only after two flushes of other records
``wakes``     it falls asleep; another member takes over and goes on to the end; then it wakes up and goes on
============  =====================================================================================

A sleep may also fall between two looks at the disk, where a death would change nothing: such a point has ``wakes``
alone. A sleeper may never wake up: that is tried too, with each loss, when the other one has ended.

After deaths the story goes on in a copy of the world, so that it is told once for all of them. Where two points leave
disk and Kafka in one and the same state, what comes after it is run once.

Stories are told with tuples of records, and some again with chunks (:data:`CHUNKS`). The log and its files know nothing
of tuples; what chunks change is what is acked and committed together, and that a replay may be cut up in another way.
So chunks need the stories in which rows come again, and their recoveries take turns over the points: in records, or in
chunks of another size.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.sink import SWEEP_AFTER_S, Layout, log, read_entries
from tests.crash import words
from tests.crash.world import GROUP, LATER, LOG, Life, Violation, World
from tests.killing import ROOM
from tests.machine import LOSSES, Loss, Step
from tests.sampling import WHOLE

DEATHS = ("same", "other", "late")
RECOVERIES = (*DEATHS, "wakes")
PROMPT = ("same", "other", "wakes")
"""Of stories in chunks: what comes late needs two flushes before it, and a chunk brings all that is there into one."""
DRAWS = 25 if WHOLE else 1
"""How often chance decides what the loss ``some`` leaves at a point."""


def in_log(step: Step) -> bool:
    return step.operation == "link" and LOG in step.where


@dataclass
class Story:
    """What a scenario is told with: it starts processes, and the matrix hears of their steps.

    Attributes:
        world: where it happens.
        heard: the steps of the part of the story that counts, in order, by whichever process.
        at: called ahead of each of them.
    """

    world: World
    at: Callable[[Life, Step], None] = lambda life, step: None
    heard: list[Step] = field(default_factory=list)
    _event: Callable[[Life, Step], bool] | None = None
    _consequence: Callable[[Life], None] | None = None
    _counts: bool = False

    def __post_init__(self) -> None:
        self.world.before = self._before

    def begin(self) -> None:
        self._counts = True

    def end(self) -> None:
        self._counts = False

    def once(self, event: Callable[[Life, Step], bool], consequence: Callable[[Life], None]) -> None:
        """Let something happen ahead of the first step that fits."""
        self._event, self._consequence = event, consequence

    def _before(self, life: Life, step: Step) -> None:
        if step.changes:
            self.world.check_now(f"before {step.operation} {step.where}")
        if self._event is not None and self._event(life, step):
            consequence, self._event = self._consequence, None
            assert consequence is not None
            consequence(life)
        if self._counts:
            self.heard.append(step)
            self.at(life, step)


Scenario = Callable[[Story], None]


def stream(story: Story) -> None:
    story.begin()
    story.world.live(story.world.start("first"))


def _die_after(story: Story, event: Callable[[Step], bool], nth: int) -> None:
    """Let a first process die ahead of the nth such step; the machine goes on."""
    world, seen = story.world, Counter[str]()
    first = world.start("first")

    def is_it(life: Life, step: Step) -> bool:
        seen["it"] += life is first and event(step)
        return life is first and event(step) and seen["it"] == nth

    story.once(is_it, lambda life: world.kill(life, "keep"))
    assert not world.live(first)


def recovery(story: Story) -> None:
    """A process opens a directory where another has died between its log entry and the renaming, and goes on."""
    seen: list[str] = []

    def after_the_entry(step: Step) -> bool:
        seen.extend([step.operation] if in_log(step) or seen else [])
        return seen.count("link") >= 2 and step.operation == "remove"

    _die_after(story, after_the_entry, 1)
    story.begin()
    story.world.live(story.world.start("second"))


def _sleep_before(story: Story, nth: int, between: Callable[[], None]) -> None:
    """Let a first process sleep ahead of its nth log entry, while another goes on to the end; then it wakes up."""
    world, entries = story.world, Counter[str]()
    first = world.start("first")

    def is_it(life: Life, step: Step) -> bool:
        entries["first"] += life is first and in_log(step)
        return entries["first"] == nth

    def sleep(life: Life) -> None:
        for consumer in life.kafka.consumers:
            consumer.freeze()
        between()
        story.begin()
        world.live(world.start("second"), member=2)

    story.once(is_it, sleep)
    world.live(first)


def conflict(story: Story) -> None:
    """A process sleeps ahead of its second log entry; another takes that number, and all; the first one wakes up."""
    _sleep_before(story, 2, lambda: None)


def fence(story: Story) -> None:
    """A process sleeps for hours ahead of a log entry; another fences it and sweeps; it wakes up and stages anew."""
    _sleep_before(story, 1, lambda: story.world.clock.advance(2 * SWEEP_AFTER_S))


def rebuild(story: Story) -> None:
    """All is done; then the records are processed again, into the rebuilt directory."""
    world = story.world
    world.live(world.start("old"))
    world.settings["parquet.rebuild"] = 2
    world.kafka.group(GROUP).offsets.clear()
    story.begin()
    world.live(world.start("new"))


RECORDS: Sequence[Mapping[str, Any]] = ({"kafka.emit": "record"},)
CHUNKS: Sequence[Mapping[str, Any]] = (
    {"kafka.emit": "chunk", "kafka.chunk_records_max": 3},
    {"kafka.emit": "record"},
    {"kafka.emit": "chunk", "kafka.chunk_records_max": 2},
)
"""The story's first process reads a partition as one chunk; those after it records, or smaller chunks."""
SCENARIOS: dict[str, tuple[Scenario, type, Sequence[Mapping[str, Any]]]] = {
    "stream": (stream, words.Rows, RECORDS),
    "aggregate": (stream, words.Counts, RECORDS),
    "checkpoints": (stream, words.Alone, RECORDS),
    "recovery": (recovery, words.Alone, RECORDS),
    "conflict": (conflict, words.Alone, RECORDS),
    "fence": (fence, words.Alone, RECORDS),
    "rebuild": (rebuild, words.Alone, RECORDS),
    "chunks": (stream, words.Halves, CHUNKS),
    "chunks added up": (stream, words.Counts, CHUNKS),
    "chunks in conflict": (conflict, words.Alone, CHUNKS),
}
OFTEN = {"checkpoints": 1}
"""After how many entries there is a checkpoint, where not after so many that no story gets there."""


@contextlib.contextmanager
def checkpoints(every: int | None) -> Iterator[None]:
    before = log.CHECKPOINT_EVERY, log.CHECKPOINTS_KEPT
    if every is not None:
        log.CHECKPOINT_EVERY, log.CHECKPOINTS_KEPT = every, 1
    try:
        yield
    finally:
        log.CHECKPOINT_EVERY, log.CHECKPOINTS_KEPT = before


@dataclass
class Outcome:
    """What the matrix found in a scenario.

    Attributes:
        points: how many steps of the scenario were looked at.
        looks: how many of them change nothing.
        cells: how many combinations of point, recovery and loss were looked at.
        same: how many of these left a state that had been looked at.
        violations: where a promise was broken, and which.
        made: the kinds of log entries, and the folders, that there are when nothing happens.
    """

    points: int = 0
    looks: int = 0
    cells: int = 0
    same: int = 0
    violations: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)


class Matrix:
    """All cells of one scenario.

    Args:
        name: of the scenario.
        change: called with each component of each process: a mutant.
        stop: at the first violation.
        every: look at each so many-th point alone.
        first: the first of them, at most ``every``, which it is where nothing is said.
        recoveries: which.
    """

    def __init__(
        self,
        name: str,
        change: Callable[[Any], None] = lambda instance: None,
        *,
        stop: bool = False,
        every: int = 1,
        first: int | None = None,
        recoveries: Collection[str] = RECOVERIES,
    ) -> None:
        self.name = name
        self.tell, self.topology, self.modes = SCENARIOS[name]
        self.change = change
        self.stop = stop
        self.every, self.first = every, every if first is None else first
        self.deaths = [how for how in DEATHS if how in recoveries]
        self.sleeps = "wakes" in recoveries
        self.outcome = Outcome()
        self._done: set[Hashable] = set()

    def run(self) -> Outcome:
        """Go through all cells.

        Raises:
            Violation: with ``stop`` the first; without, one of a story in which nothing happens.
        """
        with checkpoints(OFTEN.get(self.name)):
            steps = self._deaths()
            chosen = steps[self.first - 1 :: self.every]
            self.outcome.points, self.outcome.looks = len(chosen), sum(not step.changes for step in chosen)
            for point in range(self.first, len(steps) + 1, self.every) if self.sleeps else ():
                self._sleep_at(point, steps[point - 1])
        return self.outcome

    def _look(self, what: str, cells: int, look: Callable[[], None]) -> None:
        self.outcome.cells += cells
        try:
            look()
        except Violation as error:
            if self.stop:
                raise
            self.outcome.violations.append(f"{self.name}, {what}: {error}")

    # --- deaths -------------------------------------------------------------------------------------------

    def _deaths(self) -> list[Step]:
        """Tell the story once; ahead of each step let all die, in a copy of the world, and recover there."""
        with self._world() as world:

            def at(life: Life, step: Step) -> None:
                wanted = step.changes and (len(story.heard) - self.first) % self.every == 0
                for loss, how in itertools.product(LOSSES if wanted else (), self.deaths):
                    what = f"point {len(story.heard)} ({step.operation} {step.where}), {how}, {loss}"
                    if loss == "keep" and any(one is not life and one.alive for one in world.lives):
                        self._look(what, 1, functools.partial(self._die_alone, len(story.heard), how))
                    else:
                        self._look(what, 1, functools.partial(self._die_here, world, how, loss, len(story.heard)))

            story = Story(world, at)
            self.tell(story)
            story.end()
            self.outcome.made = {path.parent.name for path in Layout(world.directory).home.glob("*/*")}
            self.outcome.made |= {entry.kind for entry in read_entries(world.directory)}
            self._settle(world)
            return story.heard

    def _die_here(self, world: World, how: str, loss: Loss, point: int) -> None:
        fresh = [
            self._die_once(world, how, loss, point, point + 10_000 * draw)
            for draw in range(DRAWS if loss == "some" else 1)
        ]
        self.outcome.same += not any(fresh)

    def _die_once(self, world: World, how: str, loss: Loss, point: int, seed: int) -> bool:
        """Let all die in a copy of the world, and recover there; return False where just that was tried before."""
        with tempfile.TemporaryDirectory(dir=ROOM) as elsewhere:
            left = world.fork(Path(elsewhere), loss, seed, turn=point)
            try:
                if fresh := (state := (how, str(left.mode()), left.state())) not in self._done:
                    self._done.add(state)
                    self._recover(left, how)
            finally:
                left.close()
        return fresh

    def _die_alone(self, point: int, how: str) -> None:
        """Tell the story again; at the point one process dies, and those that sleep wake up and go on."""

        def at(life: Life, step: Step) -> None:
            if len(story.heard) == point:
                story.end()
                world.turn = point
                world.kill(life, "keep")

        with self._world() as world:
            story = Story(world, at)
            self.tell(story)
            self._recover(world, how)

    def _recover(self, world: World, how: str) -> None:
        world.check_now("after the crash")
        world.check_commits()
        if how == "late":
            world.produce(1, LATER)
        if not world.live(world.start("again", late=how == "late"), member=2 if how == "other" else 1):
            raise Violation("the process died that was to clear up")
        world.check_settled()

    # --- sleep --------------------------------------------------------------------------------------------

    def _sleep_at(self, point: int, step: Step) -> None:
        """Tell the story again; at the point a process sleeps while another goes on to the end."""

        def at(life: Life, step: Step) -> None:
            if len(story.heard) == point:
                story.end()
                world.turn = point
                for consumer in life.kafka.consumers:
                    consumer.freeze()
                if not world.live(world.start("other"), member=3):
                    raise Violation("the process died that took over")
                for loss in LOSSES:
                    self._die_here(world, "same", loss, point)

        def look() -> None:
            self.tell(story)
            if len(story.heard) != point:
                raise Violation(f"the point was not reached: {len(story.heard)} steps")
            self._settle(world)

        with self._world() as world:
            story = Story(world, at)
            self._look(f"point {point} ({step.operation} {step.where}), wakes", len(LOSSES), look)

    def _settle(self, world: World) -> None:
        """Whatever else happens, a power cut takes nothing away: a last process finds everything done."""
        world.live(world.start("last"))
        world.check_settled()
        world.volume.power_cut("some")
        world.live(world.start("very-last"))
        world.check_settled()

    @contextlib.contextmanager
    def _world(self) -> Iterator[World]:
        root = tempfile.mkdtemp(dir=ROOM)
        world = World(Path(root), self.topology, change=self.change, modes=self.modes)
        try:
            yield world
        finally:
            world.close()
            shutil.rmtree(root)
