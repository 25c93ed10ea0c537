"""The circuit breaker as a specification."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import CELLS_MAX, MINIMUM, Breaker, Trip

ratios = st.floats(0.01, 1.0)
windows = st.integers(1, 500)


def feed(breaker: Breaker, count: int, given_up: list[int]) -> list[Trip | None]:
    """Let so many records be read and some of them be given up."""
    for offset in range(count):
        breaker.read(offset)
    return [breaker.give_up(offset, "E") for offset in given_up]


@given(ratios, windows, st.integers(0, 2_000), st.data())
def test_a_trip_is_what_it_says(ratio: float, window: int, count: int, data: st.DataObject) -> None:
    """Whenever it opens, the share that it names is the true one of the records read up to there."""
    failing = data.draw(st.lists(st.integers(0, max(count - 1, 0)), unique=True, max_size=200))
    breaker = Breaker(ratio, window)
    for at, (offset, trip) in enumerate(zip(failing, feed(breaker, count, failing), strict=True)):
        if trip is not None:
            assert trip.given_up >= ratio * trip.read
            assert min(window, MINIMUM) <= trip.read < window + 2 * breaker.width
            # The cell that holds the offset ends less than a width behind it.
            low = offset - trip.read + 1
            assert trip.given_up <= sum(low - 1 <= other < offset + breaker.width for other in failing[: at + 1])


@given(ratios, windows, st.integers(0, 1000))
def test_too_few_records_never_open_it(ratio: float, window: int, count: int) -> None:
    """Below the minimum, or below a whole window that is smaller, nothing is said."""
    few = min(count, min(window, MINIMUM) - 1)
    assert not any(feed(Breaker(ratio, window), few, list(range(few))))


@given(ratios, windows)
def test_a_bad_deploy_opens_it(ratio: float, window: int) -> None:
    """If all records fail from some offset on, it opens before two windows of them are given up."""
    healthy = 3 * window
    breaker = Breaker(ratio, window)
    for offset in range(healthy + 2 * max(window, MINIMUM)):
        breaker.read(offset)
    given_up = range(healthy, healthy + 2 * window)
    assert any(breaker.give_up(offset, "E") for offset in given_up)


@given(st.integers(50, 300), st.randoms(use_true_random=False))
def test_evenly_spread_poison_never_opens_it(window: int, rng: random.Random) -> None:
    """One record in twenty given up, in any order and long after the others: less than half of every window."""
    poison = list(range(0, 3000, 20))
    rng.shuffle(poison)
    assert not any(feed(Breaker(0.5, window), 3000, poison))


def test_records_on_their_way_count_as_read() -> None:
    """A sink that holds its acks back does not make those that fail look like the only ones."""
    breaker = Breaker(0.5, 1000)
    breaker.read(0, 1000)
    assert not any(breaker.give_up(offset, "E") for offset in range(499))
    assert breaker.give_up(499, "E") == Trip(500, 1000, "E", 500)


def test_it_names_the_commonest_error() -> None:
    """Of all that the window holds, with how often it came."""
    breaker = Breaker(1.0, 3)
    trips = [breaker.read(n) or breaker.give_up(n, error) for n, error in enumerate(("A", "B", "B"))]
    assert trips == [None, None, Trip(3, 3, "B", 2)]


def test_zero_switches_it_off() -> None:
    assert not any(feed(Breaker(0, 10), 1000, list(range(1000))))


def test_gaps_do_not_count() -> None:
    """Offsets without records are not read: the share is of records."""
    breaker = Breaker(0.5, 10)
    for offset in range(0, 10_000, 1000):
        breaker.read(offset)
    assert [breaker.give_up(offset, "E") is not None for offset in range(0, 10_000, 2000)] == [False] * 5
    assert breaker.give_up(9000, "E") == Trip(6, 10, "E", 6)


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_memory_is_bounded(count: int) -> None:
    """However much is read, the cells are limited, and what is forgotten opens nothing."""
    breaker = Breaker(0.5, 10)
    for offset in range(0, 3 * CELLS_MAX * count, count):
        breaker.read(offset, count)
    assert len(breaker.cells) <= CELLS_MAX
    assert breaker.give_up(0, "E") is None


def test_a_window_that_is_full_takes_no_further_cell() -> None:
    """Exactly so many records as the window has are looked at, where cells end there."""
    breaker = Breaker(ratio=0.5, window=4)
    for offset in range(8):
        breaker.read(offset)
    assert breaker.give_up(6, "E") is None
    assert breaker.give_up(7, "E") == Trip(2, 4, "E", 2)


def test_a_cell_is_a_whole_number_of_records() -> None:
    """A tenth of the window, rounded up."""
    assert [(Breaker(0.5, window).width, type(Breaker(0.5, window).width)) for window in (10, 25)] == [
        (1, int),
        (3, int),
    ]
