"""Processing guarantees: the one table of what differs between them.

==============  ==================================  =======================================================
guarantee       what is committed                   what a crash, or a failed tuple, does
==============  ==================================  =======================================================
AT_LEAST_ONCE   what is acked, on the timer         comes again
AT_MOST_ONCE    what is read, before it is emitted  is lost, and never comes twice
NO_GUARANTEE    what is read, on the timer, without  is lost or comes again
                waiting for the broker's word
AUTO_COMMIT     what is read, by the client itself  is lost or comes again; the client does not say what it commits
==============  ==================================  =======================================================

Only the first looks at acks and fails. Under the others an offset is done as soon as it is emitted, so the limit on
uncommitted offsets is never met. A planned stop or hand-over commits what was emitted under all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from downspout.spout.commit_state import RENEW_MS


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a processing guarantee decides."""

    tracks: bool = False  # acks and fails decide what is committed, and what is read again
    before_emit: bool = False  # what was read is committed before any of it is emitted
    on_timer: bool = False  # the spout commits every ``kafka.commit_period_ms``
    waits: bool = True  # on the timer, it waits for the broker's word
    by_client: bool = False  # the client commits by itself, every ``kafka.commit_period_ms``

    def period_ms(self, settings: Mapping[str, Any]) -> float:
        """Return how often the spout commits by its timer; without end where the client does."""
        if self.by_client:
            return float("inf")
        # Where what is read is committed before it is emitted, the timer only looks whether that has become old.
        return float(settings["commit_period_ms"]) if self.on_timer else RENEW_MS

    def auto_commit_ms(self, settings: Mapping[str, Any]) -> int | None:
        """Return how often the client commits; None where it does not."""
        return int(settings["commit_period_ms"]) if self.by_client else None


GUARANTEES = {
    "AT_LEAST_ONCE": Guarantee(tracks=True, on_timer=True),
    "AT_MOST_ONCE": Guarantee(before_emit=True),
    "NO_GUARANTEE": Guarantee(on_timer=True, waits=False),
    "AUTO_COMMIT": Guarantee(by_client=True),
}
