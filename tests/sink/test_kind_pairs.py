"""Each type of a parser with each type of a sink: whether it fits, and the findings of `downspout check`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from downspout.parse import Paths
from downspout.parse.json import JsonParser
from downspout.sink import Columns
from downspout.sink.findings import may_fit

SAMPLES = {
    "string": ['"a"', '"1"', '""', '"2013-01-31"', '"2013-01-31T12:00:00Z"'],
    "binary": ['"a"'],
    "bool": ["true"],
    **{key: ["0", "1"] for key in ("int8", "int16", "int32", "int64")},
    **{key: ["0.0", "1.5"] for key in ("float32", "float64")},
    "date": ['"2013-01-31"'],
    "timestamp": ['"2013-01-31T12:00:00Z"'],
    **{key: ["0", "1359633600"] for key in ("timestamp_s", "timestamp_ms", "timestamp_us")},
    "decimal(9,2)": ["1", "1.25"],
}
"""Of each type, JSON that it takes."""


def fits(parsed: str, written: str, text: str) -> tuple[bool, bool]:
    """Return whether a sink writes what a parser has made of a value: of a record, and of a chunk."""
    parser = JsonParser(Paths(["x"]), Columns.parse([f"x:{parsed}"], "parse.types"))
    value = b'{"x":%s}' % text.encode()
    (found,) = parser.parse_one(value)
    (column,) = parser.parse(pa.array([value] * 60, pa.binary())).batch.columns
    sink = Columns.parse([f"x:{written}"])
    (_, alone), (_, together) = sink.table([[found]]), sink.of_chunk([column])
    assert len(together) in (0, 60)
    return not alone, not together


@pytest.mark.parametrize("written", SAMPLES)
@pytest.mark.parametrize("parsed", SAMPLES)
def test_a_pair_of_types_fits_as_check_says(parsed: str, written: str) -> None:
    """A record fits where its chunk does; and check warns where no value of the parser's type fits the sink's."""
    outcomes = [fits(parsed, written, text) for text in SAMPLES[parsed]]
    assert all(record == chunk for record, chunk in outcomes)
    assert any(record for record, _ in outcomes) == may_fit(parsed, written)


@pytest.mark.parametrize("kind", SAMPLES)
def test_one_schema_serves_parser_and_sink(kind: str) -> None:
    """The natural way to write it: each value that the parser has taken is one for the sink, the same."""
    for text in SAMPLES[kind]:
        assert fits(kind, kind, text) == (True, True)
