from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from downspout.ledger import AT_WORK, ENDED, WINDOW, Backoff, Isolation, PartitionLedger, decode, encode
from downspout.ledger import isolation as rules
from downspout.ledger.isolation import GROWTH, SHRINK
from tests.ledger.explorer import Violation, explore


def start(
    isolation: Isolation, base: int = 100, reach: int = 5_000, end: int = 10_000, died_with: int | None = None
) -> Isolation:
    """Start from a commit at 100 of a log that ends at 10,000."""
    return isolation.start(base, reach, end, died_with)


def test_an_orderly_end_is_no_unclean_start() -> None:
    assert start(AT_WORK.end()) == start(ENDED) == AT_WORK


def test_the_first_unclean_start_is_only_counted() -> None:
    """Who is killed once pays nothing; a commit that moves on, or an orderly end, ends the row."""
    assert start(AT_WORK) == Isolation(1)
    assert Isolation(1).at(100, moved=False) == Isolation(1)
    assert Isolation(1).at(101) == AT_WORK
    assert Isolation(1).end() == ENDED
    assert not Isolation(1).single


def test_the_second_watches_all_that_may_have_been_out() -> None:
    """By windows, as far as the limits allow and not beyond the end of the log."""
    assert start(Isolation(1)) == Isolation(2, WINDOW, 0, 5_100)
    assert start(Isolation(1), end=130) == Isolation(2, WINDOW, 0, 130)
    assert start(Isolation(1), reach=7) == Isolation(2, WINDOW, 0, 107)
    assert not start(Isolation(1)).single


def test_a_death_in_a_window_divides_it() -> None:
    """It was one of these, or none: up to the end of that window they are smaller, down to one record."""
    again = start(Isolation(2, WINDOW, 0, 5_000))
    assert again == Isolation(3, WINDOW // SHRINK, 100 + WINDOW, 5_000)
    assert start(again) == Isolation(4, WINDOW // SHRINK**2, 100 + WINDOW // SHRINK, 5_000)
    assert start(Isolation(5, SHRINK - 1, 0, 5_000)) == Isolation(6, 1, 100 + SHRINK - 1, 5_000)
    assert start(Isolation(5, 1, 107, 5_000, 100)) == Isolation(6, 1, 107, 5_000)
    assert start(Isolation(5, 1, 0, 5_000, 100)) == Isolation(6, 1, 101, 5_000)
    assert start(Isolation(2, WINDOW, 0, 150), end=160) == Isolation(3, WINDOW // SHRINK, 160, 160)


def test_a_record_with_which_a_process_died_is_tried_alone() -> None:
    """From the first death on: windows end before it, and then it is out alone; behind it they grow."""
    suspicious = start(AT_WORK, died_with=170)
    assert suspicious == Isolation(2, WINDOW, 0, 5_100, died_with=170)
    assert suspicious.window_end(100) == 170
    assert suspicious.at(169, through=True, alone=169) == Isolation(2, WINDOW * GROWTH, 0, 5_100, died_with=170)
    alone = suspicious.at(170, through=True, alone=170)
    assert alone == Isolation(2, 1, 171, 5_100, 170)
    assert alone.at(171, through=True, alone=171) == Isolation(2, GROWTH, 0, 5_100)
    assert suspicious.at(180, through=True, alone=180) == Isolation(2, 1, 181, 5_100), (
        "there was a gap: one more is alone"
    )
    assert start(AT_WORK, died_with=100) == Isolation(2, 1, 101, 5_100)
    assert start(AT_WORK, died_with=99) == start(AT_WORK, died_with=10_000) == Isolation(1), "it is done, or not there"
    assert start(Isolation(2, WINDOW, 0, 150), died_with=170).until == 100 + WINDOW
    assert start(Isolation(2, 40, 0, 150), died_with=170) == Isolation(3, 5, 140, 171, died_with=170)
    assert suspicious.end() == Isolation(2, WINDOW, 0, 5_100, ended=True)


@pytest.mark.parametrize("isolation", [AT_WORK, Isolation(1), Isolation(2, 9, 0, 500), Isolation(3, 1, 500, 500, 100)])
def test_nothing_beyond_the_commit_kills_nobody(isolation: Isolation) -> None:
    assert start(isolation, end=100) == start(isolation, end=99) == AT_WORK
    assert start(isolation, end=101) != AT_WORK


def test_a_watch_goes_by_the_commit() -> None:
    """Windows grow when one is through, but not where one is to be narrow; alone, each commit tells which is out."""
    isolation = Isolation(2, 1, 500, 900, 7)
    assert isolation.at(499, alone=499) == isolation.at(499, through=True, alone=499) == Isolation(2, 1, 500, 900, 499)
    assert isolation.at(499) == isolation.at(499, moved=False) == Isolation(2, 1, 500, 900)
    assert isolation.at(500, through=True, alone=500) == Isolation(2, GROWTH, 0, 900)
    assert Isolation(2, 50, 0, 900).at(899, moved=False) == Isolation(2, 50, 0, 900)
    assert Isolation(2, 50, 700, 900).at(699, through=True) == Isolation(2, 50, 700, 900)
    assert isolation.at(900) == Isolation(2, 50, 0, 900).at(900, moved=False) == AT_WORK
    assert AT_WORK.at(500, alone=500) == AT_WORK
    assert Isolation(2, 50, 0, 900).window_end(870) == 900


def test_an_orderly_end_hands_a_watch_on() -> None:
    """Neither longer nor shorter, and without the record."""
    assert Isolation(3, 1, 500, 900, 7).end() == Isolation(3, 1, 500, 900, ended=True)
    assert start(Isolation(3, 1, 500, 900, 7).end()) == Isolation(3, 1, 500, 900)
    assert Isolation(3, 9, 0, 900).end() == Isolation(3, 9, 0, 900, ended=True)


# --- all that can happen to three records, one of which kills ---


class Life(NamedTuple):
    """A state: the commit (offset and text), what the process knows (``ledger`` None: it is dead), what has happened.

    ``out`` and ``acked`` are of this life, ``letters`` and ``done`` of all; ``kills`` and ``stops`` may still come from
    outside; ``innocent`` tells how often each record was out alone, as far as was committed, when one came from there.
    """

    commit: tuple[int, str]
    ledger: tuple[int, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None
    isolation: Isolation
    out: frozenset[int]
    acked: frozenset[int]
    letters: frozenset[int]
    done: frozenset[int]
    kills: int
    stops: int
    innocent: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A log of which one record kills whoever has it out; a spout that follows the isolation, with the real codec."""

    end: int
    killer: int
    ceiling: int
    kills: int
    stops: int

    def begin(self) -> Life:
        none: frozenset[int] = frozenset()
        text = encode(0, topology_id="t", task=1)
        return Life((0, text), None, AT_WORK, none, none, none, none, self.kills, self.stops, (0,) * self.end)

    def steps(self, life: Life) -> Iterator[tuple[str, Life]]:
        """Yield what can happen next; what the spout does by itself is one step with its commit."""
        if life.ledger is None:
            yield "start", self.start(life)
            return
        if self.killer in life.out:  # sooner or later, and others may be done before
            yield "it kills", self.die(life)
        base, _, told = life.ledger
        for offset in life.out - {self.killer}:
            acked = life._replace(out=life.out - {offset}, acked=life.acked | {offset}, done=life.done | {offset})
            yield f"ack {offset}", acked
        yield "commit", self.commit(life)
        if life.kills:
            died = self.die(life._replace(kills=life.kills - 1))
            if (alone := decode(*life.commit).isolation.alone) is not None:
                blamed = tuple(n + (offset == alone) for offset, n in enumerate(life.innocent))
                died = died._replace(innocent=blamed)
            yield "kill -9", died
        if life.stops:
            stopped = self.commit(life, last=True)
            yield "stop", self.die(stopped._replace(stops=life.stops - 1))
        following = self.following(life)
        if following == self.end or (life.isolation.until and following >= life.isolation.window_end(base)):
            return
        failures = dict(told).get(following, 0)
        if failures > self.ceiling:
            assert following not in life.out
            letters, further = life.letters | {following}, life.acked | {following}
            yield f"letter {following}", life._replace(letters=letters, acked=further, done=life.done | {following})
        elif not life.isolation.single:
            yield f"emit {following}", life._replace(out=life.out | {following})
        elif not life.out:
            written = self.commit(life, alone=following)
            yield f"emit {following} alone", written._replace(out=frozenset({following}))

    def following(self, life: Life) -> int:
        """Return the next record to read: the lowest that is neither out nor done."""
        assert life.ledger is not None
        base = life.ledger[0]
        return next((o for o in range(base, self.end) if o not in life.out | life.acked), self.end)

    def start(self, life: Life) -> Life:
        """A process starts from the commit, and commits its mark."""
        base, text = life.commit
        told = decode(base, text)
        failures = dict(told.failures)
        if told.isolation.alone is not None:
            failures[told.isolation.alone] = failures.get(told.isolation.alone, 0) + 1
        done = frozenset(o for first, end in told.done for o in range(first, end))
        isolation = told.isolation.start(base, reach=99, end=self.end)
        ledger = (base, tuple(told.done), tuple(failures.items()))
        return self.commit(life._replace(ledger=ledger, isolation=isolation, out=frozenset(), acked=done))

    def die(self, life: Life) -> Life:
        return life._replace(ledger=None, isolation=AT_WORK, out=frozenset(), acked=frozenset())

    def commit(self, life: Life, *, alone: int | None = None, last: bool = False) -> Life:
        """What is done, and the isolation, by a real ledger."""
        assert life.ledger is not None
        base, _, told = life.ledger
        failing = {offset: count for offset, count in told if offset not in life.acked}
        ledger = PartitionLedger(base, Backoff(), [(o, o + 1) for o in sorted(life.acked)], failing)
        for offset in range(base, self.following(life)):
            assert ledger.emit(offset, 0) == (offset in life.out)
        point = ledger.commit_point()
        if life.isolation.single and life.out:
            (alone,) = life.out
        through = point >= life.isolation.window_end(base)
        isolation = life.isolation.at(point, moved=point > base, through=through, alone=alone)
        done, failures = tuple(ledger.done_beyond(point)), tuple(ledger.failures_from(point))
        text = encode(
            point,
            topology_id="t",
            task=1,
            done=done,
            failures=failures,
            isolation=isolation.end() if last else isolation,
        )
        assert set(range(point)) <= life.done, "a record counts as done, and is not"
        return life._replace(commit=(point, text), ledger=(point, done, failures), isolation=isolation,
                             acked=frozenset(o for o in life.acked if o >= point))  # fmt: skip

    def check(self, life: Life) -> None:
        if life.isolation.single:
            assert len(life.out) <= 1, f"{sorted(life.out)} are out"
        for offset in life.letters - {self.killer}:
            assert life.innocent[offset] > self.ceiling, f"{offset} is innocent, and dead-lettered"

    def checked(self, life: Life) -> Iterator[tuple[str, Life]]:
        self.check(life)
        yield from self.steps(life)

    def is_over(self, life: Life) -> bool:
        """All is committed, and the killer is a dead letter."""
        return life.commit[0] == self.end and self.killer in life.letters and life.isolation == AT_WORK


@pytest.mark.sweep
@pytest.mark.parametrize(("end", "window"), [(3, 1), (3, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", ["first", "in between", "last"])
def test_in_every_order_the_killer_is_found_and_nobody_else(
    end: int, window: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All states of a log with a killer, kills from outside and stops: it ends, and no innocent record is a letter."""
    monkeypatch.setattr(rules, "WINDOW", window)
    killer = {"first": 0, "in between": end - 2, "last": end - 1}[place]
    model = Model(end=end, killer=killer, ceiling=1, kills=2, stops=1)
    found = explore(model.begin(), model.checked, healthy=lambda label: label not in ("kill -9", "stop"))
    assert found.complete
    assert len(found.states) > 500
    stuck = found.cannot_reach(model.is_over)
    assert not stuck, f"{len(stuck)} states never end; one is reached by {found.way_to(stuck[0])}"


def test_the_search_sees_an_innocent_record_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an orderly end that leaves its lone record in the commit, the model finds what is wrong: it is not blind."""
    monkeypatch.setattr(rules, "WINDOW", 2)
    monkeypatch.setattr(Isolation, "end", lambda self: self)
    model = Model(end=3, killer=2, ceiling=0, kills=0, stops=2)
    with pytest.raises(Violation, match="is innocent, and dead-lettered"):
        explore(model.begin(), model.checked)
