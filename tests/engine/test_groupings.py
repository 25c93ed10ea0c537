"""Groupings: the tasks that receive a tuple."""

import os
import random
import subprocess
import sys
from collections import Counter, OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.engine import groupings
from downspout.engine.groupings import combine, make_route, stable_hash

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(max_size=20)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3)
)


def as_tuples(value):
    """Return the value with tuples in place of its lists."""
    if isinstance(value, list):
        return tuple(map(as_tuples, value))
    return {k: as_tuples(v) for k, v in value.items()} if isinstance(value, dict) else value


@given(VALUES)
def test_hash_does_not_tell_lists_from_tuples(value):
    assert stable_hash(value) == stable_hash(as_tuples(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (Decimal("2.5"), 2.5),
        (b"ab", bytearray(b"ab")),
        ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
        ({1, 2}, frozenset((2, 1))),
        (float("nan"), float("nan")),
        (NOON, NOON.astimezone(timezone(timedelta(hours=1)))),
        (NOON, NOON.astimezone(ZoneInfo("Asia/Tokyo"))),
        (NOON.replace(tzinfo=None), NOON.replace(tzinfo=None, fold=1)),
        (datetime.max.replace(tzinfo=timezone.min), datetime.max.replace(tzinfo=timezone.min)),
    ],
)
def test_hash_is_equal_for_equal_values_of_other_types(one, other):
    assert stable_hash(one) == stable_hash(other)


@pytest.mark.slow
def test_hash_is_the_same_in_a_process_with_another_salt():
    """A key keeps its task when the topology is started again."""
    code = "from downspout.engine.groupings import stable_hash; print(stable_hash(['dog', b'x', None, 2.5, {'a': 1}]))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": salt, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(answers) == 1


def test_hash_refuses_what_is_only_a_place_in_memory():
    """An object without a value of its own cannot be grouped by, and the error says so."""
    with pytest.raises(TypeError, match="same way in every process"):
        stable_hash(object())


@given(st.integers(1, 7), st.integers(0, 60), st.integers())
def test_shuffle_is_balanced(tasks, tuples, seed):
    """After any number of tuples, the tasks' counts differ by at most one."""
    fixed, route = make_route("shuffle", list(range(tasks)), (), random.Random(seed))
    got = Counter(dict.fromkeys(range(tasks), 0))
    for _ in range(tuples):
        got.update(route(()) if fixed is None else fixed)
    assert sum(got.values()) == tuples
    assert max(got.values()) - min(got.values()) <= 1


@given(st.lists(st.tuples(st.text(), VALUES), max_size=30), st.integers(2, 5))
def test_fields_sends_equal_keys_to_one_task(rows, tasks):
    """Tuples with an equal key reach one and the same task, lists among the keys included."""
    _, route = make_route("fields", list(range(tasks)), (1,), random.Random(0))
    for text, key in rows:
        assert route((text, key)) == route(("other", as_tuples(key))) == (stable_hash(key) % tasks,)


def test_fields_uses_all_of_its_fields_and_all_tasks():
    """Keys of several fields spread over all tasks, and each key of two fields has one place."""
    _, route = make_route("fields", list(range(4)), (0, 2), random.Random(0))
    places = {(a, b): route((a, "ignored", b)) for a in range(20) for b in "xyz"}
    assert {task for (task,) in places.values()} == set(range(4))
    assert all(route((a, "also ignored", b)) == place for (a, b), place in places.items())


def test_fields_remembers_a_bounded_number_of_keys(monkeypatch):
    """However many keys there are, few are remembered, and each goes where its hash says."""
    monkeypatch.setattr(groupings, "CACHE_MAX", 10)
    _, route = make_route("fields", [0, 1, 2], (0,), random.Random(0))
    (cache,) = [cell.cell_contents for cell in route.__closure__ if isinstance(cell.cell_contents, dict)]
    for number in (*range(35), 3):
        assert route((number,)) == (stable_hash(number) % 3,)
        assert number in cache
        assert len(cache) <= 10


@pytest.mark.parametrize("indexes", [(0,), (0, 1)])
@pytest.mark.parametrize(
    "long",
    ["x" * 10_000, b"x" * 10_000, 10**10_000, ("x" * 10_000,), frozenset({"x" * 10_000})],
    ids=["text", "bytes", "number", "tuple", "set"],
)
def test_fields_remembers_no_long_key(indexes, long):
    """A thousand keys of a megabyte each would fill the memory; they are hashed anew each time."""
    _, route = make_route("fields", [0, 1, 2], indexes, random.Random(0))
    (cache,) = [cell.cell_contents for cell in route.__closure__ if isinstance(cell.cell_contents, dict)]
    key = (long, "b")[: len(indexes)]
    expected = stable_hash(key if len(key) > 1 else long) % 3
    assert [route((long, "b")) for _ in range(2)] == [(expected,)] * 2
    assert cache == {}


@pytest.mark.parametrize(
    ("grouping", "expected"), [("all", (7, 8, 9)), ("global", (7,)), ("direct", ())], ids=["all", "global", "direct"]
)
def test_groupings_that_never_change_are_known_beforehand(grouping, expected):
    """all reaches every task, global the lowest, direct nobody by itself; the engine need not ask per tuple."""
    fixed, route = make_route(grouping, [7, 8, 9], (), random.Random(0))
    assert tuple(fixed) == tuple(route(("x",))) == expected


@pytest.mark.parametrize("grouping", ["none", "local_or_shuffle"])
def test_other_names_of_shuffle(grouping):
    """none and local-or-shuffle share tuples out as shuffle does, all tasks being local."""
    _, route = make_route(grouping, [1, 2], (), random.Random(0))
    assert Counter(task for _ in range(10) for task in route(())) == {1: 5, 2: 5}


def test_several_subscribers_each_get_the_tuple():
    """A stream with several subscribers reaches each of them by its own grouping."""
    rng = random.Random(0)
    every = make_route("all", [1, 2], (), rng)
    shuffled = make_route("shuffle", [3, 4], (), rng)
    fixed, route = combine([every, shuffled])
    assert fixed is None
    got = Counter(task for _ in range(4) for task in route(()))
    assert got == {1: 4, 2: 4, 3: 2, 4: 2}
    fixed, _ = combine([every, make_route("global", [5, 6], (), rng)])
    assert fixed == (1, 2, 5)
