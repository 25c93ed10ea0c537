"""Spans of OpenTelemetry: one for each try of a sampled record, or of a chunk, from its emit to its ack or fail.

Which records are sampled is decided by their offsets (``kafka.trace_every``), so it costs next to nothing to find
them, and a retry of a sampled record has a span too. A span names the record by the messaging conventions, and is
linked to the span that sent it, where the record has a header ``traceparent`` (W3C Trace Context); that of a chunk to
those of its first LINKS_MAX records that have one.

Where spans go is said by OpenTelemetry's own variables, or by the tracer provider that the program has set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from downspout.kafka.columns.wire import decoded_headers
from downspout.ledger.origin import range_id
from downspout.protocols import Failure

if TYPE_CHECKING:
    from downspout.kafka.columns import RecordColumns
    from downspout.kafka.port import TopicPartition

LINKS_MAX = 128  # As many as the SDK keeps by default
FLUSH_MS = 2_000
HEADERS = ("traceparent", "tracestate")


class Tracing:
    """The spans of one spout."""

    def __init__(self, every: int, group: str, name: str) -> None:
        self.every = every  # one of so many records
        self._tracer = _provider(name).get_tracer("downspout")
        self._fixed = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": group,
        }
        self._open: dict[str, Span] = {}

    # --- what leaves ---

    def records(self, place: TopicPartition, records: Sequence[Any], prefix: str) -> None:
        """Begin the spans of those among records that are sampled; their message ids begin with ``prefix``."""
        every = self.every
        if every > 1 and records[-1].offset // every * every < records[0].offset:
            return
        for record in records:
            if not record.offset % every:
                self._begin(place, record.offset, prefix + str(record.offset), links_of([record.headers]))

    def chunk(self, place: TopicPartition, rows: RecordColumns, prefix: str) -> None:
        """Begin the span of a chunk."""
        start, end = int(rows.offsets[0]), int(rows.offsets[-1]) + 1
        headers = rows.wire_headers() if rows.may_have_header(HEADERS[0]) else ()
        links = links_of(decoded_headers(each.as_py()) for each in headers)
        self._begin(place, start, prefix + range_id(start, end), links, {"messaging.batch.message_count": len(rows)})

    def _begin(
        self, place: TopicPartition, offset: int, tup_id: str, links: list[Link], more: dict[str, Any] | None = None
    ) -> None:
        attributes = {
            **self._fixed,
            "messaging.destination.name": place.topic,
            "messaging.destination.partition.id": str(place.partition),
            "messaging.kafka.offset": offset,
            **(more or {}),
        }
        self._open[tup_id] = self._tracer.start_span(
            f"process {place.topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )

    # --- what comes back ---

    def ended(self, tup_ids: Iterable[str]) -> None:
        """End the spans of what was acked."""
        if self._open:
            for tup_id in self._open.keys() & tup_ids:
                self._open.pop(tup_id).end()

    def failed(self, tup_id: str, failure: Failure | None) -> None:
        """End the span of what failed, with the kind of its error: the text may quote the record."""
        if (span := self._open.pop(tup_id, None)) is not None:
            kind = "fail" if failure is None else (failure.error or failure.kind).partition(":")[0]
            span.set_attribute("error.type", kind)
            span.set_status(StatusCode.ERROR)
            span.end()

    def close(self) -> None:
        """End what is open: it was given up. Send what is to be sent."""
        for tup_id in [*self._open]:
            self.failed(tup_id, Failure("unanswered"))
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(FLUSH_MS)


def links_of(headers: Iterable[Iterable[tuple[str, bytes]]]) -> list[Link]:
    """Return links to the spans that sent these records."""
    found: list[Link] = []
    for each in headers:
        carrier = {key: value.decode("ascii", "replace") for key, value in each if key in HEADERS and value}
        if HEADERS[0] in carrier and (sent := trace.get_current_span(extract(carrier)).get_span_context()).is_valid:
            found.append(Link(sent))
            if len(found) == LINKS_MAX:
                break
    return found


def _provider(name: str) -> trace.TracerProvider:
    """Return the tracer provider of the program; where it has none, one that exports by OTLP."""
    if isinstance(found := trace.get_tracer_provider(), trace.ProxyTracerProvider):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        given = OTELResourceDetector().detect()
        own = {} if SERVICE_NAME in given.attributes else {SERVICE_NAME: name}
        made = TracerProvider(resource=Resource.create(own))
        made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(made)
        return made
    return found
