"""SplitBolt: its output for a chunk equals that for the chunk's records."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.split import SplitBolt
from downspout.ledger import Origin
from downspout.origins import each
from downspout.testing import run_bolt
from tests.parse.support import chunk, run_chunks
from tests.sampling import examples

LINES = st.lists(st.none() | st.text(st.sampled_from("ab \t\u00a0\u2003\x1cé"), max_size=9), min_size=1, max_size=12)


@given(lines=LINES)
@settings(max_examples=examples(100), deadline=None)
def test_a_chunk_is_split_as_its_records_are(lines: list[str | None]) -> None:
    """The same words with the same identities in the same order; texts without words are counted, and acked."""
    in_chunks = run_chunks(SplitBolt.spec(), [chunk(lines, kind=pa.string())])
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": line} for place, line in enumerate(lines)]
    records = run_bolt(SplitBolt.spec(), tuples)
    found = [
        (origin, word)
        for batch in in_chunks.emitted("bolt")
        for origin, word in zip(each(batch.column("origin")), batch.column("word").to_pylist(), strict=True)
    ]
    assert found == [tuple(row) for row in records.emitted("bolt")]
    assert in_chunks.run.reports["bolt"] == records.run.reports["bolt"]
    assert (in_chunks.counts("bolt").acked, in_chunks.counts("bolt").failed) == (len(lines), 0)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_words_have_the_type_of_the_texts(kind: pa.DataType) -> None:
    values = ["to be"] if kind == pa.string() else [b"to be"]
    (made,) = run_chunks(SplitBolt.spec(), [chunk(values, kind=kind)]).emitted("bolt")
    assert made.schema.field("word").type == kind
