"""Spans of OpenTelemetry for records and chunks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from streamparse import Topology

from downspout.component import Bolt
from downspout.engine import Graph, from_class
from downspout.errors import MissingExtraError
from downspout.kafka import TopicPartition
from downspout.run import runner
from downspout.spout import tracing
from downspout.spout.tracing import LINKS_MAX, Tracing
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.command import PYTHON_CODE, cli

ROOT = Path(__file__).resolve().parents[2]
TRACE, SENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SENT}-01".encode()
RECORDS = 40


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


class Checks(Bolt):
    """Takes records, and raises once on each that is bad."""

    outputs: ClassVar[list[str]] = []
    seen: ClassVar[set[int]] = set()

    def process(self, tup: Any) -> None:
        if tup.values.value == "bad" and tup.values.offset not in self.seen:
            self.seen.add(tup.values.offset)
            raise ValueError("secret text")


class Whole(Bolt):
    outputs: ClassVar[list[str]] = []
    takes_chunks = True

    def process(self, tup: Any) -> None:
        pass

    def process_chunk(self, tup: Any) -> None:
        pass


def graph_of(bolt: type[Bolt]) -> Graph:
    """Return the graph of a topology that reads orders into a bolt."""
    spout = KafkaSpout.spec(topics=["orders"], group="shop", fields=["offset", "value"])
    return from_class(type("Orders", (Topology,), {"reader": spout, "bolt": bolt.spec(inputs=[spout])}), "orders")


def run(bolt: type[Bolt], exporter: InMemorySpanExporter, every: int, **config: object) -> Sequence[ReadableSpan]:
    """Run over orders of which number 7 is bad and 8 was sent in a span; return the spans."""
    Checks.seen.clear()
    with FakeKafka("traced") as kafka:
        kafka.create_topic("orders", 1)
        for number in range(RECORDS):
            headers = [("traceparent", PARENT)] if number == 8 else []
            kafka.produce("orders", b"bad" if number == 7 else b"good", partition=0, headers=headers)
        settings = {"kafka.bootstrap": kafka.bootstrap, "kafka.trace_every": every, **config}
        runner.run(graph_of(bolt), overrides=settings, options={"run.until": "end"}, clock=kafka.clock)
    return exporter.get_finished_spans()


@pytest.mark.parametrize("every", [1, 7, 1_000])
def test_each_sampled_record_has_a_span(spans: InMemorySpanExporter, every: int) -> None:
    """One for each try of a record whose offset is a multiple of the setting, with the conventions' attributes."""
    found = run(Checks, spans, every, **{"kafka.emit": "record"})
    offsets = sorted(span.attributes["messaging.kafka.offset"] for span in found if span.attributes)  # type: ignore[type-var]
    assert offsets == sorted([*range(0, RECORDS, every), *([7] if not 7 % every else [])])
    first = next(span for span in found if span.attributes and span.attributes["messaging.kafka.offset"] == 0)
    assert (first.name, first.kind, first.status.status_code) == ("process orders", SpanKind.CONSUMER, StatusCode.UNSET)
    assert first.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "shop",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
    }


def test_a_fail_is_an_error_without_its_text(spans: InMemorySpanExporter) -> None:
    """The span of the try that failed has the exception's name; the text may quote a record. The next try is right."""
    found = run(Checks, spans, 7, **{"kafka.emit": "record"})
    tries = [span for span in found if span.attributes and span.attributes["messaging.kafka.offset"] == 7]
    assert [span.status.status_code for span in tries] == [StatusCode.ERROR, StatusCode.UNSET]
    assert tries[0].attributes is not None
    assert tries[0].attributes["error.type"] == "ValueError"
    assert "secret" not in str(tries[0].to_json())


def test_a_span_is_linked_to_the_one_that_sent_the_record(spans: InMemorySpanExporter) -> None:
    found = run(Checks, spans, 1, **{"kafka.emit": "record"})
    links = {span.attributes["messaging.kafka.offset"]: span.links for span in found if span.attributes}
    assert [offset for offset, linked in links.items() if linked] == [8]
    (link,) = links[8]
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SENT)


def test_a_chunk_has_one_span(spans: InMemorySpanExporter) -> None:
    """It says how many records it holds, and is linked to the spans that sent them."""
    found = run(Whole, spans, 1_000, **{"kafka.emit": "chunk"})
    counts = [span.attributes["messaging.batch.message_count"] for span in found if span.attributes]
    assert sum(count for count in counts if isinstance(count, int)) == RECORDS
    assert len(counts) < RECORDS
    assert [link.context.span_id for span in found for link in span.links] == [int(SENT, 16)]


def test_links_have_a_limit(exporter: InMemorySpanExporter) -> None:
    """A chunk whose records were all sent in spans is linked to the first of them."""
    assert len(tracing.links_of([[("traceparent", PARENT)]] * (LINKS_MAX + 5))) == LINKS_MAX
    assert tracing.links_of([[("traceparent", b"00-no-span")], [("traceparent", b"\xff")], [("other", PARENT)]]) == []


def test_what_has_no_answer_ends_with_the_spout(spans: InMemorySpanExporter) -> None:
    """A span that is open when the spout closes is an error, and is not lost."""

    class Record:
        offset, headers = 0, ()

    traced = Tracing(1, "shop", "reader")
    traced.records(TopicPartition("orders", 0), [Record()], "p/")
    traced.ended(["other"])
    assert spans.get_finished_spans() == ()
    traced.close()
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


def test_without_the_setting_nothing_is_imported() -> None:
    """The spout and the command load no OpenTelemetry."""
    code = (
        "import sys, spouts.kafka, downspout.cli.run, downspout.spout.emit_chunks\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = cli(code, program=PYTHON_CODE)
    assert done.stdout == "[]\n"


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter) -> None:
    """Where OpenTelemetry is not installed, the error says what to install."""
    monkeypatch.delitem(sys.modules, "downspout.spout.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"kafka.trace_every needs.*pip install 'downspout\[otel\]'"):
        run(Checks, spans, 1)
