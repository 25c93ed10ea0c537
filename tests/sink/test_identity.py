from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import Origin
from downspout.sink import Coverage, Identities, IdentityBuilder, Stream

ORIGINS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "id"]),
    st.integers(0, 1),
    st.integers(0, 12),
    st.sampled_from(["", "s.1"]),
)


@given(st.lists(ORIGINS, max_size=60), st.lists(ORIGINS, max_size=30))
def test_only_new_rows_are_wanted_and_each_once(rows: list[Any], covered: list[Any]) -> None:
    """Wanted is exactly the first of each identity that is not covered."""
    coverage = Coverage()
    for topic, topic_id, partition, offset, path in covered:
        coverage.add(Stream(topic, topic_id, partition, path), [offset])
    seen = set(covered)
    expected = [row not in seen and not seen.add(row) for row in rows]
    assert Identities.of(rows).not_in(coverage).tolist() == expected


@given(st.lists(ORIGINS, max_size=60), st.data())
def test_coverage_is_the_rows_of_the_mask(rows: list[Any], data: st.DataObject) -> None:
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)
    coverage = Identities.of(rows).coverage(mask)
    found = {
        (*stream[:3], o, stream.path)
        for stream in coverage.streams()
        for s, e in coverage.ranges(stream)
        for o in range(s, e)
    }
    assert found == {row for row, kept in zip(rows, mask.tolist(), strict=True) if kept}


@pytest.mark.slow
@given(st.lists(st.lists(ORIGINS, max_size=10), max_size=5))
def test_pieces_make_the_whole(pieces: list[list[Any]]) -> None:
    """Taken in blocks, with rows without origin between, identities and columns are those of all rows at once."""
    builder = IdentityBuilder()
    for piece in pieces:
        numbers, offsets, bad = builder.encode(piece)
        assert not bad
        builder.add(numbers, offsets)
        builder.add_none(1)
    found = list(zip(*(column.to_pylist() for column in builder.build().columns()), strict=True))
    expected = [row for piece in pieces for row in [*piece, (None,) * 5]]
    assert [(t, i, p, o, path) for t, i, p, o, path in found] == expected


def test_rows_without_origin_are_always_wanted() -> None:
    rows = Identities.none(3)
    assert rows.not_in(Coverage()).tolist() == [True] * 3
    assert rows.coverage(np.ones(3, dtype=bool)) == Coverage()


BAD: list[Any] = [
    None, 5, "abcde", ["t", "", 0, 1], ["t", "", 0, 1, "", "x"], ["t", "", 0, "x", ""], ["t", "", 0, -1, ""],
    ["t", "", 0, 2**63, ""], ["t", "", 0, 2**63 - 1, ""], ["t", "", -1, 1, ""], ["t", "", 2**31, 1, ""],
    [5, "", 0, 1, ""], ["t", None, 0, 1, ""], ["t", "", 0, 1, None], ["t", "", 0, 1, "\ud800"],
    [["t"], "", 0, 1, ""], {"topic": "t"},
    Origin("t", "", 0, 1.5, ""),
    Origin("t", "", "0", 1, ""),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda value: str(value).replace("\\", "").encode("ascii", "replace").decode())
def test_a_bad_origin_is_named_and_alone(bad: Any) -> None:
    """An origin that makes no sense is rejected with a reason; those beside it keep their identity."""
    builder = IdentityBuilder()
    numbers, offsets, reasons = builder.encode([["t", "", 0, 7, ""], bad, Origin("t", "", 0, 8, "")])
    assert list(reasons) == [1]
    assert reasons[1]
    builder.add(numbers[[0, 2]], offsets[[0, 2]])
    coverage = builder.build().coverage(np.ones(2, dtype=bool))
    assert {s: coverage.ranges(s) for s in coverage.streams()} == {Stream("t", "", 0, ""): [(7, 9)]}
