"""Dead letters while a real broker comes and goes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from downspout.errors import BrokerError
from downspout.kafka.deadletter import DeadLetters, read_dead_letters
from downspout.kafka.embedded import EmbeddedKafka
from downspout.kafka.port import cluster_for

pytestmark = pytest.mark.broker

TOMBSTONE = SimpleNamespace(
    topic="orders", partition=2, offset=7, timestamp=1, key=None, value=None, headers=[("trace", b"1")]
)


def _write(letters: DeadLetters) -> None:
    letters.write(TOMBSTONE, attempts=1, first_failure_ms=1, last_failure_ms=2, failure=None)


def test_letters_survive_a_broker_that_is_killed(tmp_path: Path) -> None:
    """A write to a dead broker raises and leaves no thread behind, and one after its return is read, once."""
    before = set(threading.enumerate())
    with EmbeddedKafka(tmp_path) as broker:
        letters = DeadLetters(cluster_for(broker.bootstrap), "dead")
        _write(letters)
        broker.kill()
        for _ in range(2):
            with pytest.raises(BrokerError, match=r"^orders\[2\]@7: .* topic dead: "):
                _write(letters)
        assert set(threading.enumerate()) == before
        broker.start()
        _write(letters)
        letters.close()
        (letter,) = read_dead_letters(cluster_for(broker.bootstrap), "dead")
        assert (letter.origin, letter.letter.value, letter.headers) == (("orders", "", 2, 7), None, [("trace", b"1")])
