"""The outbox, by a model: tries of records, tuples anchored to one or several, in any order of answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pystorm.component import Tuple

from downspout.spark import RecordPlace, ShuffledTuple, load
from downspout.spark.topology.stage_rows import TUPLE
from downspout.spark.topology.stage_tuples import ITEMS_PER_ROW, Root, StageOutput
from tests.sampling import examples


class Record(Root):
    def __init__(self, offset: int) -> None:
        super().__init__()
        self._place = RecordPlace("t", "", 0, offset)

    @property
    def places(self) -> tuple[RecordPlace, ...]:
        return (self._place,)


def tup(name: Any) -> Tuple:
    return Tuple("1", "split", "default", 2, (name,))


def sent(output: StageOutput, *, whole: bool = True) -> list[tuple[str, int, ShuffledTuple]]:
    rows = output.take(whole=whole)
    assert {row.kind for row in rows} <= {TUPLE}
    return [(row.component, row.task, item) for row in rows for item in load(row.payload)]


class Model:
    """What is tied together, and what has become of it: nothing but sets."""

    def __init__(self) -> None:
        self.groups: list[dict[str, Any]] = []

    def tie(self, records: list[Record], name: int | None) -> None:
        """Tie records together by a tuple; None: by one that a failed try has part in."""
        mine = [group for group in self.groups if group["open"] & set(records)]
        self.groups = [group for group in self.groups if group not in mine]
        self.groups.append({
            "open": set(records).union(*(group["open"] for group in mine)),
            "complete": set[Record]().union(*(group["complete"] for group in mine)),
            "failed": name is None or any(group["failed"] for group in mine),
            "names": [*([] if name is None else [name]), *(name for group in mine for name in group["names"])],
        })  # fmt: skip

    def settle(self, record: Record, *, complete: bool) -> tuple[set[Record], list[int]]:
        group = next((group for group in self.groups if record in group["open"]), None)
        if group is None:
            return set(), []
        group["open"].remove(record)
        if complete:
            group["complete"].add(record)
        group["failed"] |= not complete
        if group["open"]:
            return set(), []
        self.groups.remove(group)
        return (group["complete"], []) if group["failed"] else (set(), group["names"])


@pytest.mark.sweep
@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_what_is_tied_together_leaves_whole_or_not_at_all(data: st.DataObject) -> None:
    """Nothing of a failed try leaves, nor of what is tied to it, which is tried again; all else leaves once."""
    draw = data.draw
    left: dict[Any, int] = {Record(offset): draw(st.integers(1, 3)) for offset in range(draw(st.integers(1, 5)))}
    alive, model, output = list(left), Model(), StageOutput()
    expected, out, name = Counter[int](), Counter[int](), 0
    while alive:
        roots = draw(st.lists(st.sampled_from(alive), max_size=3, unique=True))
        what = draw(st.sampled_from(["settle", "settle", "hold", "spoil"]))
        if what == "hold":
            output.hold("count", name % 2, tup(name), tuple(roots))
            if roots:
                model.tie(roots, name)
            else:
                expected[name] += 1
            name += 1
        elif what == "spoil" and roots and left[roots[0]] > 1:
            left[roots[0]] -= 1
            output.spoil(tuple(roots))
            model.tie(roots, None)
        elif what == "settle":
            record = draw(st.sampled_from(alive))
            complete = draw(st.booleans()) or left[record] == 1
            again, go = model.settle(record, complete=complete)
            again_now = output.settle(record, complete=complete)
            assert len(again_now) == len(again)
            assert set(again_now) == again
            left[record] -= not complete
            alive = [*(each for each in alive if each is not record or not complete), *again_now]
            expected.update(go)
        out.update(item.values[0] for _, _, item in sent(output, whole=draw(st.booleans())))
        assert out <= expected
    out.update(item.values[0] for _, _, item in sent(output))
    assert out == expected
    assert max(out.values(), default=0) <= 1


def test_items_say_where_they_came_from() -> None:
    """An item names its records, each once, the emitter, the stream and the task that it is for."""
    output, one, two = StageOutput(), Record(1), Record(2)
    output.hold("count", 3, tup("a"), (one, two, one))
    for root in (one, two):
        output.settle(root, complete=True)
    ((component, task, item),) = sent(output)
    assert (component, task) == ("count", 3)
    assert item == ShuffledTuple((one.places[0], two.places[0]), "split", 2, "default", ("a",))


def test_full_rows_go_at_once() -> None:
    """Tuples leave as soon as they fill a row, and the rest at the end."""
    output = StageOutput()
    for number in range(ITEMS_PER_ROW + 1):
        output.hold("count", 0, tup(number), ())
    assert len(sent(output, whole=False)) == ITEMS_PER_ROW
    assert [item.values[0] for _, _, item in sent(output)] == [ITEMS_PER_ROW]
