"""Transcripts: files that are both the script of Storm's side and what KafkaSpout is expected to answer.

====================  ====================================================================================
line                  meaning
====================  ====================================================================================
``# text``            a remark
``given {…}``         settings, besides the usual ones; FakeKafka holds 6 records, offsets 0 to 5
``→ next``            Storm's command; also ``activate``, ``deactivate``, ``ack OFFSET``, ``fail OFFSET``
``→ end of input``    Storm goes away
``… 31 s``            time passes
``← {…}``             what the spout says: checked
``= committed N``     what the group has committed now: checked where the script has such a line
====================  ====================================================================================

``python -m tests.wire.transcript`` writes the answers anew; read the difference.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.wire.storm_pipe import Sink, Source, frame, handshake

FOLDER = Path(__file__).parent / "transcripts"
GROUP, TOPIC, RECORDS = "readers", "orders", 6


class Player:
    """Plays Storm's side of one transcript and writes down both sides."""

    def __init__(self, text: str, kafka: FakeKafka, directory: Path) -> None:
        self.lines: list[str] = []
        self._kafka = kafka
        self._directory = directory
        self._script = [line for line in text.splitlines() if not line.startswith("←")]
        self._settings: dict[str, Any] = {}
        self._sink = Sink()
        self._ids: dict[str, str] = {}
        self._spout = KafkaSpout(Source(self._next_message), self._sink, rdb_signal=None)
        self._spout.clock = kafka.clock
        self._greeted = False

    def play(self) -> str:
        """Run the spout through pystorm's own ``run`` and return the transcript."""
        try:
            self._spout.run()
        except SystemExit as end:
            self._note_answers()
            self.lines.append(f"= exit {end.code}")
        for line in self._script:  # what is to be seen after the end
            if line.startswith("= committed"):
                self.lines.append(self._committed())
        return "\n".join(self.lines) + "\n"

    def _next_message(self) -> bytes | None:
        self._note_answers()
        while self._script:
            line = self._script.pop(0)
            if line.startswith("given"):
                self._settings = json.loads(line.removeprefix("given"))
            if line.startswith("= exit"):
                continue
            self.lines.append(self._committed() if line.startswith("= committed") else line)
            if line.startswith("…"):
                self._kafka.clock.sleep(float(line.split()[1]))
            if line == "→ handshake":
                return frame(self._hello())
            if line == "→ end of input":
                return None
            if line.startswith("→"):
                command, _, offset = line.removeprefix("→ ").partition(" ")
                return frame({"command": command, "id": self._ids[offset] if offset else ""})
        return None

    def _hello(self) -> Any:
        settings = {f"kafka.{name}" if "." not in name else name: value for name, value in self._settings.items()}
        conf = {
            "kafka.bootstrap": self._kafka.bootstrap,
            "kafka.group": GROUP,
            "kafka.topics": [TOPIC],
            "kafka.fields": ["offset", "value"],
            **settings,
        }
        return handshake(self._directory, conf, {"stream->outputfields": {"default": ["offset", "value"]}})

    def _note_answers(self) -> None:
        for message in self._sink.said:
            if message.get("command") == "emit" and "id" in message:
                self._ids[message["id"].rpartition("/")[2]] = message["id"]
            if "pid" in message:
                message["pid"] = "our pid"
            if message.get("command") == "log":
                message = {"command": "log"}
            self.lines.append(f"← {json.dumps(message)}")
        self._sink.said.clear()

    def _committed(self) -> str:
        found = {tp: meta.offset for tp, meta in self._kafka.committed(GROUP).items() if tp.topic == TOPIC}
        return f"= committed {next(iter(found.values()), 'nothing')}"


def play(path: Path, directory: Path) -> str:
    with FakeKafka(f"transcript-{path.stem}") as kafka:
        kafka.create_topic(TOPIC, 1)
        for number in range(RECORDS):
            kafka.produce(TOPIC, f"order {number}".encode(), partition=0)
        return Player(path.read_text(encoding="utf-8"), kafka, directory).play()


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("*.txt")):
        with tempfile.TemporaryDirectory() as scratch:
            each.write_text(play(each, Path(scratch)), encoding="utf-8")
