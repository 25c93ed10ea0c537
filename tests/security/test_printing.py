"""Commands' output for records from untrusted writers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downspout.cli.dlq import render_dead_letter, render_groups
from downspout.cli.kafka_consume import render
from downspout.dead_letters import PREFIX, PlainRecord, group_dead_letters, parse_dead_letter

HOSTILE = b"\x1b]0;owned\x07\x1b[2J\r\nall is well\x9b5n\xe2\x80\xae\xc2\x9b"
BYTES = st.none() | st.binary(max_size=40) | st.just(HOSTILE)


@given(BYTES, BYTES, st.lists(st.tuples(st.text(max_size=10), BYTES), max_size=3), BYTES)
def test_no_record_speaks_to_the_terminal(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], told: bytes | None
) -> None:
    """Whatever is in a record or in the headers of a dead letter, what is printed of it has no control characters; of a
    record it is one line."""
    names = ("topic", "kind", "component", "exception.class", "exception.message", "exception.stacktrace")
    own = [(PREFIX + name, told) for name in names]
    own += [(PREFIX + name, b"1") for name in ("partition", "offset", "attempts")]
    record = PlainRecord("t", 0, 7, 0, key, value, [*headers, *own])
    letter = parse_dead_letter(record)
    line, shown = render(record), render_dead_letter(letter, 1000) + render_groups(group_dead_letters([letter]))
    assert line.replace("\t", " ").isprintable()
    assert shown.replace("\t", " ").replace("\n", " ").isprintable()
