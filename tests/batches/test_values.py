from __future__ import annotations

from typing import Any

import pytest

from downspout.batches import Attempt, Base, Commit, Coordinator, CoordinatorState, StateKind
from downspout.batches.core.state_values import ForeignValueError, base

TRANSACTIONAL, OPAQUE = StateKind.TRANSACTIONAL, StateKind.OPAQUE


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (TRANSACTIONAL, [1, 2, 3]), (TRANSACTIONAL, [1]), (TRANSACTIONAL, ["1", 2]), (TRANSACTIONAL, [True, 2]),
        (TRANSACTIONAL, {0: 1, 1: 2}), (TRANSACTIONAL, "ab"), (TRANSACTIONAL, 7), (OPAQUE, [1, 2]), (OPAQUE, 7),
        (OPAQUE, [None, 1, 2]), (OPAQUE, {0: 1, 1: 2, 2: 3}),
    ],
)  # fmt: skip
def test_a_stored_form_of_another_kind_is_refused(kind: StateKind, stored: Any) -> None:
    """Whatever it is, it is not taken for a value; the message holds it, and the kind."""
    with pytest.raises(ForeignValueError, match=f"is not the stored form of a value of kind {kind.value}$") as error:
        base(kind, stored, 5)
    assert repr(stored) in str(error.value)


@pytest.mark.parametrize(("kind", "stored"), [(TRANSACTIONAL, [6, 3]), (OPAQUE, [6, 3, 2])])
def test_a_value_of_a_later_transaction_is_refused(kind: StateKind, stored: list[int]) -> None:
    """It belongs to another series of transactions: the message says which key, and by whom it was written."""
    said = r"was written by transaction 6, which is later than 5$"
    with pytest.raises(ForeignValueError, match=said):
        base(kind, stored, 5)
    with pytest.raises(ForeignValueError, match=rf"^key 'man': .*{said}"):
        Commit(kind, 5, {"man": stored}).get("man")


def test_a_value_of_no_kind_is_what_is_stored() -> None:
    """Lists too, whatever transaction they may look like."""
    assert base(StateKind.NON_TRANSACTIONAL, [9, 1], 5) == Base([9, 1])
    assert base(OPAQUE, None, 5) == Base(None)


def test_one_batch_is_active_by_default() -> None:
    assert Coordinator(CoordinatorState()).max_active == 1


def test_an_attempt_is_taken_as_it_is() -> None:
    """It is made of what has come over a pipe alone: each tuple of a batch passes here."""
    attempt = Attempt(3, 1)
    assert Attempt.of(attempt) is attempt
    assert Attempt.of((3, 1)) == attempt
