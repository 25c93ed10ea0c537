"""The session of docs/how-to/move-offsets.md is what the commands print."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.kafka import Cluster, KafkaCluster
from tests.offsets.shop_scene import GROUP, TOPIC, make
from tests.sink.support import write_rows

pytestmark = pytest.mark.broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "move-offsets.md"
BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.DOTALL | re.MULTILINE)


def steps() -> list[tuple[list[str], list[str]]]:
    """Return each command of the page, and the lines that follow it."""
    found: list[tuple[list[str], list[str]]] = []
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((shlex.split(line)[2:], []))
            else:
                found[-1][1].append(line)
    return found


def prepare(cluster: Cluster) -> None:
    """Make the page's topic, group and sink: of what is done, each record has its row."""
    make(cluster, int(time.time() * 1000))
    consumer = cluster.consumer(group=None)
    topic_id = consumer.topic_id(TOPIC)
    consumer.close()
    done = [(0, offset) for offset in (*range(100), *range(103, 110), 112)] + [(1, offset) for offset in range(80)]
    write_rows(Path("output/shop"), [(TOPIC, topic_id, *place, "") for place in done])


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a command as a shell would; return what it prints."""
    words, target = (words[:-2], words[-1]) if ">" in words else (words, "")
    main(words)
    printed = capsys.readouterr()
    if target:
        Path(target).write_text(printed.out, encoding="utf-8")
    return [] if target else (printed.out + printed.err).splitlines()


@pytest.fixture
def scene(
    kafka_broker: EmbeddedKafka, cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The page's topic, group and sink; those in Kafka are taken away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOWNSPOUT_KAFKA_BOOTSTRAP", kafka_broker.bootstrap)
    prepare(cluster)
    yield
    cluster.delete_topic(TOPIC)
    cluster.delete_groups([GROUP])


@pytest.mark.usefixtures("scene")
def test_the_page_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(steps()) >= 12
    for words, shown in steps():
        assert run(words, capsys) == shown, words
