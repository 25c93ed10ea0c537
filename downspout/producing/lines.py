"""Lines as records, and their way to Kafka: what ``downspout kafka produce`` does.

A line goes the way of a tuple, through :class:`~downspout.producing.sending.Sending`: it is written when the broker has
answered, and one that is refused is named, alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import errors

from downspout.clock import Clock
from downspout.errors import BrokerError, RecordError
from downspout.formatting import counted
from downspout.kafka.port import ProducerPort
from downspout.producing.mapper import Headers, Outgoing
from downspout.producing.sending import ASYNCHRONOUS, Sending

STALL_S = 2.0
"""Once a line has waited so long for its answer, no others are taken for a moment."""


class UnansweredError(BrokerError):
    """The brokers have not answered in time; says for which lines."""


class LongLineError(ValueError):
    """A line is longer than any record may be; says so."""


def split_lines(pieces: Iterator[bytes], size_max: int) -> Iterator[bytes]:
    r"""Yield the lines of bytes that come in pieces, without their ends (a line feed, or a return before it).

    Raises:
        LongLineError: there are more bytes without an end of a line.

    >>> list(split_lines(iter([b"a\r\nb", b"c\n", b"\nd"]), 9))
    [b'a', b'bc', b'', b'd']
    """
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        held.append(first)
        size += len(first)
        if size > size_max:
            raise LongLineError(f"a line of more than {size_max:,} bytes")
        if rest:
            yield b"".join(held).removesuffix(b"\r")
            for line in rest[:-1]:
                yield line.removesuffix(b"\r")
            held, size = [rest[-1]], len(rest[-1])
    if size:
        yield b"".join(held).removesuffix(b"\r")


def plain_record(line: bytes, separator: bytes | None = None, *, tombstones: bool = False) -> Outgoing:
    """Return the record of a line: key and value, or the value alone.

    Args:
        line: without its end.
        separator: stands between key and value, where it is found first.
        tombstones: an empty value is a null.

    Raises:
        ValueError: the separator is not in it.

    >>> plain_record(b"k=v=w", b"=")[:2], plain_record(b"a b")[:2], plain_record(b"k=", b"=", tombstones=True)[:2]
    ((b'k', b'v=w'), (None, b'a b'), (b'k', None))
    """
    key, value = None, line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"this line does not contain {separator.decode(errors='backslashreplace')!r}")
    return Outgoing(key, None if tombstones and not value else value)


class Line(NamedTuple):
    """A line on its way."""

    number: int  # from 1
    size: int  # bytes of key and value


class LineWriter:
    """Sends the lines of one source to one topic; to :class:`Sending` it is what a bolt is.

    Args:
        producer: the port; it is closed with this.
        topic: where all goes.
        source: the name of the file, for errors.
        settings: the scope ``produce``.
        refused: hears of each line that is not written, with the reason.
        clock: what time is.
    """

    component_name = ""  # errors begin with the line

    def __init__(
        self,
        producer: ProducerPort,
        topic: str,
        source: str,
        settings: Mapping[str, Any],
        refused: Callable[[RecordError], None],
        clock: Clock,
    ) -> None:
        self._topic, self._source, self._refused = topic, source, refused
        self._request_max: int = settings["request_bytes_max"]
        self.unanswered: list[int] = []  # numbers of lines
        self.sending = Sending(
            producer, self, clock, logging.getLogger("downspout.producing"), mode=ASYNCHRONOUS,
            buffer_bytes=settings["buffer_bytes"], age_s_max=STALL_S, one_topic=True,
        )  # fmt: skip

    def send(self, number: int, record: Outgoing, headers: Headers = (), partition: int | None = None) -> None:
        """Send the record of a line; headers and partition are those of lines that name none.

        Raises:
            BrokerError: nothing can be written any more, or the brokers do not answer.
        """
        size = len(record.key or b"") + len(record.value or b"")
        record = record._replace(
            headers=[*headers, *record.headers], partition=partition if record.partition is None else record.partition
        )
        self.sending.send(Line(number, size), self._topic, record)
        self._check()

    def rest(self) -> None:
        """Send what lingers, and take answers, while there is nothing to be sent.

        Raises:
            BrokerError: as for :meth:`send`.
        """
        self.sending.hand_over()
        self._check()

    def finish(self, timeout_s: float) -> None:
        """Wait for all answers, at most so long, and release the producer.

        Raises:
            BrokerError: some did not come, or nothing can be written any more.
        """
        self.sending.close(timeout_s)
        self._check()

    @property
    def refused(self) -> int:
        """How many lines the brokers do not take."""
        return self.sending.refused - len(self.unanswered)

    def _check(self) -> None:
        """Raise if lines got no answer in time: the next ones would get none either."""
        if not (lines := self.unanswered):
            return
        where = f"{self._source}:{min(lines)}" + (f" to {max(lines)}" if len(lines) > 1 else "")
        raise UnansweredError(
            f"{where}: the brokers have not answered in time for {counted(len(lines), 'record')}, which may have been "
            "written",
            cure=f"see whether the brokers run, look at the end of {self._topic}, and send what is missing",
        )

    # --- what Sending needs -----------------------------------------------------------------------------

    def ack_many(self, tups: Sequence[Any]) -> None:
        """Hear that lines are written; Sending counts them."""

    def fail_because(self, tup: Line, error: Exception) -> None:
        """Hear that a line is not written."""
        cause = error.__context__
        if isinstance(cause, errors.KafkaTimeoutError | errors.IllegalStateError):  # the latter: at the end
            self.unanswered.append(tup.number)
            return
        if isinstance(cause, errors.MessageSizeTooLargeError):
            error = self._too_large(tup)
        assert isinstance(error, RecordError)
        self._refused(error)

    def _too_large(self, line: Line) -> RecordError:
        limit, cure = f"topic {self._topic}", f"a smaller record, or a higher max.message.bytes of {self._topic}"
        if line.size >= self._request_max:
            limit = f"a request, which holds {self._request_max:,}"
            cure = "a smaller record, with a reference to large data; or --set produce.request_bytes_max=…"
        return RecordError(
            f"{self.place_of(line, None)}a record of {line.size:,} bytes is too large for {limit}", cure=cure
        )

    def place_of(self, tup: Any, row: int | None) -> str:
        """Name a line."""
        return f"{self._source}:{tup.number}: "
