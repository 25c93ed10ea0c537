"""A broker that refuses: unknown topics, missing permissions, a dead-letter topic that rejects records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.dead_letters import read_dead_letters
from downspout.errors import BrokerError, RecordError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.ledger import AT_WORK, encode
from downspout.offsets import Question, collect
from tests.broker.scene import Member, Scene, run_until
from tests.kafka.stage import unique

pytestmark = [pytest.mark.broker, pytest.mark.slow]

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Everybody may do anything with what no rule is about."""
EVERYBODY = "User:*"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("guarded"), properties=GUARDED) as made:
        yield made


@pytest.fixture
def scene(broker: EmbeddedKafka) -> Iterator[Scene]:
    """A topic of one partition with ten records, each value its number."""
    with Scene(broker.bootstrap, unique("refused")) as made:
        made.fill(10)
        yield made


class Rights:
    """Takes rights from everybody, and gives them back."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def forbid(self, kind: ResourceType, name: str, operation: ACLOperation) -> None:
        """Forbid one operation on a resource; the others stay allowed."""
        pattern = ResourcePattern(kind, name)
        kinds = ((operation, ACLPermissionType.DENY), (ACLOperation.ALL, ACLPermissionType.ALLOW))
        self._admin.create_acls([ACL(EVERYBODY, "*", what, permission, pattern) for what, permission in kinds])

    def restore(self) -> None:
        pattern = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        self._admin.delete_acls([ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)])

    def close(self) -> None:
        self.restore()
        self._admin.close()


@pytest.fixture
def rights(broker: EmbeddedKafka, scene: Scene) -> Iterator[Rights]:
    """All rights; what a test takes is given back before its spouts are closed."""
    made = Rights(broker.bootstrap)
    yield made
    made.close()


# --- what is read ---


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
@pytest.mark.parametrize("operation", [ACLOperation.READ, ACLOperation.DESCRIBE])
def test_a_topic_that_may_not_be_read_is_an_error(
    scene: Scene, rights: Rights, operation: ACLOperation, mode: str
) -> None:
    """The error names the topic and says that it is a matter of rights; nothing is emitted or committed."""
    rights.forbid(ResourceType.TOPIC, scene.topic, operation)
    emitted: list[Member] = []

    def run() -> None:
        emitted.append(scene.member(1 if mode == "subscribe" else None, mode=mode))
        run_until(lambda: False, *emitted)

    with pytest.raises(BrokerError, match=rf"no permission for topic {scene.topic} .*Try: grant the topic"):
        run()
    assert not any(member.emitted for member in emitted)
    rights.restore()
    assert scene.committed() in (None, 0)


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
def test_a_group_that_may_not_be_used_is_an_error(scene: Scene, rights: Rights, mode: str) -> None:
    """The error names the group and says that it is a matter of rights; nothing is emitted."""
    rights.forbid(ResourceType.GROUP, scene.group, ACLOperation.READ)
    member = scene.member(1 if mode == "subscribe" else None, mode=mode)
    with pytest.raises(BrokerError, match=rf"no permission for group {scene.group} .*Try: grant the group"):
        run_until(lambda: False, member)
    assert not member.emitted
    with pytest.raises(BrokerError) if mode == "assign" else nullcontext():
        member.spout.close()
    assert member.spout.session is None


def test_a_group_that_may_not_be_looked_at_is_an_error(scene: Scene, rights: Rights) -> None:
    """Who may not see a group's commits and members is told so, and never that there are none."""
    run_until(lambda: scene.cluster.group_members(scene.group) != [], scene.member())
    rights.forbid(ResourceType.GROUP, scene.group, ACLOperation.DESCRIBE)
    for question in (scene.cluster.group_offsets, scene.cluster.group_members):
        with pytest.raises(BrokerError, match=rf"group {scene.group}.*Try: grant the "):
            question(scene.group)


def test_an_unknown_topic_is_waited_for(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names it, the others are read meanwhile, and it is read when it appears."""
    caplog.set_level(logging.WARNING, "tests.spout")
    missing = f"{scene.topic}-missing"
    quick = {"kafka__client__metadata_max_age_ms": 300, "kafka__client__heartbeat_interval_ms": 200}
    member = scene.member(topics=[scene.topic, missing], fields=["topic"], **quick)
    run_until(lambda: len(member.emitted) == 10, member, answer=True)
    [said] = [record.getMessage() for record in caplog.records if record.name == "tests.spout"]
    assert f"topic {missing} does not exist" in said
    scene.cluster.ensure_topic(missing)
    scene.fill(2, topic=missing)
    run_until(lambda: len(member.emitted) == 12, member, answer=True)
    assert [values[0] for _, values in member.emitted[10:]] == [missing, missing]


# --- dead letters ---


def no_right_to_write(scene: Scene, rights: Rights, letters: str) -> Callable[[], None]:
    """The topic is there, and only its owner may write."""
    scene.cluster.ensure_topic(letters)
    rights.forbid(ResourceType.TOPIC, letters, ACLOperation.WRITE)
    return rights.restore


def no_right_to_create(scene: Scene, rights: Rights, letters: str) -> Callable[[], None]:
    """The topic is not there, brokers do not create topics by themselves, and we may not."""
    rights.forbid(ResourceType.TOPIC, letters, ACLOperation.CREATE)
    rights.forbid(ResourceType.CLUSTER, "kafka-cluster", ACLOperation.CREATE)
    return rights.restore


def no_room(scene: Scene, rights: Rights, letters: str) -> Callable[[], None]:
    """The topic takes no message as large as a letter."""
    scene.cluster.ensure_topic(letters, 1, {"max.message.bytes": "50"})
    resource = ConfigResource(ConfigResourceType.TOPIC, letters, {"max.message.bytes": "1000000"})

    def mend() -> None:
        with scene.admin() as admin:
            admin.alter_configs([resource])

    return mend


Trouble = Callable[[Scene, Rights, str], Callable[[], None]]


@pytest.mark.parametrize("trouble", [no_right_to_write, no_right_to_create, no_room])
def test_without_its_letter_no_record_is_resolved(
    scene: Scene, rights: Rights, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings name record and topic, all others go on, the commit stays; mended, the letter is written."""
    caplog.set_level(logging.WARNING, "tests.spout")
    letters = f"{scene.group}.dead-letters"
    mend = trouble(scene, rights, letters)
    member = scene.member(retries_max=0)

    def fails(place: tuple[int, int]) -> bool:
        return place[1] == 4

    run_until(lambda: member.figure("errors") >= 3, member, answer=True, fails=fails)
    scene.fill(5)
    run_until(lambda: len(member.emitted) == 15, member, answer=True, fails=fails)
    scene.commit_all(member, p0=4)
    assert (member.figure("dead_lettered"), member.figure("retry_waiting")) == (0, 1)
    said = next(record.getMessage() for record in caplog.records if record.name == "tests.spout")
    assert f"{scene.topic}[0]@4" in said
    assert letters in said
    mend()
    scene.clock.sleep(60)
    scene.commit_all(member, p0=15)
    assert [letter.offset for letter in read_dead_letters(scene.cluster, letters)] == [4]
    assert member.figure("dead_lettered") == 1


@pytest.mark.parametrize("trouble", [no_right_to_write, no_right_to_create, no_room])
def test_a_bounded_run_ends_at_a_letter_that_can_never_be_written(
    scene: Scene, rights: Rights, trouble: Trouble
) -> None:
    """The error names record and topic, and nothing is committed past that record."""
    letters = f"{scene.group}.dead-letters"
    mend = trouble(scene, rights, letters)
    member = scene.member(retries_max=0, run__until="end")
    with pytest.raises(RecordError, match=rf"{scene.topic}\[0\]@4: .*{letters}"):
        run_until(lambda: False, member, answer=True, fails=lambda place: place[1] == 4)
    member.spout.close()
    assert scene.committed() == 4
    mend()


# --- what is looked at from outside ---


def test_lag_shows_what_may_be_seen(scene: Scene, rights: Rights) -> None:
    """A topic without the right to see it is one row that says so, and so is a group; others have their figures."""
    cluster = scene.cluster
    secret = unique("secret")
    cluster.ensure_topic(secret)
    consumer = cluster.consumer(group=scene.topic)
    places = {TopicPartition(name, 0): OffsetAndMetadata(0, "", -1) for name in (scene.topic, secret)}
    consumer.assign(list(places))
    consumer.commit(places)
    consumer.close()
    rights.forbid(ResourceType.TOPIC, secret, ACLOperation.DESCRIBE)
    found = collect(cluster, scene.topic, Question([scene.topic, secret]))
    assert [(row.topic, row.lag) for row in found.partitions] == [(scene.topic, 10)]
    assert [each.topic for each in found.topics if "no permission" in each.problem] == [secret]
    rights.forbid(ResourceType.GROUP, scene.topic, ACLOperation.DESCRIBE)
    assert "no permission" in collect(cluster, scene.topic).problem


# --- moving a group ---


def commit(scene: Scene, *topics: str, metadata: str = "") -> dict[TopicPartition, int]:
    consumer = scene.cluster.consumer(group=scene.group)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(5, metadata, -1) for topic in topics})
    consumer.close()
    return {TopicPartition(topic, 0): 5 for topic in topics}


def commits(scene: Scene) -> dict[TopicPartition, int]:
    return {tp: found.offset for tp, found in scene.cluster.group_offsets(scene.group).items()}


def command(scene: Scene, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run ``downspout offsets``; return the exit code and what it says."""
    code = main(["offsets", words[0], scene.group, *words[1:], "--bootstrap", scene.bootstrap])
    return code, capsys.readouterr().err


def test_a_seek_without_the_right_to_one_topic_moves_none(
    scene: Scene, rights: Rights, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker stores what the right is there for; that is taken back, and the error names the topic."""
    other = f"{scene.topic}-other"
    scene.cluster.ensure_topic(other)
    scene.fill(10, topic=other)
    before = commit(scene, scene.topic, other)
    rights.forbid(ResourceType.TOPIC, other, ACLOperation.READ)
    code, said = command(scene, capsys, "seek", "--to-offset", "3", "--yes")
    assert code == BrokerError.exit_code
    assert f"no permission for topic {other}" in said
    assert "Nothing was moved. Try: grant the topic" in said
    rights.restore()
    assert commits(scene) == before
    assert command(scene, capsys, "seek", "--to-offset", "3", "--yes")[0] == 0
    assert set(commits(scene).values()) == {3}


def test_commits_are_not_deleted_without_the_right(
    scene: Scene, rights: Rights, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither some nor the group; the error names the group and the right."""
    before = commit(scene, scene.topic)
    rights.forbid(ResourceType.GROUP, scene.group, ACLOperation.DELETE)
    for words in ((), ("--topic", scene.topic)):
        code, said = command(scene, capsys, "delete", *words, "--yes")
        assert code == BrokerError.exit_code
        assert f"group {scene.group}" in said
        assert "Try: grant the group" in said
    rights.restore()
    assert commits(scene) == before


def test_without_the_right_to_see_ages_a_spout_may_be_at_work(
    scene: Scene, rights: Rights, capsys: pytest.CaptureFixture[str]
) -> None:
    """The age of commits is in Kafka's own topic: who may not read it is told, and a seek needs --force."""
    (topic,) = scene.cluster.consumer(group=None).topic_ids([scene.topic]).values()
    commit(scene, scene.topic, metadata=encode(5, topology_id="shop-1", task=3, topic_id=topic, isolation=AT_WORK))
    rights.forbid(ResourceType.TOPIC, "__consumer_offsets", ACLOperation.READ)
    code, said = command(scene, capsys, "seek", "--to-offset", "3", "--yes")
    assert code == BrokerError.exit_code
    assert "committed at a time that this client may not see by topology shop-1, task 3" in said
    assert command(scene, capsys, "seek", "--to-offset", "3", "--force", "--yes")[0] == 0
    assert set(commits(scene).values()) == {3}
