"""Windows on Storm: whatever is killed, what was final stays as it is, and each event is in its windows once."""

from __future__ import annotations

import os
import signal
import uuid

import pytest

from tests.sink.hours import Hours
from tests.storm.support import STALLED_S_MAX, Place, children
from tests.waiting import eventually

pytestmark = [pytest.mark.storm, pytest.mark.slow]

KILLED = ("bolts.aggregate.AggregateBolt", "spouts.kafka.KafkaSpout")
EACH = 200


@pytest.mark.sweep
def test_final_windows_stay_as_they_are_when_components_are_killed(storm: Place) -> None:
    """The sink and the spout are killed while events come in."""
    topic = f"hours_{uuid.uuid4().hex[:8]}"
    hours = Hours(storm.cluster, topic, storm.project / "output" / topic)
    (storm.project / "topologies" / f"{topic}.py").write_text(hours.source, encoding="utf-8")
    code, output = storm.sparse("submit", "-n", topic)
    assert code == 0, output

    def more_are_final(than: int) -> bool:
        hours.send(EACH)
        return hours.check_final() > than

    for name in (*KILLED, None):
        final = hours.check_final()
        eventually(lambda before=final: more_are_final(before), STALLED_S_MAX, every_s=1.0)
        if name and (pids := children(storm.workers_group(), name)):
            os.kill(pids[0], signal.SIGKILL)
    storm.wait_for(topic, 0)
    hours.check_all()
    code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
    assert code == 0, output
