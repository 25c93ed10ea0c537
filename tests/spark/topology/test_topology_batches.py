"""Topologies of batches on a real Spark: micro-batches are applied to the states of a StateBolt, each once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from bolts.split import split_words
from downspout.batches import read_state
from downspout.errors import DownspoutError
from tests.spark.topology.scene import Scene, lines_of

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]
WORDS = "topologies.batch_word_count:BatchWordCount"


def counts(folder: Path) -> dict[str, int]:
    return {key[0]: value for key, value in read_state(f"sqlite:///{folder}/counts.db", "counts").items()}


def plain(scene: Scene) -> Counter[str]:
    return Counter(word for line in scene.sent for word in split_words(line))


@pytest.mark.sweep
def test_kill_minus_nine_changes_no_count(scene: Scene) -> None:
    """Driver, JVM and workers killed in the middle of a batch: a restart ends in a plain count, each word exact."""
    scene.send(*lines_of(400))
    driver = scene.start("--records-per-batch", "20", "--quiet", target=WORDS)
    try:
        scene.wait_for_batches(driver, 2)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert 0 < sum(counts(scene.path).values()) < sum(plain(scene).values())
    scene.run(WORDS, records_per_batch=100)
    assert counts(scene.path) == plain(scene)


@pytest.mark.sweep
def test_a_state_belongs_to_its_checkpoint(scene: Scene) -> None:
    """Another checkpoint numbers its batches anew: it is refused, and its batches are not taken for those applied."""
    scene.send("to be", "or not to be")
    scene.run(WORDS)
    assert counts(scene.path) == plain(scene)
    with pytest.raises(DownspoutError, match="counts belongs to the batches of query"):
        scene.run(WORDS, checkpoint="another")
    scene.run(WORDS, "state.name=again", checkpoint="another")
    again = read_state(f"sqlite:///{scene.path}/counts.db", "again")
    assert {key[0]: value for key, value in again.items()} == counts(scene.path) == plain(scene)
