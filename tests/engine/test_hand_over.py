"""Spouts that wait for tuples in flight: bolts drain for them."""

import pytest
from streamparse import Bolt, Spout, Topology

from downspout.testing import run_topology


class Handing(Spout):
    """Emits two rows, and then waits for their acks, as before a planned hand-over."""

    outputs = ("n",)

    def initialize(self, conf, context):
        self.left, self.out = 2, 0

    def next_tuple(self):
        if self.left:
            self.left -= 1
            self.out += 1
            self.emit([self.left], tup_id=str(self.left))

    def ack(self, tup_id):
        self.out -= 1

    def waits_for_acks(self):
        return not self.left and self.out > 0


class Holding(Bolt):
    """Holds tuples until it is asked to drain."""

    outputs = ()
    auto_ack = False

    def initialize(self, conf, context):
        self.held = []

    def process(self, tup):
        self.held.append(tup)

    def drain(self):
        for tup in self.held:
            self.ack(tup)
        self.held = []


class HandOver(Topology):
    """A spout that waits for a bolt that holds."""

    spout = Handing.spec()
    bolt = Holding.spec(inputs=[spout])


class OneByOne(Handing):
    def initialize(self, conf, context):
        self.left, self.out = 100, 0

    def next_tuple(self):
        if not self.out:
            super().next_tuple()

    def waits_for_acks(self):
        return self.out > 0


class Busy(Spout):
    outputs = ("n",)

    def next_tuple(self):
        self.emit([0])


class LoneRows(Topology):
    """A spout with one row out at a time, and a bolt that holds."""

    spout = OneByOne.spec()
    bolt = Holding.spec(inputs=[spout])


class LoneRowsBesideOthers(Topology):
    """The same, beside a spout that never rests."""

    spout = OneByOne.spec()
    bolt = Holding.spec(inputs=[spout])
    busy = Busy.spec()


def test_a_spout_with_one_row_out_at_a_time_is_not_held_up():
    """Where nothing else is to be done bolts drain for each row at once, and not four times a second."""
    result = run_topology(LoneRows, for_s=5.0)
    assert result.counts("spout").acked == 100


@pytest.mark.slow
def test_bolts_drain_for_a_waiting_spout_while_another_is_busy():
    result = run_topology(LoneRowsBesideOthers, for_s=5.0)
    assert result.counts("spout").acked >= 10


def test_bolts_drain_while_a_spout_waits_for_acks():
    """What a bolt holds does not hold back a planned hand-over: it is asked to drain at once."""
    result = run_topology(HandOver, for_s=1.0)
    assert result.run.drained
    assert result.counts("spout").acked == 2
    assert result.run.latency_p99_ms is not None
    assert result.run.latency_p99_ms < 100
