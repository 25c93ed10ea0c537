"""``downspout offsets seek`` goes where ``kafka-consumer-groups --reset-offsets`` goes, on the same groups."""

from __future__ import annotations

import csv
import io
import logging
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, OffsetAndMetadata, TopicPartition
from downspout.ledger import NOTHING, encode
from downspout.offsets import Place, TargetKind, milliseconds, moment, plan_seek, read_places, to_csv
from downspout.offsets.group_offsets import standings
from downspout.spout import StartNotes
from downspout.system import resolve
from downspout.system.java import java
from tests.kafka.stage import unique

pytestmark = pytest.mark.broker

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m", "-Dfile.encoding=UTF-8")
OLD = moment("2020-02-02T02:00:00Z")
KINDS: dict[str, tuple[tuple[str, ...], Place]] = {
    "earliest": (("--to-earliest",), Place(TargetKind.EARLIEST)),
    "latest": (("--to-latest",), Place(TargetKind.LATEST)),
    "current": (("--to-current",), Place(TargetKind.CURRENT)),
    "offset": (("--to-offset", "7"), Place(TargetKind.OFFSET, 7)),
    "forward": (("--shift-by", "4"), Place(TargetKind.SHIFT, 4)),
    "back": (("--shift-by", "-4"), Place(TargetKind.SHIFT, -4)),
    "datetime": (("--to-datetime", "2020-02-02T03:00:05.500+01:00"), Place(TargetKind.TIME, OLD + 5_500)),
    "duration": (("--by-duration", "PT1H"), Place(TargetKind.TIME)),  # an hour before the test
}
"""By the name of a kind: the options of Kafka's tool, and our place."""

Ends = dict[str, dict[TopicPartition, int]]


class Scene:
    """A topic whose partitions begin and end at different offsets, and two groups that stand in it."""

    def __init__(self, cluster: KafkaCluster, broker: EmbeddedKafka) -> None:
        self.cluster, self.broker, self.topic = cluster, broker, unique()
        self.groups = [unique("g"), unique("g")]
        cluster.ensure_topic(self.topic, 5)  # the last one stays empty
        producer, now = cluster.producer(), int(time.time() * 1000)
        for partition, count in enumerate((12, 9, 5, 20)):
            for number in range(count):
                stamp = OLD + number * 1000 if number < 8 else now
                producer.send(self.topic, key=None, value=b"x", partition=partition, timestamp_ms=stamp)
        producer.flush()
        producer.close()
        cluster.delete_records(self.topic, 1, 3)
        cluster.delete_records(self.topic, 3, 10)
        for group, offsets in zip(self.groups, ((6, 4, 5, 12, 0), (0, 9, 1, 20, 0)), strict=True):
            consumer = cluster.consumer(group=group)
            places = {TopicPartition(self.topic, number): at for number, at in enumerate(offsets)}
            consumer.commit({tp: OffsetAndMetadata(at, "", -1) for tp, at in places.items()})
            consumer.close()

    def theirs(self, *options: str, groups: int = 2) -> Ends:
        """Return where Kafka's tool would move the groups; nothing is moved."""
        jars = os.pathsep.join(map(str, resolve("kafka-tools") + resolve("kafka")))
        command = [str(java()), *QUICK, "-cp", jars, TOOL, "--bootstrap-server", self.broker.bootstrap]
        command += [word for group in self.groups[:groups] for word in ("--group", group)]
        command += ["--reset-offsets", "--dry-run", "--timeout", "60000"]
        command += options if "--from-file" in options else (*options, "--topic", self.topic, "--export")
        done = subprocess.run([*command], capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.parse(done.stdout)

    def parse(self, printed: str) -> Ends:
        """Return the offsets that are printed: as CSV, or as the table that the tool makes of a file."""
        found: Ends = {group: {} for group in self.groups}
        for line in csv.reader(io.StringIO(printed)):
            words = line if len(line) > 1 else line[0].split() if line else []
            *group, topic, partition, offset = words if len(words) in (3, 4) else ("", "", "", "")
            if topic == self.topic and offset.isdecimal():
                found[group[0] if group else self.groups[0]][TopicPartition(topic, int(partition))] = int(offset)
        return found

    def ours(self, place: Place | Mapping[str, dict[TopicPartition, Place]], groups: int = 2) -> Ends:
        found: Ends = {group: {} for group in self.groups}
        for group in self.groups[:groups]:
            to = place if isinstance(place, Place) else place[group]
            plan = plan_seek(self.cluster, group, to, {self.topic: frozenset()})
            found[group] = {**plan.unchanged, **{move.tp: move.to for move in plan.moves}}
        return found

    def theirs_for_good(self, group: str, *options: str) -> None:
        jars = os.pathsep.join(map(str, resolve("kafka-tools") + resolve("kafka")))
        command = [str(java()), *QUICK, "-cp", jars, TOOL, "--bootstrap-server", self.broker.bootstrap, *options]
        command += ["--group", group, "--reset-offsets", "--topic", self.topic, "--execute", "--timeout", "60000"]
        subprocess.run(command, capture_output=True, check=True, timeout=180)


@pytest.fixture(scope="module")
def scene(kafka_broker: EmbeddedKafka) -> Scene:
    return Scene(KafkaCluster(kafka_broker.bootstrap), kafka_broker)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_place_is_where_kafkas_tool_puts_it(scene: Scene, kind: str) -> None:
    """Begins, ends, clamped offsets and shifts, times in the middle and behind the last record: all are equal."""
    options, place = KINDS[kind]
    if kind == "duration":
        place = Place(TargetKind.TIME, int(time.time() * 1000) - milliseconds(options[1]))
    theirs = scene.theirs(*options)
    assert [len(found) for found in theirs.values()] == [5, 5]
    assert scene.ours(place) == theirs


def test_a_file_for_many_groups_means_the_same_to_both(scene: Scene, tmp_path: Path) -> None:
    """Our export of two groups, edited to lie inside and outside the logs, moves both tools to the same offsets."""
    exported = to_csv({group: standings(scene.cluster, group, [scene.topic]) for group in scene.groups})
    path = tmp_path / "offsets.csv"
    path.write_text(exported.replace(",0,6\n", ",0,600\n").replace(",1,9\n", ",1,1\n"), encoding="utf-8")
    theirs = scene.theirs("--from-file", str(path))
    assert [len(found) for found in theirs.values()] == [5, 5]
    assert scene.ours(read_places(path, scene.groups)) == theirs
    assert theirs[scene.groups[0]][TopicPartition(scene.topic, 0)] == 12


def commit_as_a_spout(scene: Scene, group: str) -> TopicPartition:
    """Commit with a topology id and something done beyond; return for which partition."""
    tp, consumer = TopicPartition(scene.topic, 0), scene.cluster.consumer(group=group)
    text = encode(6, topology_id="shop-1", task=3, topic_id=consumer.topic_id(scene.topic), done=[(8, 10)])
    consumer.commit({tp: OffsetAndMetadata(6, text, -1)})
    consumer.close()
    return tp


@pytest.mark.parametrize("tool", ["kafka", "kafka-python"])
def test_what_other_tools_leave_names_no_topology_until_ours_puts_it_back(
    scene: Scene, tool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka's tool drops the metadata, and kafka-python's keeps it at an offset where it means nothing."""
    group = unique("g")
    tp = commit_as_a_spout(scene, group)
    if tool == "kafka":
        scene.theirs_for_good(group, "--to-offset", "4")
    else:
        admin = KafkaAdminClient(bootstrap_servers=scene.broker.bootstrap)
        admin.reset_group_offsets(group, {tp: 4})
        admin.close()
    (standing, *_) = standings(scene.cluster, group, [scene.topic])
    assert (standing.offset, standing.metadata) == (4, NOTHING)
    assert (standing.text == "") == (tool == "kafka")
    notes = StartNotes("LATEST", group, "shop-1", logging.getLogger("tests.notes"))
    found = scene.cluster.group_offsets(group)
    notes.look({tp: found[tp]}, {scene.topic: standing.topic_id})
    (said,) = [record.getMessage() for record in caplog.records if record.name == "tests.notes"]
    assert f"{scene.topic}[0]@4 do not name a topology" in said
    only = {scene.topic: frozenset({0})}
    plan_seek(scene.cluster, group, Place(TargetKind.CURRENT), only, topology_id="shop-1").apply(scene.cluster)
    (standing, *_) = standings(scene.cluster, group, [scene.topic])
    assert (standing.offset, standing.metadata.topology_id, standing.metadata.done) == (4, "shop-1", ())
    assert plan_seek(scene.cluster, group, Place(TargetKind.CURRENT), only, topology_id="shop-1").moves == []


def test_a_file_for_one_group_means_the_same_to_both(scene: Scene, tmp_path: Path) -> None:
    """Kafka's export of one group has three columns, and its import of that goes where ours does."""
    path = tmp_path / "offsets.csv"
    group = scene.groups[0]
    path.write_text(to_csv({group: standings(scene.cluster, group, [scene.topic])}).replace(",3,12", ",3,13"))
    theirs = scene.theirs("--from-file", str(path), groups=1)
    assert theirs[group][TopicPartition(scene.topic, 3)] == 13
    assert scene.ours(read_places(path, [group]), groups=1) == theirs
