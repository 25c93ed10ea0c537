"""A project that reads from a protected broker: a topology, settings in a file, records, and commands on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.kafka import cluster_for

SHOP = "tests.security.shop:Shop"
VARIABLE = "SHOP_KAFKA_PASSWORD"


class Shop:
    """A folder of its own with a ``downspout.toml`` that tells how to get in.

    Args:
        folder: the project's.
        broker: what to read from.
        topic: the topic.
        monkey: for the working directory and the environment, in which the password is.
        capture: of what is printed.
    """

    def __init__(
        self, folder: Path, broker: EmbeddedKafka, topic: str, monkey: pytest.MonkeyPatch, capture: Any
    ) -> None:
        self.folder, self.broker, self.topic, self._capture = folder, broker, topic, capture
        self.client = broker.client
        self.password = str(self.client.get("sasl_plain_password", ""))
        self.said = ""
        monkey.chdir(folder)
        monkey.setenv("DOWNSPOUT_HOME", str(folder / "home"))
        monkey.setenv(VARIABLE, self.password)
        self.configure({**self.client, "sasl_plain_password": f"env:{VARIABLE}"} if self.password else self.client)

    def configure(self, client: Mapping[str, Any]) -> None:
        lines = ["[kafka]", f'bootstrap = "{self.broker.bootstrap}"', f'topics = ["{self.topic}"]']
        lines += [f'group = "{self.topic}"', "[kafka.client]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in client.items()]
        (self.folder / "downspout.toml").write_text("\n".join(lines), encoding="utf-8")

    @property
    def letters(self) -> str:
        return f"{self.topic}.dead-letters"

    def command(self, *words: str, code: int = 0) -> str:
        """Run a command of ours, check its exit code, and return what it printed."""
        found = main(words)
        out, err = self._capture.readouterr()
        self.said += out + err
        assert found == code, (words, out, err)
        return str(out + err)

    def publish(self, values: Iterable[str]) -> None:
        lines = self.folder / "lines"
        lines.write_text("".join(f"{value}\n" for value in values), encoding="utf-8")
        self.command("kafka", "produce", self.topic, str(lines))

    def run(self, *words: str, code: int = 0) -> str:
        return self.command("run", SHOP, "--until", "end", *words, code=code)

    def broker_offsets(self) -> Mapping[Any, Any]:
        return cluster_for(self.broker.bootstrap, self.client).group_offsets(self.topic)

    def written(self) -> dict[str, bytes]:
        files = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}
