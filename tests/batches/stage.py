"""A StateBolt as an engine would build it, and tuples as a coordinator and a bolt would emit them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from pystorm.component import Tuple

from bolts.state import StateBolt
from downspout.batches import BATCH, COMMIT, CONTROL, FIELDS, SUCCESS, Attempt


class Word(NamedTuple):
    attempt: Any
    word: str
    size: int | None = 1
    group: str = "all"


class Stage:
    """One task of a StateBolt, and what it did with tuples.

    Args:
        store: the URL of its store.
        cls: its class.
        control: the streams of the coordinator that it hears.
        conf: its settings, with ``__`` for the dot.
    """

    def __init__(
        self, store: str, cls: type[StateBolt] = StateBolt, control: Sequence[str] = CONTROL, **conf: Any
    ) -> None:
        self.acked: list[str] = []
        self.failed: dict[str, str] = {}
        self.emitted: list[list[Any]] = []
        self.anchors: list[list[str]] = []  # the ids of what each of these is anchored to
        self._ids = 0
        bolt: Any = cls(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
        bolt.component_name, bolt.task_id = "counts", 3
        bolt.ack = lambda given: self.acked.append(str(getattr(given, "id", given)))
        bolt.fail = lambda given: self.failed.setdefault(given.id, "")
        bolt.fail_because = lambda tup, error: self.failed.__setitem__(tup.id, str(error))
        bolt.emit = self._take
        settings: dict[str, Any] = {
            "topology.name": "t",
            "state.store": store,
            "state.key": ["word"],
            "state.update": "count",
        }
        settings["state.exactly_once"] = False
        settings |= {key.replace("__", "."): value for key, value in conf.items()}
        heard = {stream: list(FIELDS[stream]) for stream in control}
        fields = {"split": {"default": list(Word._fields)}, "batches": heard}
        bolt.initialize(settings, {"source->stream->fields": fields})
        self.bolt: StateBolt = bolt

    def _take(self, values: Sequence[Any], anchors: Sequence[Tuple]) -> None:
        self.emitted.append(list(values))
        self.anchors.append([tup.id for tup in anchors])

    def send(self, stream: str, values: Any) -> str:
        self._ids += 1
        name = f"{stream} {self._ids}"
        self.bolt.process(Tuple(name, "split", stream, 2, values))
        return name

    def words(self, attempt: Attempt, *words: str) -> list[str]:
        """Give it words of a batch; return the ids of the tuples."""
        return [self.send("default", Word(attempt, word, len(word))) for word in words]

    def begin(self, attempt: Attempt) -> str:
        return self.send(BATCH, (attempt, 1, []))

    def commit(self, attempt: Attempt) -> bool:
        name = self.send(COMMIT, (attempt, 1))
        assert (name in self.acked) != (name in self.failed)
        return name in self.acked

    def succeed(self, attempt: Attempt) -> None:
        self.send(SUCCESS, (attempt, 1))

    def batch(self, attempt: Attempt, *words: str) -> bool:
        """Let a batch come, and commit; return whether that was acked."""
        self.begin(attempt)
        self.words(attempt, *words)
        return self.commit(attempt)

    def stored(self) -> dict[str, Any]:
        return {key[0]: value for key, value in self.bolt.state.read_all().items()}
