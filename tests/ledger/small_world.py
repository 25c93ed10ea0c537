"""A world small enough to look at all of it: two consumers, a short log, and every order in which things can happen.

The code under proof is the real one: :class:`PartitionLedger`, :class:`AssignmentEpochs`, ``encode`` and ``decode``.
Around it stand a broker that keeps one commit per partition, fences members of an earlier generation and judges what it
is told, and the least that a spout must do: read one record, commit what has changed, keep what returns only if the
group's commit is still its own.

A state is a tuple of numbers. Ledgers, assignments and commits are interned by their content, and what an operation
makes of one is remembered, so the real code runs once for each ledger and operation, and not once for each state.
Time stands still and back-off is zero: any retry may come at once, or as late as one likes.

What need not be looked at: a member that the broker no longer knows is fenced, so its words, reads and refused commits
change nothing but its own ledger. If it was evicted, that ledger is lost with the partition; so it is dropped at once.
If the partition was revoked and may yet return, the words can as well come after the return: the order is the same to
everybody else. So only members of the current generation act.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from downspout.ledger import NEVER, AssignmentEpochs, Backoff, Fact, PartitionLedger, decode, encode

MEMBERS = (0, 1)
AT_ONCE = Backoff(0, 0)
FAULTS = ("fail", "timeout", "revoke", "evict", "crash", "commit refused", "commit unanswered")


class Slot(NamedTuple):
    """What a member holds of a partition: ledger and last answered commit by number; ``known`` is a mask of offsets
    that it knows to be done."""

    ledger: int
    commit: int
    known: int


class Member(NamedTuple):
    """A process. ``current``: it takes part in the generation that the broker knows."""

    assignment: int
    current: bool
    slots: tuple[Slot | None, ...]


class World(NamedTuple):
    """A state: owners by the broker's view (-1: free, between revoke and assign), what is committed, what each member
    holds, and how many faults may still happen."""

    owners: tuple[int, ...]
    commits: tuple[int, ...]
    members: tuple[Member, ...]
    crashes: int
    rebalances: int
    backoffs: int
    unanswered: int


@dataclass(frozen=True)
class Bounds:
    """How large a world is.

    Attributes:
        log: the offsets that hold a record, the same in each partition.
        end: the end of the log; offsets without a record are transaction markers.
        partitions: how many.
        crashes: how many processes may die.
        rebalances: how many may begin.
        backoffs: how many fails and timeouts there may be in all.
        unanswered: how many commits may be applied without an answer.
        ceiling: so many failed attempts are followed by another.
        limit: the most that may be outstanding in a partition.
        chunk: so many records may go out as one; any number up to that does.
    """

    log: tuple[int, ...] = (0, 1, 2, 3)
    end: int = 4
    partitions: int = 1
    crashes: int = 1
    rebalances: int = 2
    backoffs: int = 1
    unanswered: int = 1
    ceiling: int = 1
    limit: int = 4
    chunk: int = 1


class Interned:
    """Things by number; equal content has one number."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, content: Hashable, thing: Any) -> int:
        number = self._numbers.setdefault(content, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


def content(ledger: PartitionLedger) -> Hashable:
    """Return all of a ledger that its behaviour depends on while time stands still and retries come at once."""
    return (
        ledger.base,
        ledger.next,
        tuple(ledger._done),
        tuple(ledger._absent),
        tuple((o, ledger.out_until(o)) for o in sorted(ledger._flying)),
        tuple(ledger._ranges_out.gaps),
        tuple(
            (o, t.end, t.records, t.most, t.failures, t.ready_at == NEVER, t.emitted_at is not None)
            for o, t in ledger._retrying.items()
        ),
        tuple(sorted(ledger.earlier_failures.items())),
    )


class SmallWorld:
    """All that can happen within some bounds: :meth:`steps` is what an explorer asks for."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.ledgers, self.assignments, self.commits = Interned(), Interned(), Interned()
        self._memo: dict[Hashable, Any] = {}
        self._exists = sum(1 << offset for offset in bounds.log)
        self.commits(None, None)

    def start(self) -> World:
        """Return the state in which nobody owns anything and nothing is committed."""
        count = self.bounds.partitions
        nobody = Member(self._assignment(AssignmentEpochs()), False, (None,) * count)
        faults = self.bounds.crashes, self.bounds.rebalances, self.bounds.backoffs, self.bounds.unanswered
        return World((-1,) * count, (0,) * count, (nobody,) * 2, *faults)

    def is_good(self, world: World) -> bool:
        """Return whether all is committed to the end, by members that the broker knows."""
        end = self.bounds.end
        return -1 not in world.owners and all(
            commit and self.commits.things[commit][0] == end for commit in world.commits
        )

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for who in MEMBERS:
            self._look_at(world, who)
            for partition in range(self.bounds.partitions) if world.members[who].current else ():
                if world.members[who].slots[partition] is not None:
                    yield from self._words(world, who, partition)
                    if partition in self._owned(world, who):
                        yield from self._read(world, who, partition)
                        yield from self._commit(world, who, partition)
            if world.crashes:
                yield f"crash of {who}", self._crash(world, who)
        if -1 in world.owners:
            yield from self._finish(world)
        elif world.rebalances:
            yield from self._begin(world)

    # --- one member and one partition ---

    def _words(self, world: World, who: int, partition: int) -> Iterator[tuple[str, World]]:
        """Acks, fails and timeouts of what is out; dead letters of what is exhausted."""
        slot = self._slot(world, who, partition)
        ledger: PartitionLedger = self.ledgers.things[slot.ledger]
        place = f"by {who} of {partition}"
        for offset in [o for o in range(ledger.base, ledger.next) if ledger.emitted_at(o) is not None]:
            acked, end = self._after(slot.ledger, "ack", offset), ledger.out_until(offset)
            yield f"ack {place}@{offset}", self._resolve(world, who, partition, acked, offset, end)
            if world.backoffs:
                for kind in ("fail", "timeout"):
                    set_back = world._replace(backoffs=world.backoffs - 1)
                    number = self._after(slot.ledger, kind, offset)
                    yield f"{kind} {place}@{offset}", self._put(set_back, who, partition, slot._replace(ledger=number))
        if partition in self._owned(world, who):
            for offset in [o for o, t in ledger._retrying.items() if t.ready_at == NEVER]:
                buried = self._after(slot.ledger, "bury", offset)
                yield f"dead letter {place}@{offset}", self._resolve(world, who, partition, buried, offset)

    def _read(self, world: World, who: int, partition: int) -> Iterator[tuple[str, World]]:
        slot = self._slot(world, who, partition)
        if (offset := self._next_read(slot.ledger)) is None:
            return
        for size in range(1, self.bounds.chunk + 1):
            operation = "read" if size == 1 else f"read {size}"
            number = self._after(slot.ledger, operation, offset)
            ledger: PartitionLedger = self.ledgers.things[number]
            if (end := ledger.out_until(offset)) is not None:
                again = slot.known & self._exists & _mask([(offset, end)])
                assert not again, f"{who} emits {partition}@{offset} to {end} again, and knows that {again:b} is done"
                trouble = ledger.retry_state(offset)
                assert trouble is None or trouble.failures <= self.bounds.ceiling, "a try more than the ceiling allows"
            read = self._put(world, who, partition, slot._replace(ledger=number))
            yield f"{operation} by {who} of {partition}@{offset}", read

    def _commit(self, world: World, who: int, partition: int) -> Iterator[tuple[str, World]]:
        slot = self._slot(world, who, partition)
        passed, committed, commit = self._committing(slot.ledger, who)
        place = f"by {who} of {partition}"
        if passed != slot.ledger:
            yield f"commit refused {place}", self._put(world, who, partition, slot._replace(ledger=passed))
        if commit == slot.commit:
            return
        assert world.owners[partition] == who, f"{who} commits {partition}, which is not its own"
        self._judge(world, partition, slot, commit)
        told = self._forget_outdated(world._replace(commits=_with(world.commits, partition, commit)))
        if world.unanswered:
            unanswered = told._replace(unanswered=world.unanswered - 1)
            yield f"commit unanswered {place}", self._put(unanswered, who, partition, slot._replace(ledger=passed))
        yield f"commit {place}", self._put(told, who, partition, slot._replace(ledger=committed, commit=commit))

    def _judge(self, world: World, partition: int, slot: Slot, commit: int) -> None:
        """The broker's view of a commit: it never goes back, and nothing unresolved counts as done.

        What the owner knows to be done is what it took words for and what an earlier commit told, which was judged too.
        """
        offset, text = self.commits.things[commit]
        before = self.commits.things[world.commits[partition]]
        assert before is None or before[0] <= offset, f"the commit of {partition} went back to {offset}"
        claimed = (1 << offset) - 1 | _mask(decode(offset, text).done)
        missing = claimed & self._exists & ~slot.known
        assert not missing, f"{partition}: committed at {offset} with {text}, but {missing:b} is not resolved"

    # --- the group ---

    def _begin(self, world: World) -> Iterator[tuple[str, World]]:
        """Something is taken away: told to all (eager), told of one partition (cooperative), or not told at all."""
        fewer = world._replace(rebalances=world.rebalances - 1)
        eager = fewer._replace(owners=(-1,) * self.bounds.partitions)
        for who in MEMBERS:
            if world.members[who].current:
                eager = self._tell(eager, who, Fact("revoked", frozenset(self._owned(world, who))))
        yield "revoke all", eager
        for partition, owner in enumerate(world.owners):
            freed = fewer._replace(owners=_with(world.owners, partition, -1))
            facts = Fact("revoked", frozenset({partition})), Fact("assigned", frozenset[int]())
            yield f"revoke {partition}", self._tell(freed, owner, *facts)
        for who in sorted(set(world.owners)):
            owners = tuple(-1 if owner == who else owner for owner in world.owners)
            evicted = world.members[who]._replace(current=False, slots=(None,) * len(owners))
            yield f"evict {who}", fewer._replace(owners=owners, members=_with(world.members, who, evicted))

    def _finish(self, world: World) -> Iterator[tuple[str, World]]:
        """What is free goes to somebody. Who gets nothing and has nothing may not hear of it."""
        free = [partition for partition, owner in enumerate(world.owners) if owner < 0]
        for targets in product(MEMBERS, repeat=len(free)):
            owners = list(world.owners)
            for partition, target in zip(free, targets, strict=True):
                owners[partition] = target
            idle = [who for who in MEMBERS if who not in owners]
            for deaf in [frozenset[int](), frozenset(idle)][: 1 + bool(idle)]:
                after = world._replace(owners=tuple(owners))
                for who in MEMBERS:
                    if who in deaf:
                        after = self._put_member(after, who, current=False)
                        continue
                    won = frozenset(p for p, target in zip(free, targets, strict=True) if target == who)
                    facts = [Fact("assigned", won)]
                    if not world.members[who].current and (lost := frozenset(self._owned(world, who))):
                        facts.insert(0, Fact("lost", lost))
                    after = self._put_member(self._tell(after, who, *facts), who, current=True)
                yield f"assign {tuple(owners)}{' unheard' if deaf else ''}", self._forget_outdated(after)

    def _tell(self, world: World, who: int, *facts: Fact[int]) -> World:
        """A member applies what its listener has heard, and starts or takes back what it got."""
        member = world.members[who]
        number, gained, returned, forgotten = self._apply(member.assignment, facts)
        slots = list(member.slots)
        for partition in forgotten:
            slots[partition] = None
        for partition in gained | returned:
            slot = slots[partition]
            if partition in gained or slot is None or slot.commit != world.commits[partition]:
                slots[partition] = self._started(world, partition)
        return world._replace(members=_with(world.members, who, Member(number, member.current, tuple(slots))))

    def _forget_outdated(self, world: World) -> World:
        """What is set aside and would not be taken back, as somebody else has committed, need not be told apart."""
        for who, member in enumerate(world.members):
            if not member.current:
                slots = tuple(
                    s if s and s.commit == c else None for s, c in zip(member.slots, world.commits, strict=True)
                )
                world = world._replace(members=_with(world.members, who, member._replace(slots=slots)))
        return world

    def _started(self, world: World, partition: int) -> Slot:
        """What a new owner begins with: all that the commit tells."""
        commit = world.commits[partition]
        if commit == 0:
            return Slot(self._ledger(PartitionLedger(0, AT_ONCE)), 0, 0)
        offset, text = self.commits.things[commit]
        told = decode(offset, text)
        ledger = PartitionLedger(offset, AT_ONCE, told.done, told.failures)
        return Slot(self._ledger(ledger), commit, (1 << offset) - 1 | _mask(told.done))

    def _crash(self, world: World, who: int) -> World:
        """The process dies with all that it knew; what it owned is free, and it comes back with nothing."""
        owners = tuple(-1 if owner == who else owner for owner in world.owners)
        reborn = Member(self._assignment(AssignmentEpochs()), False, (None,) * self.bounds.partitions)
        members = _with(world.members, who, reborn)
        return world._replace(owners=owners, members=members, crashes=world.crashes - 1)

    # --- the real code, each operation on each ledger once ---

    def _after(self, number: int, operation: str, offset: int) -> int:
        return int(self._once((number, operation, offset), lambda: self._operate(number, operation, offset)))

    def _operate(self, number: int, operation: str, offset: int) -> int:
        ledger: PartitionLedger = deepcopy(self.ledgers.things[number])
        if operation == "ack":
            assert ledger.ack(offset)
        elif operation == "bury":
            assert ledger.resolve(offset)
        elif operation.startswith("read"):
            if self.bounds.chunk > 1 and ledger.earlier_failures.get(offset) is None:
                self._read_range(ledger, offset, int(operation[4:] or 1))
            elif ledger.earlier_failures.get(offset, 0) > self.bounds.ceiling:
                # An earlier owner died between the last failure and the dead letter: no try is left.
                ledger.recall(offset, now=0)
                ledger.postpone(offset, NEVER)
            else:
                ledger.emit(offset, now=0)
        else:
            trouble = (ledger.fail if operation == "fail" else ledger.timeout)(offset, now=0)
            assert trouble is not None
            assert trouble.most < trouble.records or trouble.records == 1 or operation == "timeout", "it is not split"
            assert trouble.failures <= self.bounds.ceiling + 1, f"{trouble.failures} attempts at {offset}"
            if trouble.failures > self.bounds.ceiling:
                ledger.postpone(offset, NEVER)
        return self._ledger(ledger)

    def _read_range(self, ledger: PartitionLedger, offset: int, size: int) -> None:
        """Let up to ``size`` records out as one, from ``offset`` on: new ones, or a part of what waits there."""
        trouble = ledger.retry_state(offset)
        if offset >= ledger.next:
            free = ledger.free_until(offset, self.bounds.end)
            if not (records := [o for o in self.bounds.log if offset <= o < free][:size]):
                ledger.passed(offset + 1)
            else:
                ledger.emit_range(records[0], records[-1] + 1, len(records), now=0)
        elif trouble is None or trouble.end == offset + 1:
            assert ledger.emit(offset, now=0)
        else:
            records = [o for o in self.bounds.log if offset <= o < trouble.end]
            assert len(records) == trouble.records, "what waits is miscounted"
            records = records[: min(size, trouble.most)]
            assert ledger.emit_part(offset, records[0], records[-1] + 1, len(records), now=0) == 0

    def _next_read(self, number: int) -> int | None:
        """Return the offset of the record that a poll brings: the lowest ready retry, else the next in the log."""

        def find() -> int | None:
            ledger: PartitionLedger = self.ledgers.things[number]
            if not ledger.may_poll(self.bounds.limit, now=0):
                return None
            retry = ledger.earliest_ready_retry(now=0)
            return retry if retry is not None else next((o for o in self.bounds.log if o >= ledger.next), None)

        found: int | None = self._once((number, "next"), find)
        return found

    def _committing(self, number: int, who: int) -> tuple[int, int, int]:
        """Return the ledger that asks for a commit, the one that has its answer, and the commit."""

        def commit() -> tuple[int, int, int]:
            ledger: PartitionLedger = deepcopy(self.ledgers.things[number])
            if not any(offset >= ledger.next for offset in self.bounds.log):
                ledger.passed(self.bounds.end)
            passed = self._ledger(ledger)
            ledger = deepcopy(ledger)
            point = ledger.commit_point()
            done, failures = list(ledger.done_beyond(point)), dict(ledger.failures_from(point))
            text = encode(point, topology_id="t", task=who, done=done, failures=failures.items())
            told = decode(point, text)
            assert (list(told.done), told.failures) == (done, failures), f"{text} does not tell what was encoded"
            ledger.committed(point)
            return passed, self._ledger(ledger), self.commits((point, text), (point, text))

        made: tuple[int, int, int] = self._once((number, "commit", who), commit)
        return made

    def _apply(
        self, number: int, facts: tuple[Fact[int], ...]
    ) -> tuple[int, frozenset[int], frozenset[int], frozenset[int]]:
        def apply() -> tuple[int, frozenset[int], frozenset[int], frozenset[int]]:
            assignment: AssignmentEpochs[int] = deepcopy(self.assignments.things[number])
            used = assignment.last_epoch
            before = {p: assignment.epoch(p) for p in assignment.owned} | assignment._aside
            changes = assignment.apply(facts)
            for partition in changes.gained:
                assert assignment.epoch(partition) > used, "words of an earlier epoch would find an owner"
            for partition in changes.returned:
                assert assignment.epoch(partition) == before[partition], "words of this epoch would find no owner"
                assert deepcopy(assignment).renew(partition) > used, "renewed, and yet the epoch of before"
            sets = frozenset(changes.gained), frozenset(changes.returned), frozenset(changes.forgotten)
            return (self._assignment(assignment), *sets)

        applied: tuple[int, frozenset[int], frozenset[int], frozenset[int]] = self._once((number, facts), apply)
        return applied

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        try:
            return self._memo[key]
        except KeyError:
            return self._memo.setdefault(key, make())

    def _assignment(self, assignment: AssignmentEpochs[int]) -> int:
        key = (frozenset(assignment.owned), frozenset(assignment.aside), assignment.arrived)
        return self.assignments(key, assignment)

    def _ledger(self, ledger: PartitionLedger) -> int:
        ledger.earliest_ready_retry(now=0)  # what is due moves out of the schedule
        ledger = deepcopy(ledger)
        count = len(self.ledgers.things)
        number = self.ledgers(content(ledger), ledger)
        if number == count:
            check_ledger(ledger, self.bounds)
        return number

    # --- a world with something else in it ---

    def _look_at(self, world: World, who: int) -> None:
        """A member that the broker knows believes what the broker believes."""
        if world.members[who].current:
            owned = {partition for partition, owner in enumerate(world.owners) if owner == who}
            assert set(self._owned(world, who)) == owned, f"{who} believes in something else than the broker"

    def _owned(self, world: World, who: int) -> Any:
        return self.assignments.things[world.members[who].assignment].owned

    def _slot(self, world: World, who: int, partition: int) -> Slot:
        slot = world.members[who].slots[partition]
        assert slot is not None
        return slot

    def _put(self, world: World, who: int, partition: int, slot: Slot) -> World:
        member = world.members[who]
        return world._replace(
            members=_with(world.members, who, member._replace(slots=_with(member.slots, partition, slot)))
        )

    def _put_member(self, world: World, who: int, *, current: bool) -> World:
        return world._replace(members=_with(world.members, who, world.members[who]._replace(current=current)))

    def _resolve(
        self, world: World, who: int, partition: int, ledger: int, offset: int, end: int | None = None
    ) -> World:
        slot = self._slot(world, who, partition)
        slot = slot._replace(ledger=ledger, known=slot.known | _mask([(offset, end or offset + 1)]))
        return self._put(world, who, partition, slot)


def check_ledger(ledger: PartitionLedger, bounds: Bounds) -> None:
    """Assert what holds for each ledger by itself, and that words and reads that mean nothing change nothing."""
    ledger.check()
    assert ledger.outstanding <= bounds.limit, f"{ledger.outstanding} outstanding"
    unresolved = sorted({*ledger._flying, *ledger._retrying})
    point = ledger.commit_point()
    assert point == unresolved[0] if unresolved else point >= ledger.next
    assert ledger.pending <= sum(ledger.base <= offset < ledger.next for offset in bounds.log)
    waiting = [o for o, t in ledger._retrying.items() if t.emitted_at is None and t.ready_at != NEVER]
    assert ledger.earliest_ready_retry(now=0) == min(waiting, default=None), "the lowest retry is not the next"
    before = content(ledger)
    for offset in range(-1, bounds.end + 2):
        if ledger.emitted_at(offset) is None:
            late = ledger.ack(offset), ledger.fail(offset, 0), ledger.timeout(offset, 0)
            assert late == (False, None, None), f"a word about {offset}, which is not out, was taken"
        if offset < ledger.next and offset not in waiting:
            assert not ledger.emit(offset, 0), f"{offset} is done or out, and would be emitted again"
    assert content(ledger) == before, "what means nothing changed something"


def _with(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _mask(ranges: Any) -> int:
    return sum(1 << offset for start, end in ranges for offset in range(start, end))
