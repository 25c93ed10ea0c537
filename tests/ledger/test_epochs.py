from __future__ import annotations

import pytest

from downspout.ledger import AssignmentEpochs, Fact, id_prefix, split_id


def fact(kind: str, partitions: str) -> Fact[str]:
    return Fact(kind, frozenset(partitions))


def owner_of(partitions: str) -> AssignmentEpochs[str]:
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    mine.apply([fact("assigned", partitions)])
    return mine


def test_the_first_assignment_is_gained() -> None:
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    assert not mine.arrived
    changes = mine.apply([fact("revoked", ""), fact("assigned", "ab")])
    assert (changes.gained, changes.returned, changes.forgotten) == ({"a", "b"}, set(), set())
    assert mine.epoch("a") == mine.epoch("b") == 1
    assert mine.arrived


def test_eager_all_revoked_and_the_full_set_assigned() -> None:
    """What is in both returns with its epoch; the rest is forgotten or gained in a new one."""
    mine = owner_of("abc")
    changes = mine.apply([fact("revoked", "abc"), fact("assigned", "bcd")])
    assert (changes.gained, changes.returned, changes.forgotten) == ({"d"}, {"b", "c"}, {"a"})
    assert (mine.epoch("b"), mine.epoch("d")) == (1, 2)


def test_eager_over_several_polls() -> None:
    """Between revoke and assign partitions are set aside: neither ours nor forgotten."""
    mine = owner_of("ab")
    first = mine.apply([fact("revoked", "ab")])
    assert (first.forgotten, set(mine.owned), set(mine.aside)) == (set(), set(), {"a", "b"})
    second = mine.apply([fact("revoked", ""), fact("assigned", "a")])
    assert (second.returned, second.forgotten, set(mine.aside)) == ({"a"}, {"b"}, set())


def test_cooperative_only_the_differences() -> None:
    mine = owner_of("abc")
    changes = mine.apply([fact("revoked", "c"), fact("assigned", "d")])
    assert (changes.gained, changes.returned, changes.forgotten) == ({"d"}, set(), {"c"})
    assert set(mine.owned) == {"a", "b", "d"}
    assert (mine.epoch("a"), mine.epoch("d")) == (1, 2)


def test_a_full_set_that_was_not_revoked_stays() -> None:
    mine = owner_of("ab")
    changes = mine.apply([fact("assigned", "ab")])
    assert (changes.gained, changes.returned, changes.forgotten) == (set(), set(), set())
    assert mine.epoch("a") == 1


def test_lost_is_forgotten_at_once() -> None:
    """It was somebody else's already: if it comes back, it is new."""
    mine = owner_of("ab")
    assert mine.apply([fact("lost", "ab")]).forgotten == {"a", "b"}
    changes = mine.apply([fact("assigned", "ab")])
    assert changes.gained == {"a", "b"}
    assert mine.epoch("a") == 2


def test_lost_and_won_within_one_poll_is_a_new_epoch() -> None:
    """Words about the time before it must find no owner."""
    mine = owner_of("a")
    changes = mine.apply([fact("lost", "a"), fact("assigned", "a")])
    assert changes.gained == {"a"}
    assert mine.epoch("a") == 2


def test_revoked_then_lost_is_forgotten() -> None:
    """A join that fails on the way takes what was set aside with it."""
    mine = owner_of("ab")
    changes = mine.apply([fact("revoked", "ab"), fact("lost", "ab"), fact("assigned", "a")])
    assert (changes.gained, changes.returned, changes.forgotten) == ({"a"}, set(), {"b"})


def test_gained_and_given_away_within_one_poll_is_nothing() -> None:
    mine = owner_of("a")
    changes = mine.apply([fact("revoked", "a"), fact("assigned", "ab"), fact("revoked", "ab"), fact("assigned", "a")])
    assert (changes.gained, changes.returned, changes.forgotten) == (set(), {"a"}, set())
    assert set(mine.owned) == {"a"}


def test_renewing_starts_an_epoch() -> None:
    mine = owner_of("ab")
    assert mine.renew("a") == mine.epoch("a") == 2
    assert mine.epoch("b") == 1


def test_epochs_go_on_from_an_earlier_membership() -> None:
    """After leaving and joining again in one process no epoch comes twice."""
    mine: AssignmentEpochs[str] = AssignmentEpochs(last_epoch=7)
    mine.apply([fact("assigned", "a")])
    assert mine.epoch("a") == mine.last_epoch == 8


def test_an_id_is_a_prefix_and_an_offset() -> None:
    """Making one is a single concatenation; taking it apart gives both back."""
    prefix = id_prefix(3, "orders", "6jPMvg1sQ2uJmzGz1yRHQw", 0)
    assert split_id(prefix + str(17)) == (prefix[:-1], 17)


def test_ids_of_different_epochs_topics_and_partitions_differ() -> None:
    ids = {
        id_prefix(e, name, t, p) + "1" for e in (1, 11) for name in ("x", "y") for t in ("", "a", "b") for p in (1, 11)
    }
    assert len(ids) == 24


@pytest.mark.parametrize("foreign", [None, 7, "", "x", "1/a/2/x", b"1/a/2/3"])
def test_foreign_ids_are_none(foreign: object) -> None:
    assert split_id(foreign) is None
