from __future__ import annotations

import pytest

from downspout.ledger import AssignmentEpochs, PartitionLedger
from tests.ledger.explorer import Explored, Violation, explore
from tests.ledger.small_world import FAULTS, Bounds, SmallWorld, World
from tests.sampling import WHOLE, sample

SMALL = {
    "four records": Bounds(backoffs=0, unanswered=0),
    "a record and a marker, no second try": Bounds(log=(0,), end=2, backoffs=2, ceiling=0),
    "three records as one or apart, a failure": Bounds(log=(0, 1, 2), end=3, chunk=3, rebalances=0, unanswered=0),
    "ranges with a gap, three failures": Bounds(log=(0, 2, 3), chunk=3, rebalances=0, crashes=0, backoffs=3),
}
LARGER = {
    "two records, a failure, a commit unanswered": Bounds(log=(0, 1), end=2),
    "four records, a commit unanswered": Bounds(backoffs=0),
    "four offsets, one a marker, a failure": Bounds(log=(0, 1, 3), unanswered=0),
    "four offsets, one a marker, a limit of two": Bounds(log=(0, 2, 3), limit=2),
    "two records, two failures": Bounds(log=(0, 1), end=2, backoffs=2),
    "four records as one or apart, two failures": Bounds(chunk=4, backoffs=2, rebalances=1, unanswered=0),
    "ranges, a failure, a rebalance": Bounds(log=(0, 1, 2), end=3, chunk=3, rebalances=1, unanswered=0),
    "ranges and a limit": Bounds(log=(0, 1, 3), chunk=2, limit=2, unanswered=0),
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
@pytest.mark.parametrize("name", [*SMALL, *LARGER] if WHOLE else sample([*SMALL], 5, "ledger"))
def test_no_order_of_events_breaks_a_promise(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In every reachable state the invariants hold, and from each all is committed once faults end."""
    with capsys.disabled():
        print(f"\n{name}: ", end="")
        small, found = look_at_all({**SMALL, **LARGER}[name])
    assert found.complete
    assert len(found.states) > 1000
    stuck = found.cannot_reach(small.is_good)
    assert not stuck, f"{len(stuck)} states never end; one is reached by {found.way_to(stuck[0])}"


@pytest.mark.slow
@pytest.mark.timeout(3600 if WHOLE else 300)
def test_two_partitions_to_a_bounded_depth(capsys: pytest.CaptureFixture[str]) -> None:
    """With two partitions and eager and cooperative moves of each, no state up to a depth breaks an invariant."""
    with capsys.disabled():
        print("\ntwo partitions: ", end="")
        _, found = look_at_all(Bounds(log=(0, 1), end=2, partitions=2), depth_max=9 if WHOLE else 5)
    assert len(found.states) > 1000


BROKEN = {
    "commits what was read": (PartitionLedger, "commit_point", lambda self: self.next),
    "tells what is out as done": (
        PartitionLedger,
        "done_beyond",
        lambda self, point: iter([(point + 1, self.next + 2)]),
    ),
    "forgets what was told": (PartitionLedger, "_pass_over", lambda self, offset: None),
    "reads without a limit": (PartitionLedger, "may_poll", lambda self, limit, now: True),
    "keeps what was lost": (AssignmentEpochs, "apply", None),
}


@pytest.mark.parametrize("error", list(BROKEN))
def test_the_search_finds_an_error_that_is_planted(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger or assignment with an error in it is found out, with a way there: the search is not blind."""
    owner, name, wrong = BROKEN[error]
    if wrong is None:
        right = AssignmentEpochs.apply
        wrong = lambda self, facts: right(self, [fact for fact in facts if fact.kind != "lost"])  # noqa: E731
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(Violation, match="the way there: assign"):
        look_at_all(Bounds(log=(0, 2, 3), limit=2, backoffs=0), depth_max=9)


def test_an_explorer_tells_the_shortest_way_and_what_is_stuck() -> None:
    """On a graph that is known, states, depth, ways and dead ends are right."""
    graph = {0: [1, 2], 1: [3], 2: [3], 3: [4], 4: [], 5: [0]}
    found = explore(0, lambda state: [(f"to {target}", target) for target in graph[state]])
    assert (found.states, found.steps, found.depth, found.complete) == ([0, 1, 2, 3, 4], 5, 3, True)
    assert found.way_to(4) == ["to 1", "to 3", "to 4"]
    assert found.cannot_reach(lambda state: state == 2) == [1, 3, 4]
    faulty = explore(0, lambda s: [(f"to {t}", t) for t in graph[s]], healthy=lambda label: label != "to 4")
    assert faulty.cannot_reach(lambda state: state == 4) == [0, 1, 2, 3]
    short = explore(0, lambda state: [(f"to {target}", target) for target in graph[state]], depth_max=1)
    assert (short.states, short.complete) == ([0, 1, 2], False)
