from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from downspout.batches import Commit, Coordinator, EmitterBatches, Held, StateKind
from tests.batches.small_world import FAULTS, Bounds, SmallWorld, World
from tests.ledger.explorer import Explored, Violation, explore
from tests.sampling import WHOLE, sample

TRANSACTIONAL: dict[str, Any] = {"is_transactional": True, "kind": StateKind.TRANSACTIONAL}

SMALL = {
    "opaque, two batches at once, a time-out": Bounds(kills=0),
    "opaque, one batch at once, a kill": Bounds(active=1, timeouts=0),
    "opaque, two tasks, one batch at once, a time-out": Bounds(active=1, kills=0, tasks=2),
    "transactional, two batches at once, a time-out": Bounds(kills=0, **TRANSACTIONAL),
    "transactional, one batch at once, a kill": Bounds(active=1, timeouts=0, **TRANSACTIONAL),
    "transactional batches, opaque state, a time-out": Bounds(kills=0, is_transactional=True),
}
LARGER = {
    "opaque, two batches at once, a kill": Bounds(timeouts=0),
    "opaque, one batch at once, a kill and a time-out": Bounds(active=1),
    "opaque, two tasks, two batches at once, a kill": Bounds(timeouts=0, tasks=2),
    "opaque, one batch at once, two kills": Bounds(active=1, kills=2, timeouts=0),
    "opaque, an empty batch behind, two time-outs": Bounds(kills=0, timeouts=2, active=1, beyond=1),
    "transactional, two batches at once, a kill": Bounds(timeouts=0, **TRANSACTIONAL),
    "transactional, one batch at once, a kill and a time-out": Bounds(active=1, **TRANSACTIONAL),
}


def look_at_all(bounds: Bounds, depth_max: int | None = None) -> tuple[SmallWorld, Explored[World]]:
    """Visit all states within the bounds, and say how many there are."""
    small = SmallWorld(bounds)
    found = explore(small.start(), small.steps, healthy=lambda label: not label.startswith(FAULTS), depth_max=depth_max)
    how_far = "all" if found.complete else "not farther"
    print(f"{len(found.states):,} states, {found.steps:,} steps, {found.depth} deep ({how_far}); {bounds}")
    return small, found


@pytest.mark.slow
@pytest.mark.timeout(3600 if WHOLE else 300)
@pytest.mark.parametrize("name", [*SMALL, *LARGER] if WHOLE else sample([*SMALL], 3, "batches"))
def test_no_order_of_events_counts_a_record_twice_or_never(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After each success the state holds each record up to there once; and from each state all can be committed."""
    with capsys.disabled():
        print(f"\n{name}: ", end="")
        small, found = look_at_all({**SMALL, **LARGER}[name])
    assert found.complete
    assert len(found.states) > 500
    stuck = found.cannot_reach(small.is_good)
    assert not stuck, f"{len(stuck)} states never end; one is reached by {found.way_to(stuck[0])}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(active=1, kills=0, kind=StateKind.TRANSACTIONAL),
        Bounds(active=1, kills=0, kind=StateKind.NON_TRANSACTIONAL),
        Bounds(active=1, kills=0, is_transactional=True, kind=StateKind.NON_TRANSACTIONAL),
    ],
    ids=["opaque batches, transactional state", "opaque batches, plain state", "transactional batches, plain state"],
)
def test_the_other_pairs_are_not_exactly_once(bounds: Bounds) -> None:
    """Of each pair that `check` refuses, the search finds a way to a wrong count."""
    with pytest.raises(Violation, match="the counts are"):
        look_at_all(bounds)


def _stored_first(self: EmitterBatches[str], partition: str, txid: int, stored: Any) -> Any:
    """Believe the store, which may hold the range of an attempt that failed, before memory."""
    known = [found for earlier, found in stored.items() if earlier < txid]
    ranges = [held[partition] for _, held in self._held.before(txid) if partition in held]
    return (known[-1:] or ranges[:1] or [None])[0]


def _one_alone(self: Coordinator, attempt: Any) -> Any:
    if attempt.txid in self._active and self._active[attempt.txid][0] == attempt:
        del self._active[attempt.txid]


def _lowest_missing(self: Coordinator) -> int | None:
    missing = (txid for txid in range(self.current, self.current + self.max_active) if txid not in self._active)
    return next(missing, None)


def _forgets(self: Commit[Any]) -> dict[Any, Any]:
    """Leave what an earlier attempt has stored and this one does not hold."""
    self._replaced = ()
    return RIGHT_CHANGES(self)


RIGHT_CHANGES: Callable[[Commit[Any]], dict[Any, Any]] = Commit.changes
BROKEN: dict[str, tuple[Bounds, list[tuple[type, str, Any]]]] = {
    "the store's range before memory's": (Bounds(kills=0), [(EmitterBatches, "before", _stored_first)]),
    "later attempts stay when one fails": (
        Bounds(kills=0),
        [
            (Coordinator, "failed", _one_alone),
            (Coordinator, "next_txid", _lowest_missing),
            (Held, "drop_after", lambda self, txid: None),  # an emitter gives later batches up too
        ],
    ),
    "a commit without its beginning": (
        Bounds(active=1, timeouts=0),
        [(Held, "may_commit", lambda self, attempt: attempt.txid in self._batches)],
    ),
    "early tuples are acked": (Bounds(active=1, timeouts=0), [(Held, "has_begun", lambda self, attempt: True)]),
    "what an attempt leaves out stays": (Bounds(active=1, kills=0, tasks=2), [(Commit, "changes", _forgets)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("error", list(BROKEN))
def test_the_search_finds_an_error_that_is_planted(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core with an error in it is found out, with a way there: the search is not blind."""
    bounds, changes = BROKEN[error]
    for owner, name, wrong in changes:
        monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(Violation, match="the way there: begin 1"):
        look_at_all(bounds)
