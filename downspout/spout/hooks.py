"""A listener of the user's that hears what the spout does: ``kafka.listener``.

It hears, it does not decide: what it raises is logged and changes nothing. It is called on the spout's own thread, so
what takes long there holds everything up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downspout.errors import USER_ERRORS, ConfigError
from downspout.kafka.port import Record, TopicPartition
from downspout.settings.import_path import load
from downspout.spout.partition import Partition

__all__ = ["Hooks", "SpoutListener", "listener_class"]


class SpoutListener:
    """Base of listeners; override what you want to hear. It is made without arguments, once per task.

    With ``kafka.emit=chunk`` it hears of each record of a chunk, which costs as much as tuples of records do.
    """

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """The task begins; ``conf`` and ``context`` are Storm's."""

    def on_emit(self, partition: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        """A tuple is about to leave, for the first time or again."""

    def on_ack(self, partition: TopicPartition, offset: int) -> None:
        """A record is done: acked, without a tuple (a null value), compacted away, or dead-lettered."""

    def on_retry(self, partition: TopicPartition, offset: int) -> None:
        """A record failed or timed out and will be tried again."""

    def on_max_retries(self, record: Record) -> None:
        """A record has failed for good and is in the dead-letter topic now; ``on_ack`` follows."""

    def on_commit(self, offsets: Mapping[TopicPartition, int], error: Exception | None) -> None:
        """A commit has its answer: these are the next offsets to read, or ``error`` says why that is not known.

        After an error the broker may have them all the same. Commits that a transactional KafkaBolt makes, or the
        client by itself (AUTO_COMMIT), and those that NO_GUARANTEE sends, are not heard of.
        """

    def on_partitions_reassigned(self, partitions: frozenset[TopicPartition]) -> None:
        """What this task reads has changed: the full set of its partitions, each with its start decided."""


def listener_class(path: str) -> type[SpoutListener]:
    """Return the class that ``kafka.listener`` names.

    Raises:
        ConfigError: there is none at that path.
    """
    made = load("kafka.listener", path)
    if not (isinstance(made, type) and issubclass(made, SpoutListener)):
        raise ConfigError(f"kafka.listener = {path!r} is not a SpoutListener", cure="a class that inherits from it")
    return made


class Hooks:
    """Calls a listener, and survives what it raises. False where there is none, so that busy code can pass it by."""

    def __init__(self, listener: SpoutListener | None, log: logging.Logger) -> None:
        self._listener = listener
        self._log = log
        self._reported: frozenset[TopicPartition] = frozenset()

    @classmethod
    def of(cls, path: str | None, conf: Mapping[str, Any], context: Mapping[str, Any], log: logging.Logger) -> Hooks:
        """Make the listener that ``kafka.listener`` names.

        Raises:
            ConfigError: there is none at that path, or it does not begin.
        """
        if not path:
            return cls(None, log)
        made = listener_class(path)
        try:
            listener = made()
            listener.initialize(conf, context)
        except USER_ERRORS as error:
            raise ConfigError(f"kafka.listener = {path!r} does not begin: {error!r}", cure="repair it") from error
        return cls(listener, log)

    def __bool__(self) -> bool:
        return self._listener is not None

    def emitted(self, part: Partition, offset: int, values: Sequence[Any]) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._call(self._listener.on_emit, part.tp, offset, values)

    def done(self, part: Partition, offset: int) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._call(self._listener.on_ack, part.tp, offset)

    def retried(self, part: Partition, offset: int) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._call(self._listener.on_retry, part.tp, offset)

    def given_up(self, part: Partition, record: Record) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._call(self._listener.on_max_retries, record)
            self.done(part, record.offset)

    def committed(self, offsets: Mapping[TopicPartition, int], error: Exception | None) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._call(self._listener.on_commit, offsets, error)

    def reassigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Pass it on where it differs from what was passed on last."""
        if self._listener is not None and partitions != self._reported:
            self._reported = partitions
            self._call(self._listener.on_partitions_reassigned, partitions)

    def _call(self, hook: Callable[..., None], *args: Any) -> None:
        try:
            hook(*args)
        except USER_ERRORS:
            self._log.exception("kafka.listener: %s failed", hook.__name__)
