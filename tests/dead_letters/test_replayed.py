"""Which identities a record may claim: the headers of a replay, and forged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.dead_letters import PlainRecord, claim, identity_headers, origin_of
from downspout.dead_letters.claims import NAMES, PREFIX, without_claim
from downspout.ledger import Origin
from downspout.spout import tuple_maker

ID = "6jPMvg1sQ2uJmzGz1yRHQw"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
FIRST = Origin("orders", ID, 0, 7)

topics = st.text("ab.-_9", min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
topic_ids = st.sampled_from(["", ID, OTHER_ID])
numbers = st.integers(0, 2**31 - 1)


@given(topics, topic_ids, numbers, st.integers(0, 10**17), topics, st.integers(0, 50))
def test_what_is_written_is_read(name: str, topic_id: str, partition: int, offset: int, to: str, later: int) -> None:
    """A replay is taken for what it stands for, in the topic and beyond the offset."""
    origin = Origin(name, topic_id, partition, offset)
    headers = [("trace", b"1"), *identity_headers(origin, to)]
    assert claim(headers, to, topic_id, partition, offset + 1 + later) == origin


def test_a_claim_to_what_is_not_written_yet_is_ignored() -> None:
    """In its own partition a record stands for an earlier one only; a topic that was made again has others."""
    headers = identity_headers(FIRST, "orders")
    assert [claim(headers, "orders", ID, 0, offset) for offset in (6, 7, 8)] == [None, None, FIRST]
    assert claim(headers, "orders", "", 0, 6) is None
    assert claim(headers, "orders", ID, 1, 6) == FIRST
    assert claim(headers, "orders", OTHER_ID, 0, 6) == FIRST


def test_a_copy_in_another_topic_is_a_record_of_its_own() -> None:
    """A mirror that carries headers along does not carry the identity along."""
    assert claim(identity_headers(FIRST, "orders"), "mirror.orders", ID, 0, 500) is None
    assert claim(identity_headers(FIRST, "repaired"), "repaired", OTHER_ID, 0, 0) == FIRST


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, b"", b"\xff", b"+1", b" 7", b"a b", b"x" * 250, b"7\n"])
def test_a_malformed_claim_is_ignored(name: str, value: bytes | None) -> None:
    """A header that is null, empty, no text, out of range or has blanks makes the claim void."""
    headers = [(n, value if n == PREFIX + name else v) for n, v in identity_headers(FIRST, "orders")]
    assert claim(headers, "orders", ID, 0, 500) is None


@pytest.mark.parametrize(("name", "value"), [("partition", 2**31), ("offset", 10**18), ("offset", -1)])
def test_a_number_out_of_range_is_ignored(name: str, value: int) -> None:
    """Kafka's partitions have 31 bits, its offsets are not negative."""
    headers = [(n, str(value).encode() if n == PREFIX + name else v) for n, v in identity_headers(FIRST, "orders")]
    assert claim(headers, "orders", ID, 5, 500) is None


@pytest.mark.parametrize("at", range(len(NAMES)))
def test_a_claim_is_whole_and_single(at: int) -> None:
    """With a header missing, doubled or unknown, the record is an ordinary one."""
    headers = identity_headers(FIRST, "orders")
    assert claim(headers[:at] + headers[at + 1 :], "orders", ID, 0, 500) is None
    assert claim([*headers, headers[at]], "orders", ID, 0, 500) is None
    assert claim([*headers, (PREFIX + "more", b"1")], "orders", ID, 0, 500) is None


@given(
    st.lists(st.tuples(st.sampled_from([PREFIX + n for n in NAMES]), st.binary(max_size=30) | st.none()), max_size=7)
)
def test_no_header_is_too_strange(headers: list[tuple[str, bytes]]) -> None:
    found = claim(headers, "orders", ID, 0, 500)
    assert found is None or isinstance(found, Origin)


def test_the_spout_gives_the_identity_as_origin() -> None:
    """The tuple's origin is the old record's; with kafka.honour_replays=no it is the record's own."""
    record = PlainRecord("orders", 0, 500, 0, None, b"x", identity_headers(FIRST, "orders"))
    own = Origin("orders", ID, 0, 500)
    assert tuple_maker(["origin"], "utf8", "utf8", ID)(record) == [FIRST]
    assert tuple_maker(["origin"], "utf8", "utf8", ID, honour_replays=False)(record) == [own]
    assert tuple_maker(["offset", "origin"], "utf8", "utf8", ID)(without_claim(record)) == [500, own]
    assert origin_of(without_claim(record), ID) is None


def test_a_record_without_its_claim_is_whole() -> None:
    """Everything but our headers stays: coordinates, time, key, value, and the user's own headers."""
    record = PlainRecord("orders", 3, 500, 1_700, b"k", b"x", [("trace", b"7"), *identity_headers(FIRST, "orders")])
    assert without_claim(record) == PlainRecord("orders", 3, 500, 1_700, b"k", b"x", [("trace", b"7")])
