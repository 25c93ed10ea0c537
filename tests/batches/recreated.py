"""A topic of three partitions that is deleted and created again: the tests are the same on the fake and on a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from downspout.clock import Clock
from downspout.errors import DataLossError
from downspout.testing import MemoryBatches, run_topology
from tests.batches.counting import LINES, counted, values_of, word_count

LONGER = [f"new {line}" for line in LINES * 2]
"""What the topic holds after it was created again: in each partition more records than before."""
AGAIN = r"the topic was deleted and created again"
KINDS = pytest.mark.parametrize("kind", ["opaque", "transactional"])


class Topic(Protocol):
    name: str
    bootstrap: str
    clock: Clock | None

    def write(self, lines: list[str]) -> None:
        pass

    def delete(self) -> None:
        pass

    def create_again(self, lines: list[str]) -> None:
        pass


class RecreatedContract:
    """What batches do when their topic is another one of the same name. A module has the fixture ``topic``."""

    def _run(self, topic: Topic, kind: str, *, policy: str = "fail", until: str = "end", **settings: Any) -> Any:
        config = {"kafka.bootstrap": topic.bootstrap, "batch.store": "memory://test", "kafka.on_data_loss": policy}
        return run_topology(word_count(kind, topics=[topic.name], **settings), config=config, clock=topic.clock)

    def _during(self, memory: MemoryBatches, what: str, nth: int, do: Callable[[], None]) -> None:
        left = [nth]

        def hook(at: str, written: str) -> None:
            if (at, written) == ("after", what):
                left[0] -= 1
                if left[0] == 0:
                    do()

        memory.hook = hook

    @KINDS
    def test_a_longer_topic_between_two_runs_is_an_error(self, topic: Topic, memory: MemoryBatches, kind: str) -> None:
        """Its records below the old offset would be passed over: by default the run stops, and commits nothing."""
        topic.write(LINES)
        self._run(topic, kind)
        topic.create_again(LONGER)
        with pytest.raises(DataLossError, match=AGAIN) as error:
            self._run(topic, kind)
        assert "kafka.on_data_loss=earliest" in str(error.value)
        assert values_of(memory.states["counts"], kind) == counted(LINES)

    @KINDS
    @pytest.mark.parametrize("policy", ["earliest", "latest"])
    def test_it_is_read_from_its_beginning_where_that_is_wished(
        self, topic: Topic, memory: MemoryBatches, kind: str, policy: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nothing of the new topic was in a batch, so all of it is counted once; a warning says so."""
        topic.write(LINES)
        self._run(topic, kind)
        topic.create_again(LONGER)
        with caplog.at_level(logging.WARNING):
            self._run(topic, kind, policy=policy, records_max=6)
        assert f"{AGAIN}; starts at its beginning" in caplog.text
        assert values_of(memory.states["counts"], kind) == counted(LINES + LONGER)
        self._run(topic, kind)
        assert values_of(memory.states["counts"], kind) == counted(LINES + LONGER)

    @KINDS
    def test_a_longer_topic_under_a_run_is_an_error(self, topic: Topic, memory: MemoryBatches, kind: str) -> None:
        """Between two batches, with records of the old topic fetched ahead: none of the new one is passed over."""
        topic.write(LINES * 3)
        self._during(memory, "save_ranges", 2, lambda: topic.create_again(LONGER * 4))
        with pytest.raises(DataLossError, match=AGAIN):
            self._run(topic, kind, records_max=3, attempts_max=2)
        assert "new" not in values_of(memory.states["counts"], kind)

    @KINDS
    @pytest.mark.parametrize("longer", [True, False], ids=["longer", "shorter"])
    def test_a_run_goes_on_from_its_beginning_and_ends(
        self, topic: Topic, memory: MemoryBatches, kind: str, longer: bool
    ) -> None:
        """With ``earliest`` all of the new topic is counted once, and a bounded run ends at the end of that one."""
        lines = LONGER * 2 if longer else LONGER[:4]
        topic.write(LINES * 3)
        # By then no batch is stored that is not committed: a replay wants nothing of the old topic.
        self._during(memory, "delete_below", 2, lambda: topic.create_again(lines))
        self._run(topic, kind, policy="earliest", records_max=6)
        memory.hook = lambda at, what: None
        self._run(topic, kind)
        found = values_of(memory.states["counts"], kind)
        assert found["new"] == len(lines)
        assert found["quick"] - counted(lines)["quick"] in (1, 2, 3)

    def test_a_transactional_batch_of_the_old_topic_cannot_come_again(
        self, topic: Topic, memory: MemoryBatches
    ) -> None:
        """It is stored and not committed: the error names it, whatever ``kafka.on_data_loss`` says."""
        topic.write(LINES)
        self._during(memory, "save_ranges", 1, lambda: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            self._run(topic, "transactional")
        memory.hook = lambda at, what: None
        topic.create_again(LONGER)
        with pytest.raises(DataLossError, match=rf"transaction 1 holds the offsets 0 to 1, but {AGAIN}"):
            self._run(topic, "transactional", policy="earliest")
        assert not memory.states["counts"].forms

    def test_a_transactional_batch_of_a_deleted_topic_cannot_come_again(
        self, topic: Topic, memory: MemoryBatches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once the topic has not been there for some time, it is not waited for any more."""
        monkeypatch.setattr("downspout.batches.emitting.GONE_S", 0.5)
        topic.write(LINES)
        self._during(memory, "save_ranges", 1, lambda: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            self._run(topic, "transactional")
        memory.hook = lambda at, what: None
        topic.delete()
        config = {"kafka.bootstrap": topic.bootstrap, "batch.store": "memory://test"}
        topology = word_count("transactional", topics=[topic.name])
        with pytest.raises(DataLossError, match="transaction 1 holds the offsets 0 to 1, but the topic was deleted: "):
            run_topology(topology, config=config, clock=topic.clock, until=None, for_s=60)

    @KINDS
    def test_metadata_without_the_topics_id_is_read(self, topic: Topic, memory: MemoryBatches, kind: str) -> None:
        topic.write(LINES)
        self._run(topic, kind)
        assert all(found.topic_id for ranges in memory.ranges.values() for found in ranges.values())
        for ranges in memory.ranges.values():
            ranges.update({txid: found._replace(topic_id="") for txid, found in ranges.items()})
        topic.write(LINES)
        self._run(topic, kind)
        assert values_of(memory.states["counts"], kind) == counted(LINES * 2)
        assert all(ranges[max(ranges)].topic_id for ranges in memory.ranges.values())

    def test_rows_have_the_id_of_the_topic_that_they_are_of(self, topic: Topic, memory: MemoryBatches) -> None:
        """A sink tells rows apart by it: with the former one, new records would pass for old ones."""
        topic.write(LINES * 3)
        self._during(memory, "delete_below", 2, lambda: topic.create_again(LONGER))
        result = self._run(topic, "opaque", policy="earliest", records_max=6, fields=["value", "origin"])
        ids = {row.value.startswith("new"): set() for row in result.emitted("lines")}
        for row in result.emitted("lines"):
            ids[row.value.startswith("new")].add(row.origin.topic_id)
        assert [len(ids[is_new]) for is_new in (True, False)] == [1, 1]
        assert ids[True] != ids[False]
