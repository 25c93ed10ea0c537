"""The transcript of docs/how-to/monitor.md is what the commands print."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.kafka import KafkaCluster
from tests.offsets.shop_scene import GROUP, TOPIC, make

pytestmark = pytest.mark.broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "monitor.md"
BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.DOTALL | re.MULTILINE)
VARIES = (
    (r"coordinator (\")?(: \")?\S+ \(node \d+\)", "coordinator HERE"),
    (r'"coordinator": "[^"]*"', '"coordinator": "HERE"'),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "NOW"),
    (r'"lag_s": [0-9.]+', '"lag_s": AGE'),
    (r"\b[1-9][0-9.]* (?:s|min|h)\b(?= +\d+ +\d+ +\d)", "AGE"),
    (r" +", " "),
)


def steps() -> list[tuple[list[str], list[str]]]:
    """Return each command of the page, and the lines that follow it."""
    found: list[tuple[list[str], list[str]]] = []
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for line in block.splitlines() if block.startswith("$ downspout lag") else ():
            if line.startswith("$ "):
                found.append((shlex.split(line)[3:], []))
            else:
                found[-1][1].append(line)
    return found


def plain(text: str) -> list[str]:
    """Return lines without what is another at each look: times, ages, addresses, the width of columns."""
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines()]


@pytest.fixture
def scene(kafka_broker: EmbeddedKafka, cluster: KafkaCluster) -> Iterator[str]:
    """The page's topic and group; both are taken away again."""
    make(cluster, int(time.time() * 1000))
    yield kafka_broker.bootstrap
    cluster.delete_topic(TOPIC)
    cluster.delete_groups([GROUP])


def test_the_page_shows_what_the_commands_print(
    scene: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command of the page is run, in order, and prints the lines that the page has for it; … stands for some."""
    monkeypatch.setenv("DOWNSPOUT_KAFKA_BOOTSTRAP", scene)
    codes = {}
    for words, shown in steps():
        codes[" ".join(words)] = main(["lag", *words])
        said = capsys.readouterr()
        printed = plain(said.out + said.err)
        if "…" not in shown:
            assert not shown or printed == plain("\n".join(shown)), words
            continue
        wanted = plain("\n".join(line for line in shown if line != "…"))
        before = shown.index("…")
        assert printed[:before] == wanted[:before], words
        after = wanted[before:]
        assert printed[len(printed) - len(after) :] == after, words
    assert len(codes) == 3
    assert codes[f"{GROUP} --until 0 --timeout 2s"] == 15
    assert codes[f"{GROUP} --until 25"] == codes[GROUP] == 0
