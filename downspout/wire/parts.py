"""Chunks that are taken apart: on the reader's side into its records, on the emitter's into tuples of their own.

*Reading.* To a bolt that knows only records a chunk is a row of tuples, with ids that name the row and the chunk. It
acks, fails and anchors to them as to any other; Storm hears of the chunk alone: an ack when each of its records has
been acked, a fail when the first has failed. Records of a failed chunk that were not handed out yet are dropped, since
the whole chunk comes again. Storm's ShellBolt ends the worker when it gets two answers for one id, or an anchor that
was settled; so late ones are dropped here, as in the local engine.

The reader opens a chunk before it hands the first record out, and only what is open is settled. So a thread that acks
(TicklessBatchingBolt's) finds it there, or settles nothing.

*Emitting.* A spout's chunk that cannot go whole leaves as records under an id that they share, and that is used
once: the answers to an earlier emit of the same chunk must not count for a later one. The spout hears of its own id,
once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from downspout.wire.values import MARK

PART = f"{MARK}part:"  # Storm's ids are numbers


class Parts:
    """The chunks of one bolt that are taken apart."""

    def __init__(self) -> None:
        self._open: dict[str, bytearray] = {}  # by id: of each record, whether its ack is outstanding
        self._left: dict[str, int] = {}
        self._coming: Iterator[dict[str, Any]] = iter(())

    def take_apart(self, message: dict[str, Any], rows: Iterable[tuple[Any, ...]], count: int) -> None:
        """Hand the records of a chunk out, one with each :meth:`next`."""
        whole = message["id"]
        self._left[whole] = count
        self._open[whole] = bytearray(b"\1" * count)
        self._coming = self._messages(message, whole, rows)

    def _messages(self, message: dict[str, Any], whole: str, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for row, values in enumerate(rows):
            if row and whole not in self._open:
                return  # it has failed
            yield {**message, "id": f"{PART}{row}:{whole}", "tuple": list(values)}

    def next(self) -> dict[str, Any] | None:
        """Return the next record as Storm's message; None where none waits."""
        return next(self._coming, None)

    def settle(self, part: str, failed: bool) -> str | None:
        """Take the answer to one record; return the chunk's id if that is the answer to the chunk.

        >>> parts = Parts()
        >>> parts.take_apart({"id": "17"}, [("a",), ("b",)], 2)
        >>> first, second = parts.next()["id"], parts.next()["id"]
        >>> parts.settle(first, failed=False), parts.settle(first, failed=False), parts.settle(second, failed=False)
        (None, None, '17')
        """
        row, whole = _split(part)
        waits = self._open.get(whole)
        if waits is None:
            return None
        if not failed:
            self._left[whole] -= waits[int(row)]
            waits[int(row)] = 0
            if self._left[whole]:
                return None
        del self._open[whole], self._left[whole]
        return whole

    def anchors(self, given: Iterable[Any]) -> list[Any]:
        """Return the ids that Storm knows for these; a chunk once, and none that is settled."""
        found: dict[Any, None] = {}
        for anchor in given:
            if not is_part(anchor):
                found[anchor] = None
            elif (whole := _split(anchor)[1]) in self._open:
                found[whole] = None
        return list(found)


def is_part(tup_id: Any) -> bool:
    """Return whether an id is that of a chunk's record."""
    return type(tup_id) is str and tup_id.startswith(PART)


def _split(part: str) -> tuple[str, str]:
    """Return the row, and the id of the chunk."""
    row, _, whole = part.removeprefix(PART).partition(":")
    return row, whole


class Shares:
    """The chunks of one spout that left as records."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._out: dict[str, tuple[Any, int]] = {}

    def open(self, tup_id: Any, count: int) -> str:
        """Return the id that the records of a chunk share."""
        share = f"{MARK}share:{next(self._numbers)}"
        self._out[share] = (tup_id, count)
        return share

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the spout is to hear of an ack or fail; None: nothing.

        >>> shares = Shares()
        >>> share = shares.open("a chunk", 2)
        >>> shares.answer({"command": "ack", "id": share}), shares.answer({"command": "ack", "id": share})
        (None, {'command': 'ack', 'id': 'a chunk'})
        """
        share = message["id"]
        if share not in self._out:
            return None  # another of its records has failed
        tup_id, left = self._out[share]
        if message["command"] == "ack" and left > 1:
            self._out[share] = (tup_id, left - 1)
            return None
        del self._out[share]
        return {**message, "id": tup_id}


def is_share(message: Any) -> bool:
    """Return whether a message answers to records that share an id."""
    return (
        type(message) is dict
        and message.get("command") in ("ack", "fail")
        and type(message.get("id")) is str
        and message["id"].startswith(f"{MARK}share:")
    )
