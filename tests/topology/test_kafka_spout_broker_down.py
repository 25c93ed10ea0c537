"""The broker is away when the spout rests and comes back."""

from __future__ import annotations

import pytest

from downspout.errors import BrokerError
from spouts import kafka as spout_module
from tests.topology.spout_driver import Driver, Kafka, fill


def test_activate_goes_on_trying(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spout that has left the group, and finds no broker when it is to join again, tries until there is one."""
    driver = Driver(kafka)
    driver.run(2)
    driver.ack_all()
    driver.spout.deactivate()
    opened = spout_module.open_consumer
    tries = []

    def refuse(*args: object) -> object:
        tries.append(args)
        if len(tries) < 3:
            raise BrokerError("No Kafka")
        return opened(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(spout_module, "open_consumer", refuse)
    driver.spout.activate()
    for _ in range(10):
        driver.spout.next_tuple()
    assert len(tries) == 1  # not at every call
    fill(kafka, 1)
    for _ in range(3):
        kafka.clock.sleep(2.1)
        driver.spout.next_tuple()
    assert len(tries) == 3
    driver.run(4)
    assert driver.offsets[-1] == 10
