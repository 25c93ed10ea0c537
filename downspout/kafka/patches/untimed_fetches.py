"""How long a broker takes to answer a fetch.

Wrong: the client measures it with its metrics on alone, which cost a lock and several objects for each request and
    partition; what they hold is a rate and a mean over a time that cannot be asked together.
Patch: what takes the answer of a fetch is given the moment at which it was sent. That is noted, and the answer goes on.
Self-test: the fetcher has the function that takes answers.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: a consumer tells the times of its fetches at a cost that every consumer can bear.
"""

from __future__ import annotations

import time
from typing import Any

from downspout.kafka.fetches import Fetches

CONSUMER = {"_fetcher._handle_fetch_response": "method"}


def time_fetches(consumer: Any) -> Fetches:
    """Have the answers of a consumer's fetches noted, in seconds on the monotonic clock."""
    fetcher, fetches = consumer._fetcher, Fetches()
    known = fetcher._handle_fetch_response

    def handle(node_id: Any, fetch_offsets: Any, send_time: float, response: Any) -> None:
        now = time.monotonic()
        fetches.answered(now - send_time, now)
        known(node_id, fetch_offsets, send_time, response)

    fetcher._handle_fetch_response = handle
    return fetches
