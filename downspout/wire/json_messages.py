"""pystorm's serializer interface over a :class:`~downspout.wire.pipe.Pipe` and :mod:`downspout.wire.values`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pystorm.serializers.json_serializer import JSONSerializer
from pystorm.serializers.serializer import Serializer

from downspout.errors import DownspoutError, TopologyError
from downspout.wire.chunks import ChunkSplitter, SharedIds, is_part, is_share
from downspout.wire.pipe import Lock, Pipe
from downspout.wire.side_streams import arriving, whole
from downspout.wire.values import QUOTED_MARK, Encoder, parse, plain, restore

SYNC = b'{"command":"sync"}'
"""Sent at once, since Storm waits for it; so is an error, after which the component may exit."""
ANSWERS = frozenset({"ack", "fail"})
TEXTS = frozenset({"log", "error"})
"""Commands whose message is for people: lone surrogates are escaped, not marked."""
ALIVE_S = 1.0
"""No heartbeat is read while a chunk's records are handed out. Storm accepts any message as a sign of life
(``ShellBolt.BoltReaderRunnable``), so a sync is sent at this interval."""
BEYOND_INT = 2**32
"""Added to the task of a direct emit. Storm 2.8 casts the number from its JSON parser to a Long, which ends the worker
with a ClassCastException unless the number exceeds 32 bits; then it keeps the lowest 32 bits."""


class WireError(DownspoutError, TypeError):
    """A value of a tuple cannot travel over Storm's pipe. Names stream and field."""


class WireSerializer(Serializer):
    """pystorm's serializer for one component."""

    def __init__(self, source: Any, sink: Any, reader_lock: Lock, writer_lock: Lock) -> None:
        super().__init__(source, sink, reader_lock, writer_lock)
        self.pipe = Pipe(source, sink, reader_lock, writer_lock)
        self.encoder = Encoder()
        self.fields: Mapping[str, Sequence[str]] = {}  # by output stream of the component
        self.whole: frozenset[str] = frozenset()  # output streams that carry whole chunks
        self.takes_chunks: Callable[[], bool] = lambda: False
        """whether the component receives chunks instead of their records"""
        self.shares = SharedIds()
        self._parts = ChunkSplitter()
        self._hands_out = self._is_apart = False
        """whether records of a chunk are queued, and whether a chunk was ever split: these keep plain records fast"""
        self._arriving: frozenset[tuple[str, str]] = frozenset()
        self._alive_at = 0.0
        self.owns_process = False
        """the streams are the process's stdin and stdout, so the process runs only this component"""

    @classmethod
    def instead_of(cls, stock: JSONSerializer) -> WireSerializer:
        """Take over the streams of pystorm's serializer."""
        # The process's stdin and stdout move to private descriptors: output of the component, or of a program that it
        # starts, goes to stderr (Storm's log) and never between two messages.
        source, sink = stock.input_stream.detach(), stock.output_stream.detach()
        made = cls(_private(source, 0), _private(sink, 1), stock._reader_lock, stock._writer_lock)
        if made.pipe.sink is not sink:
            made.output_stream = sys.stdout  # makes pystorm log what is printed
            made.owns_process = True
        return made

    def learn(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the streams, their fields and the streams that carry chunks from Storm's handshake."""
        self.fields = context.get("stream->outputfields") or {}
        self.whole = whole(conf, context)
        self._arriving = arriving(conf)

    # --- reading ---

    def read_message(self) -> Any:
        """Return the next message, or the next record of a chunk that is being split.

        Raises:
            StormWentAwayError: Storm has closed its end.
        """
        while True:
            if self._hands_out and (part := self._next_part()) is not None:
                return part
            data = self.pipe.read()
            if QUOTED_MARK not in data:
                return parse(data)
            message: Any = parse(data)
            if self._is_chunk(message):
                message = self._take_chunk(message)
            else:
                message = restore(message)
                if is_share(message) and (message := self.shares.answer(message)) is None:
                    self.pipe.write(SYNC, now=True)  # Storm waits for the answer to each command
            if message is not None:
                return message

    def _is_chunk(self, message: Any) -> bool:
        """Return whether a message, with its marks still in place, is a chunk."""
        if type(message) is not dict or (message.get("comp"), message.get("stream")) not in self._arriving:
            return False
        from downspout.wire.chunks import is_packed

        return is_packed(message.get("tuple"))

    def _take_chunk(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the chunk if the component takes chunks; otherwise queue its records and return None."""
        from downspout.origins import rows_of
        from downspout.wire.chunks import unpack

        try:
            batch = unpack(message["tuple"])
        except ValueError as error:  # perhaps written by another version of Arrow
            self.send_message({"command": "error", "msg": f"a chunk of {message['comp']} cannot be read: {error}"})
            self.send_message({"command": "fail", "id": message["id"]})
            return None
        if not batch.num_rows:
            self.send_message({"command": "ack", "id": message["id"]})
            return None
        if self.takes_chunks():
            return {**message, "tuple": batch}
        self._parts.take_apart(message, rows_of(batch), batch.num_rows)
        self._hands_out = self._is_apart = True
        self._alive_at = time.monotonic()
        return None

    def _next_part(self) -> dict[str, Any] | None:
        """Return the next record of a chunk; flush old messages, and send Storm a sign of life when it is due."""
        if (part := self._parts.next()) is None:
            self._hands_out = False
            return None
        if time.monotonic() - self._alive_at > ALIVE_S:
            self.pipe.write(SYNC, now=True)
            self._alive_at = time.monotonic()
        else:
            self.pipe.flush_old()
        return part

    # --- writing ---

    def send_message(self, msg_dict: dict[str, Any]) -> None:
        """Send a message, perhaps buffered for a moment.

        Raises:
            WireError: a value of an emit cannot travel.
            TopologyError: the stream of an emit has another number of fields.
            StormWentAwayError: Storm has closed its end.
        """
        command = msg_dict.get("command")
        if command == "emit":
            if self._is_apart and (anchors := msg_dict.get("anchors")):
                msg_dict = {**msg_dict, "anchors": self._parts.anchors(anchors)}
            self.send_emit(msg_dict)
            return
        if command in ANSWERS and is_part(msg_dict["id"]):
            with self._writer_lock:
                settled = self._parts.settle(msg_dict["id"], failed=command == "fail")
            if settled is None:
                return
            msg_dict = {**msg_dict, "id": settled}
        if command == "sync":
            self.pipe.write(SYNC, now=True)
            return
        if command in TEXTS:
            msg_dict = {**msg_dict, "msg": str(msg_dict.get("msg")).encode("utf-8", "backslashreplace").decode()}
        with self._writer_lock:
            self.pipe.write(self.encoder.encode(msg_dict), now=command == "error")

    def send_emit(self, message: dict[str, Any]) -> None:
        """Send an emit; raises as :meth:`send_message`."""
        values = message["tuple"]
        fields = self.fields.get(message.get("stream") or "default")
        if fields is not None and len(fields) != len(values):
            raise TopologyError(
                f"an emit to stream {message.get('stream') or 'default'!r} has {len(values)} values; the stream has "
                f"{len(fields)} fields ({', '.join(fields)})",
                cure="emit one value per field",
            )
        if "task" in message:
            message = {**message, "task": message["task"] + BEYOND_INT}
        with self._writer_lock:
            try:
                data = self.encoder.encode(message)
            except (TypeError, RecursionError) as error:
                raise self._culprit(message, fields, error) from error
            self.pipe.write(data)

    def _culprit(self, message: Mapping[str, Any], fields: Sequence[str] | None, error: Exception) -> WireError:
        for index, value in enumerate(message["tuple"]):
            try:
                plain(value)
            except (TypeError, RecursionError):
                field = fields[index] if fields is not None else f"number {index}"
                where = f"stream {message.get('stream') or 'default'!r}, field {field}"
                return WireError(f"{where}: {error}", cure="a JSON value, bytes, a Decimal or a datetime")
        return WireError(f"a message cannot be sent: {error}")

    def flush(self) -> None:
        """Send all buffered messages."""
        self.pipe.flush()

    def serialize_dict(self, msg_dict: dict[str, Any]) -> str:
        """Return a message with its end, as pystorm's serializer does."""
        return self.encoder.encode(msg_dict).decode() + "\nend\n"


def _private(stream: Any, number: int) -> Any:
    """Replace the process's stdin (0) or stdout (1) by a private stream; return any other stream unchanged."""
    try:
        if stream.fileno() != number:
            return stream
    except (AttributeError, OSError, ValueError):
        return stream
    own = os.dup(number)
    instead = os.open(os.devnull, os.O_RDONLY) if number == 0 else 2
    os.dup2(instead, number)
    if instead != 2:
        os.close(instead)
    return os.fdopen(own, "rb" if number == 0 else "wb", buffering=0)
