"""A dict of a bolt's that is kept by key: it is as a plain one, and reads and writes no more than it must."""

from __future__ import annotations

import copy
import enum
import pickle
from collections import Counter, OrderedDict, defaultdict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.errors import ComponentError
from downspout.spark.topology.bolt_state import keep_by_key, text_of, write_keys
from tests.spark.topology_support import Handle, MapState, Store

Pair = namedtuple("Pair", "a b")


class Word(enum.StrEnum):
    A = "a"


class Kept:
    """A dict that is kept by key, batch after batch; ``calls`` is what the last one asked Spark for."""

    def __init__(self, own: dict[Any, Any]) -> None:
        self._own, self._entries, self._is_new = own, MapState(Handle(Store(), 1, 0), Store(), 1), True
        self.calls: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """Begin a batch: an instance is there that knows nothing."""
        self.bolt = SimpleNamespace(counts=copy.deepcopy(self._own))
        MapState.calls.clear()
        self._stored = keep_by_key("bolt", self.bolt, "counts", self._entries, is_new=self._is_new)
        self._is_new = False

    def next_batch(self) -> Any:
        write_keys(self.bolt, "counts", self._stored)
        self.calls = Counter(MapState.calls)
        self.begin()
        return self.bolt.counts


KEYS = st.sampled_from(["a", "b", "c", 1, 1.0, True, None, ("a", 1), b"a", 2.5])
CHANGES = ["set", "add", "grow", "delete", "pop", "setdefault", "get", "has", "clear", "another", "update", "popitem"]
LOOKS = ["len", "loop", "equal", "batch"]


def do(what: str, key: Any, holder: Any, number: int) -> Any:
    """Do something to a dict, and return what it says."""
    found = holder.counts
    if what == "set":
        found[key] = [number]
    elif what == "add":
        found[key] = [*found.get(key, []), number]
    elif what == "grow" and key in found:
        found[key].append(number)
    elif what == "delete" and key in found:
        del found[key]
    elif what == "pop":
        return found.pop(key, None)
    elif what == "setdefault":
        return list(found.setdefault(key, [number]))
    elif what == "get":
        return found.get(key)
    elif what == "has":
        return key in found
    elif what == "clear":
        found.clear()
    elif what == "another":
        holder.counts = {key: [number]}
    elif what == "update":
        found.update({key: [number]})
    elif what == "popitem" and len(found) == 1:
        return found.popitem()
    elif what == "len":
        return len(found), bool(found)
    elif what == "loop":
        return sorted(map(repr, found.items())), len(list(found)), len(list(found.values()))
    elif what == "equal":
        return found == {key: [number]}
    return None


@given(st.lists(st.tuples(st.sampled_from(CHANGES + LOOKS), KEYS), max_size=40))
def test_it_is_as_a_plain_dict(steps: list[tuple[str, Any]]) -> None:
    """Whatever is done with it in whatever batch, it says and holds what a plain dict would."""
    kept, plain = Kept({}), SimpleNamespace(counts={})
    for number, (what, key) in enumerate(steps):
        if what == "batch":
            kept.next_batch()
        assert do(what, key, kept.bolt, number) == do(what, key, plain, number), (number, what, key)
    assert kept.next_batch() == plain.counts


def test_a_batch_reads_and_writes_what_it_touches() -> None:
    """A key is read once, and written only where its value is another than before, in place or not."""
    kept = Kept({})
    kept.bolt.counts.update({number: [number] for number in range(100)})
    counts = kept.next_batch()
    assert kept.calls == {"update": 100}
    counts[7].append(1)
    assert (counts[7], counts[8], counts.get(200)) == ([7, 1], [8], None)
    counts[9] = [0]
    counts = kept.next_batch()
    assert kept.calls == {"get": 3, "update": 2}
    del counts[7]
    counts = kept.next_batch()
    assert kept.calls == {"get": 1, "remove": 1}
    assert len(counts) == 99
    counts.clear()
    counts = kept.next_batch()
    assert kept.calls == {"values": 1, "clear": 1}
    assert not counts


def test_it_is_of_the_bolt_s_own_type() -> None:
    """A Counter counts, a defaultdict makes what is missing, and copies and pickles are plain ones of these."""
    kept = Kept(Counter())
    kept.bolt.counts.update("abba")
    kept.bolt.counts["c"] += 1
    counts = kept.next_batch()
    counts.update("ab")
    counts.subtract("c")
    counts = kept.next_batch()
    assert (counts.most_common(1), counts["z"], counts.total()) == ([("a", 3)], 0, 6)
    assert "z" not in counts
    assert counts + Counter("z") == Counter("aaabbbz")
    for same in (counts.copy(), copy.copy(counts), copy.deepcopy(counts), pickle.loads(pickle.dumps(counts))):
        assert (type(same), same) == (Counter, Counter({"a": 3, "b": 3, "c": 0}))
    lists = Kept(defaultdict(list))
    lists.bolt.counts["a"].append(1)
    found = lists.next_batch()
    found["a"].append(2)
    found["b"].append(3)
    found = lists.next_batch()
    assert isinstance(found, defaultdict)
    assert (found["a"], found["b"], found["c"], "d" in found) == ([1, 2], [3], [], False)
    assert (type(copy.copy(found)), found | {"e": 1}) == (defaultdict, {"a": [1, 2], "b": [3], "c": [], "e": 1})


def test_what_initialize_puts_in_is_the_first_state() -> None:
    """It is there once; a later batch begins with what the last one has left."""
    kept = Kept({"a": 1})
    counts = kept.next_batch()
    assert counts == {"a": 1}
    del counts["a"]
    assert kept.next_batch() == {}


def test_equal_keys_have_one_text() -> None:
    """However a key was made, it is found again; and what comes back is as it was first put in."""
    letter = "a" * 20
    assert text_of((letter, letter)) == text_of(("a" * 20, "".join(["a"] * 20)))
    assert text_of(Pair("a", Word.A)) == text_of(("a", "a"))
    assert text_of(-0.0) == text_of(False) == text_of(0)
    assert len({text_of(key) for key in ("1", 1, b"1", ("1",), 1.5, None, "None", "é", "\ud800", ())}) == 10
    kept = Kept({})
    kept.bolt.counts[Pair(1, 2)] = "x"
    assert [key.b for key in kept.next_batch()] == [2]


def test_what_cannot_be_kept_ends_the_run() -> None:
    """A key without a text, a value without a pickle, and what is no dict are errors that name bolt and attribute."""
    kept = Kept({})
    with pytest.raises(ComponentError, match=r"bolt\.counts: its key frozenset\(\) is of type frozenset, .* Try"):
        kept.bolt.counts.get(frozenset())
    with pytest.raises(ComponentError, match="its key frozenset"):  # though the bolt caught it
        kept.next_batch()
    kept = Kept({})
    kept.bolt.counts["a"] = (x for x in ())
    with pytest.raises(ComponentError, match=r"bolt\.counts\['a'\] \(generator\) cannot be kept between batches"):
        kept.next_batch()
    kept = Kept({})
    kept.bolt.alias = kept.bolt.counts
    with pytest.raises(ComponentError, match=r"bolt\.counts is alias too, so it would be kept whole"):
        kept.next_batch()
    kept = Kept({})
    kept.bolt.counts = 3
    with pytest.raises(ComponentError, match=r"bolt\.counts is int, but stateful_keys names a dict"):
        kept.next_batch()


@pytest.mark.parametrize(
    ("own", "said"), [(None, "does not exist"), ([], "is list"), (OrderedDict(), "is OrderedDict")]
)
def test_the_attribute_must_be_a_dict(own: Any, said: str) -> None:
    """What is missing or of another type after initialize is an error that says so."""
    with pytest.raises(ComponentError, match=rf"bolt: stateful_keys names 'counts', but that {said} after initialize"):
        Kept(own)
