"""The outbox, by a model: tries of records, tuples anchored to one or several, in any order of answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pystorm.component import Tuple

from downspout.spark.topology.outbox import ITEMS_PER_ROW, Outbox, Root
from downspout.spark.topology.rows import TUPLE, Item, Place, load


class Record(Root):
    """A record."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._place = Place("t", "", 0, offset)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it is."""
        return (self._place,)


def tup(name: Any) -> Tuple:
    """Return a tuple that holds a name."""
    return Tuple("1", "split", "default", 2, (name,))


def sent(outbox: Outbox, *, whole: bool = True) -> list[tuple[str, int, Item]]:
    """Return what leaves."""
    rows = outbox.take(whole=whole)
    assert {row.kind for row in rows} <= {TUPLE}
    return [(row.component, row.task, item) for row in rows for item in load(row.payload)]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_each_try_leaves_whole_or_not_at_all(data: st.DataObject) -> None:
    """Nothing of a failed try leaves; of a complete one everything, once; of several records, if one is complete."""
    draw = data.draw
    records = [Record(offset) for offset in range(draw(st.integers(1, 4)))]
    outbox, name = Outbox(), 0
    expected: Counter[int] = Counter()
    left: dict[Record, int] = {record: draw(st.integers(1, 3)) for record in records}
    held: list[tuple[int, list[Record], list[bool]]] = []
    waiting: dict[Record, list[tuple[int, list[Record], list[bool]]]] = {record: [] for record in records}
    out: Counter[int] = Counter()
    while any(left.values()):
        alive = [record for record, tries in left.items() if tries]
        if draw(st.booleans()):
            roots = draw(st.lists(st.sampled_from(alive), max_size=3, unique=True))
            outbox.hold("count", name % 2, tup(name), tuple(roots))
            entry = (name, list(roots), [])
            held.append(entry)
            if not roots:
                expected[name] += 1
            for root in roots:
                waiting[root].append(entry)
            name += 1
        else:
            record = draw(st.sampled_from(alive))
            complete = draw(st.booleans()) or left[record] == 1
            left[record] = 0 if complete else left[record] - 1
            outbox.settle(record, complete=complete)
            for number, roots, answers in waiting[record]:
                answers.append(complete)
                if len(answers) == len(roots) and any(answers):
                    expected[number] += 1
            waiting[record] = []
        out.update(item.values[0] for _, _, item in sent(outbox, whole=draw(st.booleans())))
        assert out <= expected
    out.update(item.values[0] for _, _, item in sent(outbox))
    assert out == expected


def test_items_say_where_they_came_from() -> None:
    """An item names its records, each once, the emitter, the stream and the task that it is for."""
    outbox, one, two = Outbox(), Record(1), Record(2)
    outbox.hold("count", 3, tup("a"), (one, two, one))
    for root in (one, two):
        outbox.settle(root, complete=True)
    ((component, task, item),) = sent(outbox)
    assert (component, task) == ("count", 3)
    assert item == Item((one.places[0], two.places[0]), "split", 2, "default", ("a",))


def test_full_rows_go_at_once() -> None:
    """Tuples leave as soon as they fill a row, and the rest at the end."""
    outbox = Outbox()
    for number in range(ITEMS_PER_ROW + 1):
        outbox.hold("count", 0, tup(number), ())
    assert len(sent(outbox, whole=False)) == ITEMS_PER_ROW
    assert [item.values[0] for _, _, item in sent(outbox)] == [ITEMS_PER_ROW]
