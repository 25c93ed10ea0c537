"""How a consumer of kafka-python joins its group: what is changed about that.

* Between two polls, and in the middle of one: ``patches.joins_across_polls``.
* As a leader: ``patches.stale_assignment``.
* As a member that falls out of the group meanwhile: ``patches.lost_in_joining``.
* As a static member that comes back, with partitions that were about to move: ``patches.returning_member``; or as the
  leader of its former life: ``patches.returning_leader``.
"""

from __future__ import annotations

from typing import Any

from downspout.kafka.patches.joins_across_polls import PolledJoins
from downspout.kafka.patches.lost_in_joining import report_loss_while_joining
from downspout.kafka.patches.returning_leader import LeadersWatch
from downspout.kafka.patches.returning_member import SecondRound
from downspout.kafka.patches.stale_assignment import remember_assigned_metadata


class Joining(PolledJoins):
    """Stands between a consumer's coordinator and its polls, with all that is changed about joining."""

    def __init__(self, consumer: Any) -> None:
        remember_assigned_metadata(consumer)
        report_loss_while_joining(consumer)
        super().__init__(consumer)
        if (instance := consumer.config["group_instance_id"]) is not None:
            self.afterwards += (SecondRound(consumer), LeadersWatch(consumer, instance))
