"""Runs for tests of the page: a topology on FakeKafka in a thread, and made-up metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson
import urllib3
from streamparse import Topology

from downspout.clock import SYSTEM_CLOCK
from downspout.component import Bolt
from downspout.engine import Counts, Engine, Graph, RunResult, from_class, resolve
from downspout.run import Several, runner
from downspout.testing import FakeKafka
from downspout.web import served
from spouts.kafka import KafkaSpout
from tests.waiting import eventually

TOPIC, GROUP = "orders", "shop"
SCRIPT = "<script>document.title = 'run by a record'</script><img src=x onerror=\"document.title='by an image'\">"
FOR_EVER = dict.fromkeys(("kafka.retry_delay_ms", "kafka.retry_delay_ms_max"), 3_600_000)
WAIT_S = 120.0


class CheckBolt(Bolt):
    """Hands a value on, and raises on one that begins with ``<``."""

    outputs: ClassVar[list[str]] = ["origin", "value"]

    def process(self, tup: Any) -> None:
        if tup.values.value.startswith("<"):
            raise ValueError(f"no order: {tup.values.value}")
        self.emit([tup.values.origin, tup.values.value])


class CountBolt(Bolt):
    outputs: ClassVar[list[str]] = []
    requires: ClassVar[tuple[str, ...]] = ("origin",)
    count = 0

    def process(self, tup: Any) -> None:
        self.count += 1


class Shop(Topology):
    reader = KafkaSpout.spec(topics=[TOPIC], group=GROUP, start="EARLIEST", fields=["origin", "value"])
    check = CheckBolt.spec(inputs=[reader])
    count = CountBolt.spec(inputs=[check], par=2)


@dataclass
class Running:
    """A run that is under way, and its page."""

    url: str
    engine: list[Engine] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def get(self, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
        return urllib3.request("GET", self.url + path, headers=headers, timeout=30.0, retries=False)

    def api(self, name: str) -> Any:
        answer = self.get(f"api/{name}")
        assert answer.status == 200, answer.data
        return orjson.loads(answer.data)

    def until(self, holds: Callable[[Any], bool], name: str = "run", wait_s: float = WAIT_S) -> Any:
        """Wait until an answer of the API is as it should be; return it."""
        end, found = time.monotonic() + wait_s, None
        while time.monotonic() < end:
            assert not self.errors, self.errors
            try:
                found = self.api(name)
            except urllib3.exceptions.TimeoutError:  # a machine that does much else
                continue
            if (name != "run" or "totals" in found) and holds(found):
                return found
            time.sleep(0.1)
        raise AssertionError(f"api/{name} did not come to be so: {found}")

    def stop(self) -> RunResult:
        for engine in self.engine:
            engine.stop()
        eventually(lambda: self.results or self.errors, WAIT_S)
        assert not self.errors, self.errors
        return self.results[0]


class _Noting:
    """The view behind the page's: it lets the test stop the engine."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def update(self, engine: Engine) -> None:
        if not self._running.engine:
            self._running.engine.append(engine)

    def look(self, now: float, take: Callable[[], Any]) -> None:
        pass


@contextmanager
def running(
    kafka: FakeKafka, graph: Graph | None = None, config: Mapping[str, Any] | None = None, address: str = "127.0.0.1:0"
) -> Iterator[Running]:
    """Run a topology with its page until the context ends."""
    graph = graph or from_class(Shop, "shop")
    given = [f"{key}={value}" for key, value in {"kafka.bootstrap": kafka.bootstrap, **(config or {})}.items()]
    made = Running("")
    with served(graph, resolve(graph, given), address) as page:
        made.url, view = page.url, Several(_Noting(made), page.snapshots)

        def run() -> None:
            try:
                made.results.append(runner.run(graph, overrides=given, view=view, watching=page.watch))
            except BaseException as error:
                made.errors.append(error)

        with in_a_thread(made, run):
            yield made


@contextmanager
def in_a_thread(made: Running, run: Callable[[], None]) -> Iterator[None]:
    """Run a topology in a thread until the context ends."""
    thread = threading.Thread(target=run, name="run")
    thread.start()
    try:
        yield
    finally:

        def has_ended() -> bool:
            for engine in made.engine:
                engine.stop()
            thread.join(0.1)
            return not thread.is_alive()

        eventually(has_ended, WAIT_S, every_s=0, otherwise="the run does not end")


@contextmanager
def shop(
    values: Sequence[str], config: Mapping[str, Any] | None = None, partitions: int = 1
) -> Iterator[tuple[Running, FakeKafka]]:
    with FakeKafka(f"shop-{time.monotonic_ns()}", SYSTEM_CLOCK) as kafka:
        kafka.create_topic(TOPIC, partitions)
        for number, value in enumerate(values):
            kafka.produce(TOPIC, value.encode(), partition=number % partitions)
        with running(kafka, config=config) as made:
            yield made, kafka


def result(at_s: float, done: int, **other: Any) -> RunResult:
    components = {
        "reader": Counts(tasks=1, emitted=done, acked=done),
        "check": Counts(tasks=1, emitted=done, executed=done, acked=done, busy_s=done / 1000),
    }
    values: dict[str, Any] = {"reports": {"reader": {"dead_lettered": 0}}, "spouts": ["reader"], **other}
    return RunResult("running", True, at_s, components, done, 0, 0, 0, None, None, **values)
