"""``downspout lag``: output, waiting, and the exit codes in its help."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

import pytest

from downspout.cli import build_parser, lag, main
from downspout.errors import BrokerError
from downspout.kafka import GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from downspout.offsets import Question
from downspout.testing import FakeKafka

TP = TopicPartition("orders", 0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka in memory with ten records in one partition, of which a group has committed seven."""
    with FakeKafka("lag-command") as made:
        made.create_topic("orders")
        for _ in range(10):
            made.produce("orders", b"v", partition=0)
        commit(made, 7)
        yield made


def commit(kafka: FakeKafka, offset: int) -> None:
    consumer = kafka.consumer(group="shop")
    consumer.commit({TP: OffsetAndMetadata(offset, "", -1)})
    consumer.close()


def arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["lag", *words])


def look(kafka: FakeKafka, *words: str) -> tuple[int, list[str]]:
    """Run the command in virtual time; return its exit code and what it showed."""
    shown: list[str] = []
    code = lag.look(arguments(*words), kafka, Question(clock=kafka.clock), shown.append, kafka.clock)
    return code, shown


def after(kafka: FakeKafka, looks: int, action: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something before the clock sleeps for the n-th time."""
    count, sleep = [0], kafka.clock.sleep

    def slept(seconds: float) -> None:
        count[0] += 1
        if count[0] == looks:
            action()
        sleep(seconds)

    monkeypatch.setattr(kafka.clock, "sleep", slept)


@pytest.mark.fake_only("the command line; figures of a broker are in tests/broker/test_lag_broker.py")
def test_the_command_prints_a_table(kafka: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lag", "shop", "--bootstrap", kafka.bootstrap]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "group shop: Empty, 0 members, coordinator lag-command:0 (node 0)"
    assert said[2].split()[:4] == ["orders[0]", "7", "10", "3"]


@pytest.mark.fake_only("exit codes")
def test_a_missing_group_or_topic_is_said_and_is_code_1(kafka: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are shown, and the code says that something could not be told."""
    words = ["lag", "misspelt", "shop", "--topic", "orders", "--topic", "nowhere", "--bootstrap", kafka.bootstrap]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "group misspelt: there is no such group" in said
    assert "nowhere: does not exist" in said
    assert "orders[0]" in said


@pytest.mark.fake_only("the command line")
def test_json_is_one_value(kafka: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lag", "shop", "--bootstrap", kafka.bootstrap, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["total"]["lag"] == 3


@pytest.mark.fake_only("virtual time")
def test_until_waits_and_then_shows_once(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again until the group is there, and shows the last look alone."""
    after(kafka, 3, lambda: commit(kafka, 10), monkeypatch)
    code, shown = look(kafka, "shop", "--until", "0", "--timeout", "60s")
    assert (code, len(shown)) == (0, 1)
    assert shown[0].splitlines()[1 + 1].split()[3] == "0"


@pytest.mark.fake_only("virtual time")
def test_a_timeout_has_a_code_of_its_own(kafka: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """A group that does not get there in time ends the wait with 15, after that time and not much later."""
    before = kafka.clock.monotonic()
    code, shown = look(kafka, "shop", "--until", "0", "--timeout", "5s")
    assert (code, len(shown)) == (lag.BEHIND, 1)
    assert 5 <= kafka.clock.monotonic() - before < 6
    assert capsys.readouterr().err == "downspout: 3 offsets behind after 5 s, and not 0\n"


@pytest.mark.fake_only("virtual time")
def test_until_counts_what_has_no_commit(kafka: FakeKafka) -> None:
    """A partition that no one has read is not done: all that its log holds counts, and an empty one counts nothing."""
    commit(kafka, 10)
    kafka.add_partitions("orders", 2)
    assert look(kafka, "shop", "--until", "0")[0] == 0
    kafka.produce("orders", b"new", partition=1)
    assert look(kafka, "shop", "--until", "0", "--timeout", "4s")[0] == lag.BEHIND


@pytest.mark.fake_only("virtual time")
def test_until_does_not_take_unknown_for_done(kafka: FakeKafka) -> None:
    """A group that cannot be looked at is not within any lag."""
    assert look(kafka, "misspelt", "--until", "0", "--timeout", "4s")[0] == lag.BEHIND


@pytest.mark.fake_only("virtual time")
def test_watch_shows_one_table_per_interval(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal each look is printed with its time, until time is up; in an outage without figures."""
    after(kafka, 2, kafka.broker_down, monkeypatch)
    monkeypatch.setattr(kafka, "describe_group", refused_while_down(kafka))
    code, shown = look(kafka, "shop", "--watch", "--every", "1s", "--timeout", "3s")
    assert (code, len(shown)) == (1, 4)
    assert all("T" in text.splitlines()[0] for text in shown)
    assert ["orders[0]" in text for text in shown] == [True, True, False, False]


def refused_while_down(kafka: FakeKafka) -> Callable[[str], object]:
    """Return a question that a real cluster refuses with our own error while no broker answers."""
    known = kafka.describe_group

    def describe(group: str) -> object:
        if not kafka.is_up:
            raise BrokerError("No Kafka at lag-command")
        return known(group)

    return describe


@pytest.mark.fake_only("the command line")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop", "--timeout", "5s"], "--until or --watch"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: list[str], said: str, kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lag", *words, "--bootstrap", kafka.bootstrap]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.fake_only("a group between its first member and its first commit")
def test_a_group_of_which_nothing_is_known_yet_is_not_within(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topology that has just begun owns nothing and has committed nothing: that is no lag of 0."""
    kafka.delete_offsets("shop", [TP])
    joining = GroupDescription("PreparingRebalance", "", [GroupMember("one", "c", "h", [])])
    monkeypatch.setattr(kafka, "describe_group", lambda group: joining)
    assert look(kafka, "shop")[0] == 1
    assert look(kafka, "shop", "--until", "0", "--timeout", "4s")[0] == lag.BEHIND
    assert "lag is still unknown" in capsys.readouterr().err
    after(kafka, 2, lambda: commit(kafka, 10), monkeypatch)
    assert look(kafka, "shop", "--until", "0", "--timeout", "60s")[0] == 0


@pytest.mark.fake_only("metadata that somebody made up")
def test_names_cannot_command_a_terminal(kafka: FakeKafka) -> None:
    """What others wrote into a commit is shown with its invisible characters escaped."""
    consumer = kafka.consumer(group="shop")
    text = json.dumps({"topologyId": "x\x1b[2Jy", "taskId": 3, "threadName": "t"})
    consumer.commit({TP: OffsetAndMetadata(7, text, -1)})
    consumer.close()
    (shown,) = look(kafka, "shop")[1]
    assert "\x1b" not in shown
    assert "x\\x1b[2Jy" in shown
