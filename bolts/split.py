"""SplitBolt: splits text into words, each with its own identity.

If all words carried the origin of the line, the sink could not tell a line's second word from a replay of its first.
So word ``i`` carries ``origin.child("split", i)``: the same line split again gives the same words with the same
identities, which makes a replay harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from downspout.component import Bolt
from downspout.ledger.origin import Origin
from downspout.origins import places_among_equals, under


def split_words(text: str) -> list[str]:
    """Return the words of ``text``, which white space separates.

    >>> split_words("to be, or not  to be")
    ['to', 'be,', 'or', 'not', 'to', 'be']
    """
    return text.split()


class SplitBolt(Bolt):
    """Reads the tuple fields ``origin`` and ``value``; emits ``origin`` and ``word``. A null value has no words."""

    outputs: ClassVar[list[str]] = ["origin", "word"]
    requires: ClassVar[tuple[str, ...]] = ("origin", "value")

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Start counting."""
        self._filtered = 0

    def process(self, tup: Any) -> None:
        """Emit each word of the text."""
        words = split_words(tup.values.value or "")
        if not words:
            self._filtered += 1
            return
        origin = Origin.of(tup.values.origin)
        for index, word in enumerate(words):
            self.emit([origin.child(self.component_name, index), word])

    def process_chunk(self, tup: Any) -> None:
        """Emit the words of all texts of a chunk, in their order."""
        texts = tup.values.column("value")
        words = [split_words(text or "") for text in texts.to_pylist()]
        counts = np.fromiter(map(len, words), np.int64, len(words))
        self._filtered += int((counts == 0).sum())
        if not counts.any():
            return
        lines = np.repeat(np.arange(len(words)), counts)
        origins = tup.values.column("origin").take(pa.array(lines))
        origins = under(origins, self.component_name, places_among_equals(lines))
        found = pa.array(list(chain.from_iterable(words)), texts.type)
        self.emit(pa.RecordBatch.from_arrays([origins, found], names=self.outputs))

    def report(self) -> Mapping[str, float]:
        """Return how many texts had no word."""
        return {"filtered": self._filtered}
