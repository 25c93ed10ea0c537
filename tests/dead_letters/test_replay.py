"""Choosing, grouping, replaying and purging dead letters."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import pytest
from kafka import errors

from downspout.cli import dlq
from downspout.component import Failure
from downspout.dead_letters import (
    DeadLetters,
    group_dead_letters,
    identity_of,
    origin_of,
    plan_replay,
    read_dead_letters,
)
from downspout.dead_letters.replay import Choice, plan_purge
from downspout.errors import BrokerError, ConfigError, DownspoutError
from downspout.kafka import Record, TopicPartition, Unreadable
from tests.spout.spout_driver import Kafka

LETTERS = "g.dead-letters"


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """Two topics of two partitions; of each, offset 0 and 1 of partition 1 are dead letters, the first one twice."""
    letters = DeadLetters(bare_kafka, LETTERS)
    for at, topic in enumerate(("orders", "clicks")):
        bare_kafka.create_topic(topic, 2)
        for number in range(2):
            value = f"{topic} {number}".encode()
            bare_kafka.produce(topic, value, b"k", partition=1, headers=[("trace", b"7")], timestamp_ms=number)
        for offset in (0, 0, 1):
            write(bare_kafka, letters, topic, 1, offset, f"KeyError: 'x{offset}'" if at else "", 1000 * at + offset)
    letters.close()
    return bare_kafka


def write(kafka: Kafka, letters: DeadLetters, topic: str, partition: int, offset: int, error: str, at_ms: int) -> None:
    record = next(r for r in kafka.records(topic, partition) if r.offset == offset)
    failure = Failure("exception", "parse", 4, error, "Traceback …") if error else Failure("timeout")
    letters.write(
        record, attempts=3, first_failure_ms=at_ms, last_failure_ms=at_ms + 10, failure=failure,
        topic_id=kafka.topic_id(topic),
    )  # fmt: skip


def run(kafka: Kafka, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    dlq.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["dlq", *arguments, "--bootstrap", kafka.bootstrap])
    return int(parsed.handler(parsed))


def facts(kafka: Kafka, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run the command with --json and return what it prints."""
    assert run(kafka, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(), ["orders 0", "orders 1", "clicks 0", "clicks 1"]),
        (Choice(topic="clicks"), ["clicks 0", "clicks 1"]),
        (Choice(partition=0), []),
        (Choice(start=1), ["orders 1", "clicks 1"]),
        (Choice(end=1), ["orders 0", "clicks 0"]),
        (Choice(exception=re.compile("KeyError: .x1")), ["clicks 1"]),
        (Choice(since_ms=1010), ["clicks 0", "clicks 1"]),
        (Choice(until_ms=11), ["orders 0"]),
        (Choice(topic="orders", start=1, until_ms=12), ["orders 1"]),
    ],
)
def test_a_choice_takes_what_fits_all_its_conditions(kafka: Kafka, choice: Choice, expected: list[str]) -> None:
    """Each record comes once, and only if every condition that is given holds."""
    assert [(letter.record.value or b"").decode() for letter in choice.read(kafka, LETTERS)] == expected


def test_what_a_letter_does_not_tell_fits_no_condition(kafka: Kafka) -> None:
    """A stranger's record in the topic is chosen only where nothing is asked of it."""
    kafka.produce(LETTERS, b"stranger")
    narrow = [Choice(topic="orders"), Choice(start=0), Choice(since_ms=0), Choice(exception=re.compile("^K"))]
    assert all(letter.record.value != b"stranger" for choice in narrow for letter in choice.read(kafka, LETTERS))
    assert b"stranger" in [letter.record.value for letter in Choice().read(kafka, LETTERS)]


def test_groups_are_by_topic_and_exception(kafka: Kafka) -> None:
    """Each group has its count, its first and last failure, and an example."""
    groups = group_dead_letters(read_dead_letters(kafka, LETTERS))
    told = [(g.topic, g.error_class, g.count, g.first_ms, g.last_ms, g.example) for g in groups]
    assert told == [
        ("clicks", "KeyError", 2, 1000, 1011, "clicks[1]@0"),
        ("orders", "timeout", 2, 0, 11, "orders[1]@0"),
    ]


def test_errors_of_one_class_are_told_apart_by_their_messages(kafka: Kafka) -> None:
    """Numbers and quoted values do not count, and there are never many groups of one class."""
    letters = DeadLetters(kafka, "others")
    errors = ["'a' is no number", "too long", *["5"] * 30, *("x" * length for length in range(1, 41))]
    for offset, error in enumerate(errors):
        kafka.produce("orders", b"v", partition=0)
        write(kafka, letters, "orders", 0, offset, f"RecordError: {error}", 0)
    write(kafka, letters, "orders", 1, 0, "RecordError: 'b' is no number", 0)
    letters.close()
    groups = group_dead_letters(read_dead_letters(kafka, "others"))
    assert {(g.message, g.count) for g in groups} >= {("'a' is no number", 2), ("too long", 1), ("5", 30)}
    assert (len(groups), sum(group.count for group in groups)) == (21, 73)


def test_a_replay_is_the_record_as_it_was(kafka: Kafka) -> None:
    """Key, value, time, headers and partition are the record's; the claim stands for it, and ours are gone."""
    plan = plan_replay(kafka, LETTERS, Choice(topic="orders").read(kafka, LETTERS), write=True)
    assert (plan.counts, plan.without_origin, plan.repeated) == ({"orders": 2}, 0, 0)
    assert plan.examples == [("orders[1]@0", "orders"), ("orders[1]@1", "orders")]
    old, new = kafka.records("orders", 1)[:2], kafka.records("orders", 1)[2:]
    assert [facts_of(record) for record in new] == [facts_of(record) for record in old]
    topic_id = kafka.topic_id("orders")
    assert [origin_of(record, topic_id) for record in new] == [("orders", topic_id, 1, o, "") for o in (0, 1)]
    assert len(kafka.records("clicks")) == 2


def facts_of(record: Record) -> tuple[Any, ...]:
    own = [header for header in record.headers if not header[0].startswith("__downspout")]
    return record.key, record.value, record.timestamp, own


def test_the_replay_of_a_replay_stands_for_the_first(kafka: Kafka) -> None:
    """A replayed record that fails again keeps its identity, and both letters together are replayed once."""
    plan_replay(kafka, LETTERS, Choice(topic="orders", end=1).read(kafka, LETTERS), write=True)
    letters = DeadLetters(kafka, LETTERS)
    write(kafka, letters, "orders", 1, 2, "", 99)
    chosen = list(Choice(topic="orders").read(kafka, LETTERS))
    assert [identity_of(letter) for letter in chosen][-1] == identity_of(chosen[0])
    plan = plan_replay(kafka, LETTERS, chosen, write=True)
    assert (plan.total, plan.repeated) == (2, 1)
    again = kafka.records("orders", 1)[3]
    assert len([name for name, _ in again.headers if name.startswith("__downspout.")]) == 5


def test_a_replay_can_go_elsewhere(kafka: Kafka) -> None:
    """With --to the record keeps its identity in another topic; one that is not there is an error."""
    kafka.create_topic("repaired", 1)
    plan_replay(kafka, LETTERS, read_dead_letters(kafka, LETTERS), to="repaired", write=True)
    origins = [origin_of(record, "") for record in kafka.records("repaired")]
    assert [origin and (origin.topic, origin.partition, origin.offset) for origin in origins] == [
        ("orders", 1, 0), ("orders", 1, 1), ("clicks", 1, 0), ("clicks", 1, 1),
    ]  # fmt: skip
    with pytest.raises(BrokerError, match="no topic nowhere"):
        plan_replay(kafka, LETTERS, read_dead_letters(kafka, LETTERS), to="nowhere")
    with pytest.raises(ConfigError, match="the dead-letter topic itself"):
        plan_replay(kafka, LETTERS, read_dead_letters(kafka, LETTERS), to=LETTERS)


def test_strangers_are_not_replayed(kafka: Kafka) -> None:
    """A letter without an origin is counted and left out."""
    kafka.produce(LETTERS, b"stranger")
    assert plan_replay(kafka, LETTERS, read_dead_letters(kafka, LETTERS)).without_origin == 1


def test_a_failed_write_says_how_far_it_came(kafka: Kafka) -> None:
    """The error of the producer is an error for users, and tells what is known to be written."""
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError)
    with pytest.raises(BrokerError, match=r"0 records written, and perhaps some of the next \d+: KafkaTimeoutError"):
        plan_replay(kafka, LETTERS, read_dead_letters(kafka, LETTERS), write=True)


@pytest.mark.fake_only("a broker refuses a batch when it is told to")
def test_a_record_that_is_too_large_to_be_written_back_is_named(kafka: Kafka) -> None:
    """The error says how many records are written, which one is too large, and what to raise."""
    kafka.faults.fail_next("flush", errors.MessageSizeTooLargeError)
    said = r"0 records written, and perhaps .* a record is too large: \w+\[\d\]@\d+, \d+ bytes, for topic"
    with pytest.raises(BrokerError, match=said) as found:
        plan_replay(kafka, LETTERS, read_dead_letters(kafka, LETTERS), write=True)
    assert "max.message.bytes" in (found.value.cure or "")


@pytest.mark.parametrize("action", [["replay"], ["replay", "--yes"]])
def test_a_choice_that_takes_nothing_is_answered_by_what_there_is(
    kafka: Kafka, capsys: pytest.CaptureFixture[str], action: list[str]
) -> None:
    """A class that no dead letter has: those that they have are listed, and there is nothing to say yes to."""
    assert run(kafka, action[0], LETTERS, "--exception", "Nonsense", *action[1:]) == 0
    said = capsys.readouterr().out
    assert said.startswith("none of these is chosen:\n")
    assert "KeyError" in said
    assert "--yes" not in said
    assert len(kafka.records("orders")) == 2


def test_replay_is_a_dry_run_by_default(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --yes nothing is written, and the output says what would be."""
    assert run(kafka, "replay", LETTERS, "--topic", "orders") == 0
    said = capsys.readouterr().out
    assert "2 records would be written to orders" in said
    assert said.endswith("nothing was changed: add --yes to do it\n")
    assert len(kafka.records("orders")) == 2
    told = facts(kafka, capsys, "replay", LETTERS, "--topic", "orders", "--yes")
    assert (told["dry_run"], told["records"], told["to"]) == (False, 2, {"orders": 2})
    assert len(kafka.records("orders")) == 4


def test_purge_is_a_dry_run_by_default(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --yes nothing is deleted; with it, the letters below the offset."""
    assert facts(kafka, capsys, "purge", LETTERS, "--before", "3")["offsets"] == 3
    assert len(kafka.records(LETTERS)) == 6
    assert run(kafka, "purge", LETTERS, "--before", "0:3", "--yes") == 0
    assert "3 offsets deleted, 0–2" in capsys.readouterr().out
    assert [letter.topic for letter in read_dead_letters(kafka, LETTERS)] == ["clicks", "clicks"]
    assert facts(kafka, capsys, "purge", LETTERS, "--before", "3", "--yes")["offsets"] == 0


def test_a_purge_beyond_the_letters_is_refused(kafka: Kafka) -> None:
    """An offset or partition that is not there is an error; a bound for all partitions is cut at each end."""
    with pytest.raises(ConfigError, match=r"ends at 6: 9 is beyond that"):
        plan_purge(kafka, LETTERS, {0: 9})
    with pytest.raises(BrokerError, match=r"g.dead-letters\[4\] does not exist"):
        plan_purge(kafka, LETTERS, {4: 1})
    assert [(part.start, part.before) for part in plan_purge(kafka, LETTERS, {None: 9})] == [(0, 6)]


CONNECT = [("__connect.errors.topic", b"orders"), ("__connect.errors.partition", b"0"),
           ("__connect.errors.offset", b"1"), ("__connect.errors.exception.message", b"no")]  # fmt: skip


@pytest.mark.parametrize("confirmed", [[], ["--yes"]])
def test_a_purge_spares_what_is_no_letter_of_ours(kafka: Kafka, confirmed: list[str]) -> None:
    """An ordinary topic, and letters among which there is one foreign record, are left whole; the place is named."""
    with pytest.raises(ConfigError, match=r"^orders\[1\]@0 was not written by Downspout.*--force"):
        run(kafka, "purge", "orders", "--before", "1:2", *confirmed)
    for headers in (CONNECT, [("__downspout.errors.topic", b"orders")]):
        kafka.produce(LETTERS, b"foreign", headers=headers)
    with pytest.raises(ConfigError, match=r"^g.dead-letters\[0\]@6 was not written by Downspout"):
        run(kafka, "purge", LETTERS, "--before", "8", *confirmed)
    assert [len(kafka.records(topic, at)) for topic, at in (("orders", 1), (LETTERS, 0))] == [2, 8]
    assert begin(kafka, "orders", 1) == begin(kafka, LETTERS, 0) == 0


def test_a_purge_looks_at_no_more_than_it_deletes(kafka: Kafka) -> None:
    """Foreign records at or beyond the bound, or in another partition, are not in its way."""
    headers = kafka.records(LETTERS)[0].headers
    kafka.produce(LETTERS, b"foreign")
    assert run(kafka, "purge", LETTERS, "--before", "6", "--yes") == 0
    assert begin(kafka, LETTERS, 0) == 6
    kafka.create_topic("mixed", 2)
    kafka.produce("mixed", b"ours", partition=0, headers=headers)
    kafka.produce("mixed", b"foreign", partition=1)
    assert run(kafka, "purge", "mixed", "--before", "0:1", "--yes") == 0
    assert (begin(kafka, "mixed", 0), begin(kafka, "mixed", 1)) == (1, 0)
    with pytest.raises(ConfigError, match=r"^mixed\[1\]@0 was not written by Downspout"):
        run(kafka, "purge", "mixed", "--before", "1", "--yes")


def test_force_deletes_others_records_too(kafka: Kafka) -> None:
    """With --force, and --yes, all below the offset goes."""
    kafka.produce(LETTERS, b"foreign", headers=CONNECT)
    assert run(kafka, "purge", LETTERS, "--before", "7", "--force") == 0
    assert begin(kafka, LETTERS, 0) == 0
    assert run(kafka, "purge", LETTERS, "--before", "7", "--force", "--yes") == 0
    assert begin(kafka, LETTERS, 0) == 7


def begin(kafka: Kafka, topic: str, partition: int) -> int:
    consumer = kafka.consumer(group=None)
    try:
        return next(iter(consumer.beginning_offsets([TopicPartition(topic, partition)]).values()))
    finally:
        consumer.close()


@pytest.mark.parametrize("action", [["ls", "clicks"], ["ls", "clicks", "--json"], ["show", "clicks", "orders[1]@0"]])
def test_a_topic_without_letters_is_an_error(kafka: Kafka, action: list[str]) -> None:
    """Records of an ordinary topic are not counted as letters: it is said that they are none."""
    with pytest.raises(DownspoutError, match="2 records of clicks are not dead letters of Downspout") as caught:
        run(kafka, *action)
    assert caught.value.cure
    assert caught.value.exit_code


def test_foreign_records_among_letters_are_told_apart(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """They are counted besides, whatever is chosen, with the place of one; `show` shows them by that place."""
    kafka.produce(LETTERS, b"foreign", headers=CONNECT)
    for choice in ([], ["--topic", "nowhere"]):
        assert run(kafka, "ls", LETTERS, *choice) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-2:] == [f"{0 if choice else 4} dead letters",
                              "1 record of g.dead-letters is not a dead letter, as g.dead-letters[0]@6"]  # fmt: skip
        assert not any("unknown" in line for line in lines)
    told = facts(kafka, capsys, "ls", LETTERS)
    assert (told["letters"], told["foreign"]) == (4, 1)
    assert run(kafka, "show", LETTERS, "g.dead-letters[0]@6") == 0
    said = capsys.readouterr().out
    for part in (
        "not a dead letter of Downspout",
        "header:    __connect.errors.exception.message: no",
        "value:     foreign",
    ):
        assert part in said
    assert "failed:" not in said


def test_an_empty_topic_has_no_letters(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    kafka.create_topic("empty", 1)
    assert run(kafka, "ls", "empty") == 0
    assert capsys.readouterr().out == "0 dead letters\n"


def test_ls_prints_the_groups(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each topic and exception, the total last; the same as JSON."""
    assert run(kafka, "ls", LETTERS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["2", "clicks", "KeyError"]
    assert lines[-1] == "4 dead letters"
    told = facts(kafka, capsys, "ls", LETTERS, "--exception", "KeyError")
    assert (told["letters"], told["groups"][0]["last_ms"]) == (2, 1011)


def test_show_prints_one_letter_whole(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Where from, why, headers, stack and value are shown; --bytes cuts the value and says so."""
    assert run(kafka, "show", LETTERS, "clicks[1]@1", "--bytes", "3") == 0
    said = capsys.readouterr().out
    for part in ("clicks[1]@1 (topic id", "failed:    3 times", "KeyError: 'x1' (exception in parse)",
                 "header:    trace: 7", "value:     cli (the first 3 of 8 bytes)", "Traceback …"):  # fmt: skip
        assert part in said
    [letter] = facts(kafka, capsys, "show", LETTERS, "clicks[1]@1")
    assert (letter["value"], letter["headers"], letter["replay_of"]) == ("clicks 1", [["trace", "7"]], None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", LETTERS, "orders"], "does not identify a record"),
        (["show", LETTERS, "orders[0]@99"], "has no dead letter of"),
        (["ls", "nowhere"], "there is no topic nowhere"),
        (["ls", LETTERS, "--exception", "("], "not a regular expression"),
        (["ls", LETTERS, "--offsets", "x"], "is not a range"),
        (["ls", LETTERS, "--offsets", "9-3"], "is empty"),
        (["ls", LETTERS, "--since", "yesterday"], "is not a time"),
        (["purge", LETTERS, "--before", "x"], "is not an offset"),
    ],
)
def test_bad_arguments_say_what_to_give(kafka: Kafka, arguments: list[str], message: str) -> None:
    """What makes no sense is an error with a cure, never a traceback."""
    with pytest.raises(DownspoutError, match=message) as caught:
        run(kafka, *arguments)
    assert caught.value.cure


def test_a_letter_without_the_whole_record_says_so_and_is_not_replayed(
    kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show` prints its offsets and why, `replay` refuses before it writes, and with a flag leaves it out."""
    tp = TopicPartition("orders", 1)
    letters = DeadLetters(kafka, LETTERS)
    for note in (Unreadable(tp, 7, 8, "a record of 99 bytes", 99), Unreadable(tp, 10, 15, "its check sum is wrong")):
        record = next(r for r in kafka.records("orders", 1))._replace(offset=note.offset)
        letters.queue(
            record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None, unreadable=note,
            topic_id=kafka.topic_id("orders"),
        )  # fmt: skip
    letters.flush()
    letters.close()
    run(kafka, "show", LETTERS, "orders[1]@10")
    told = capsys.readouterr().out
    assert "offsets:   10 to 14" in told
    assert "not whole: its check sum is wrong" in told
    before = len(kafka.records("orders"))
    with pytest.raises(ConfigError, match=r"orders\[1\]@7: the dead letter does not hold the whole record"):
        run(kafka, "replay", LETTERS, "--yes")
    assert len(kafka.records("orders")) == before
    told = facts(kafka, capsys, "replay", LETTERS, "--yes", "--skip-truncated")
    assert (told["truncated"], told["records"]) == (2, 4)
