"""The schemes of the spout for Kafka 0.8, by name: translators that ``kafka.translator`` knows without a path.

``kafka.translator=["string"]`` gives tuples with the field ``str``. Names of fields and a stream may follow, as with
any translator: ``orders=string(line)@orders``. Text that is no UTF-8 is an error of its record.
"""

from __future__ import annotations

from typing import Any

from downspout.kafka.port import Record


def raw(record: Record) -> list[Any]:
    """``RawMultiScheme``: the value as it is."""
    return [record.value]


def string(record: Record) -> list[Any]:
    """``StringScheme``: the value as text."""
    return [_text(record.value)]


def string_with_topic(record: Record) -> list[Any]:
    """``StringMultiSchemeWithTopic``: the value as text, and the topic."""
    return [_text(record.value), record.topic]


def string_key_value(record: Record) -> list[Any]:
    """``StringKeyValueScheme``: a mapping of the key to the value, both as text; without a key the value alone."""
    text = _text(record.value)
    return [text if record.key is None else {_text(record.key): text}]


def string_with_metadata(record: Record) -> list[Any]:
    """``StringMessageAndMetadataScheme``: the value as text, the partition and the offset."""
    return [_text(record.value), record.partition, record.offset]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


SCHEMES: dict[str, tuple[str, ...]] = {
    "raw": ("bytes",),
    "string": ("str",),
    "string_with_topic": ("str", "topic"),
    "string_key_value": ("str",),
    "string_with_metadata": ("str", "partition", "offset"),
}
"""The fields that each declares."""
