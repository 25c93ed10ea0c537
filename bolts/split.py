"""SplitBolt: a text in, its words out, each with an identity of its own.

This bolt makes several tuples of one. Were all of them to carry the line's origin, the sink could not tell
a line's second word from a replay of its first. So word ``i`` carries ``origin.child("split", i)``: the same line
split again gives the same words the same identities, and that makes a replay harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from downspout.component import Bolt
from downspout.ledger.origin import Origin


def split_words(text: str) -> list[str]:
    """Return the words of ``text``: what stands between white space, as it is written.

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

    def report(self) -> Mapping[str, float]:
        """Return how many texts had no word."""
        return {"filtered": self._filtered}
