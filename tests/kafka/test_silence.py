"""A client's messages and behaviour while a broker hangs or is down; with real ones: ``test_silent_broker.py``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from downspout.kafka import TopicPartition
from downspout.kafka.patches import connecting
from downspout.kafka.patches.connecting import ConnectionWatch
from downspout.outages import Outages
from downspout.testing import VirtualClock

NAMES = {1: "broker 1 (a:9092)", 2: "broker 2 (b:9092)"}


class Client:
    """Two brokers, of which the first leads a partition, and what is said of them."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock, self.closed, self.asked = clock, [], 0
        self.nodes = nodes = [
            SimpleNamespace(node_id=number, host=host, port=9092) for number, host in ((1, "a"), (2, "b"))
        ]
        self.leads = {1: {TopicPartition("out", 0)}, 2: set()}
        cluster = SimpleNamespace(
            brokers=lambda: nodes, partitions_for_broker=self.leads.get, request_update=self.ask,
            _coordinators={}, _coordinator_brokers={},
        )  # fmt: skip
        self.connections: dict[int, Any] = {number: self.connection(number) for number in (1, 2)}
        self.manager = SimpleNamespace(
            cluster=cluster, closed=False, _backoff={}, _conns=self.connections,
            _net=SimpleNamespace(call_later=lambda *args: None),
        )  # fmt: skip
        self.watch = ConnectionWatch(SimpleNamespace(_manager=self.manager), "writing")

    def ask(self) -> None:
        self.asked += 1

    def connection(self, number: int) -> Any:
        transport = SimpleNamespace(last_read=self.clock.monotonic())
        return SimpleNamespace(
            connected=True, in_flight_requests=[], transport=transport, close=lambda error: self.closed.append(number)
        )

    def question(self, number: int) -> None:
        self.connections[number].in_flight_requests = [(7, None, self.clock.monotonic(), None, None)]

    def answer(self, number: int) -> None:
        self.connections[number].in_flight_requests = []
        self.connections[number].transport.last_read = self.clock.monotonic()

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.sleep(1)
            self.watch.check(self.clock.monotonic())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    clock = VirtualClock()
    monkeypatch.setattr(connecting, "OUTAGES", Outages(clock))
    return Client(clock)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_silent_leader_is_named_within_five_seconds_and_when_it_answers(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """With its address, since when, and what waits; the client asks who leads. Who is not asked is not silent."""
    client.live(60)
    assert not said(caplog)
    client.question(1)
    client.live(5)
    (line,) = said(caplog)
    assert line.startswith(f"{NAMES[1]} has not answered since ")
    assert line.endswith(" (it leads out[0]); writing waits for it and goes on when it answers")
    assert client.asked
    client.live(10)
    client.answer(1)
    client.live(1)
    assert said(caplog)[1:] == [f"{NAMES[1]} answers again, after 16 s"]
    assert not client.closed


def test_what_waits_at_a_silent_broker_goes_to_the_new_leader(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """As soon as another one leads: the connection is given up, and that is said; not while nobody else leads."""
    client.question(1)
    client.live(8)
    assert not client.closed
    client.leads[1], client.leads[2] = client.leads[2], client.leads[1]
    del client.nodes[0]  # as Kafka's controller takes it off the list
    client.live(1)
    assert client.closed == [1]
    assert said(caplog)[1:] == [f"{NAMES[1]} {connecting.ELSEWHERE}, after 9 s"]


def test_a_broker_that_refuses_connections_is_away_where_it_leads(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        del client.connections[number]
        client.manager._backoff[number] = (1, 0.0, 3000)
    client.live(6)
    (line,) = said(caplog)
    assert " (it leads out[0], no connection); writing waits for it" in line
