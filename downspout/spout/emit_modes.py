"""The values of ``kafka.emit``: a tuple holds one record, or a chunk of them.

A third mode is a class here, and an emitter beside ``emit_records`` and ``emit_chunks``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from downspout.clock import Clock
from downspout.component import WHY_RECORDS
from downspout.errors import ConfigError
from downspout.kafka.port import Gathering
from downspout.settings.table import SETTINGS, parse_scope
from downspout.spout.emit_records import RecordEmitter, UntrackedEmitter
from downspout.spout.partition import Makers
from downspout.spout.settings import EmitMode
from downspout.spout.tuples import rows_maker, translator_of, tuple_maker

COLUMN_FORMATS = ("utf8", "bytes")
"""The formats of keys and values that have a column of one type."""
GATHER_BYTES, GATHER_MS = 512 * 1024, 125
"""How much a broker gathers for a fetch of chunks, and how long it waits for that at most. A chunk costs 1 to 2 ms
whatever it holds: with 128 KiB, a stream of 20,000 records/s came in 27 fetches a second of four chunks each, at twice
the cost of eight fetches. A spout that lags, or a faster stream, never waits."""
FETCH_BYTES_MAX = {"max_partition_fetch_bytes": 1024 * 1024, "fetch_max_bytes": 50 * 1024 * 1024}
"""The limits of a fetch, and the client's defaults."""


class RecordMode(EmitMode):
    """Each record is a tuple."""

    name: ClassVar[str] = "record"
    columns: ClassVar[bool] = False

    def room(self, settings: Mapping[str, Any], pending_max: int, out: int, in_flight: Callable[[], int]) -> int:
        """See :class:`EmitMode`. Being called says that one more may leave, whatever was counted here."""
        return max(1, pending_max - out)

    def makers(self, settings: Mapping[str, Any], topic: str, topic_id: str) -> Makers:
        """See :class:`EmitMode`."""
        replays = settings["honour_replays"]
        if translator := translator_of(settings, topic):
            return Makers(translator.maker(topic_id, settings["emit_null"], replays), stream=translator.stream)
        formats = (settings["fields"], settings["key_format"], settings["value_format"])
        return Makers(tuple_maker(*formats, topic_id, replays), rows_maker(*formats, topic_id, replays))

    def emitter(self, services: Any, component: str, clock: Clock, **parts: Any) -> RecordEmitter | UntrackedEmitter:
        """See :class:`EmitMode`; without acks to go by, another emitter."""
        if not services.setup.guarantee.tracks:
            return UntrackedEmitter(services, component, clock)
        return RecordEmitter(services, component, clock, **parts)


class ChunkMode(RecordMode):
    """A tuple is a range of records of one partition, as columns; one that fails is split."""

    name: ClassVar[str] = "chunk"
    columns: ClassVar[bool] = True

    def check(self, settings: Mapping[str, Any]) -> None:
        """See :class:`EmitMode`."""
        if settings["guarantee"] != "AT_LEAST_ONCE":
            raise ConfigError(
                f"kafka.emit = chunk goes by acks, which kafka.guarantee = {settings['guarantee']} does not look at",
                cure="kafka.guarantee=AT_LEAST_ONCE, or kafka.emit=record",
            )
        if settings["translator"]:
            raise ConfigError(
                "kafka.translator makes the tuples of single records, and kafka.emit = chunk has none",
                cure="a bolt with process_chunk, or kafka.emit=record",
            )
        for name in ("key_format", "value_format"):
            if settings[name] not in COLUMN_FORMATS:
                raise ConfigError(
                    f"kafka.{name} = {settings[name]} has a type for each record, and a column has one",
                    cure=f"kafka.{name}=utf8 and JsonParseBolt, or kafka.emit=record",
                )

    def check_transactional(self, settings: Mapping[str, Any], sink: str) -> None:
        """See :class:`EmitMode`."""
        if not settings["retries_max"]:
            raise ConfigError(
                f"{sink}: with chunks, a record that fails is found by a retry",
                cure="kafka.retries_max of at least 1, or kafka.emit=record",
            )

    def fit(self, settings: dict[str, Any], pending_max: int) -> dict[str, Any]:
        """See :class:`EmitMode`."""
        if pending_max:  # which counts records; a chunk is not to be more than a part of it
            settings["chunk_records_max"] = max(1, min(settings["chunk_records_max"], pending_max // 2))
        settings["poll_records_max"] = max(settings["poll_records_max"], settings["chunk_records_max"])
        return settings

    def gathering(self, client: Mapping[str, Any]) -> Gathering | None:
        """Return how much a broker gathers for a fetch; None if the user has set the client's own properties for that.

        Never more than half of what a fetch may bring: a broker that cannot reach the number waits in vain each time.

        >>> ChunkMode().gathering({}), ChunkMode().gathering({"max_partition_fetch_bytes": 65536})
        (Gathering(min_bytes=524288, wait_ms=125), Gathering(min_bytes=32768, wait_ms=125))
        """
        if "fetch_min_bytes" in client or "fetch_max_wait_ms" in client:
            return None
        most = min(int(client.get(name, default)) for name, default in FETCH_BYTES_MAX.items())
        return Gathering(max(1, min(GATHER_BYTES, most // 2)), GATHER_MS)

    def room(self, settings: Mapping[str, Any], pending_max: int, out: int, in_flight: Callable[[], int]) -> int:
        """See :class:`EmitMode`. Storm counts each chunk as one tuple; here, their records count."""
        chunk: int = settings["chunk_records_max"]
        return max(0, -((in_flight() - pending_max) // chunk))

    def makers(self, settings: Mapping[str, Any], topic: str, topic_id: str) -> Makers:
        """See :class:`EmitMode`."""
        from downspout.spout.emit_chunks import ChunkMaker  # which loads Arrow

        formats = (settings["fields"], settings["key_format"], settings["value_format"])
        make_chunk = ChunkMaker(*formats, topic_id, settings["honour_replays"])
        return super().makers(settings, topic, topic_id)._replace(make_chunk=make_chunk)

    def emitter(self, services: Any, component: str, clock: Clock, **parts: Any) -> RecordEmitter:
        """See :class:`EmitMode`."""
        from downspout.spout.emit_chunks import ChunkEmitter

        return ChunkEmitter(services, component, clock, **parts)


RECORDS, CHUNKS = RecordMode(), ChunkMode()
MODES: dict[str, EmitMode] = {mode.name: mode for mode in (RECORDS, CHUNKS)}


def mode_of(settings: Mapping[str, Any]) -> EmitMode:
    """Return the mode that settings of the scope ``kafka`` name; ``auto`` that nobody has resolved means records."""
    return MODES.get(settings["emit"], RECORDS)


def choose_mode(conf: Mapping[str, Any], component: str, foreign_serializer: str) -> tuple[EmitMode, str]:
    """Return the mode of a spout by its configuration; and the reason, if ``auto`` means records.

    On Storm the topology was looked at when it was submitted (``downspout.wire.specs``). A spout that nothing has
    looked at emits records.

    Raises:
        ConfigError: chunks are asked for, on a pipe of Storm's whose serializer is not ours.
    """
    wanted: str = SETTINGS["kafka.emit"].parse(conf.get("kafka.emit"), "topology")
    if wanted in MODES:
        mode = MODES[wanted]
        if mode.columns and foreign_serializer:
            raise ConfigError(
                f"kafka.emit = {wanted}: {foreign_serializer} cannot send columns",
                cure="streamparse's JSON serializer, or kafka.emit=record",
            )
        return mode, ""
    if foreign_serializer:
        return RECORDS, f"{foreign_serializer} cannot send columns"
    why = (conf.get(WHY_RECORDS) or {}).get(component)
    if why is None:
        return RECORDS, ""
    why = why or why_records(parse_scope(conf, "kafka"), conf.get("run.records"))
    return (RECORDS, why) if why else (CHUNKS, "")


def why_records(settings: Mapping[str, Any], run_records: object = None) -> str:
    """Return which of its settings makes a spout emit records; empty: it may emit chunks.

    Args:
        settings: those of the scope ``kafka``, parsed.
        run_records: the value of ``run.records``.
    """
    try:
        CHUNKS.check(settings)
    except ConfigError as error:
        return error.message.replace("kafka.emit = chunk", "a chunk")
    if settings["retries_max"] == 0:
        return "with kafka.retries_max = 0 nothing finds the record of a chunk that fails"
    return "run.records counts tuples" if run_records else ""
