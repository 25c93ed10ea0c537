"""Fetches that all ask for the same.

Wrong: ``fetch_min_bytes`` and ``fetch_max_wait_ms`` hold as long as a consumer lives. A broker that gathers records for
    a short while is asked in vain many times a second where there are none.
Patch: the fetcher's own copy of the two is changed between polls: the broker gathers, but where polls have waited in
    vain for longer than that takes, it answers as soon as it has a record, within the client's usual time.
Self-test: the fetcher has its properties in a dict.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: a poll can say how long it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CONSUMER = {"_fetcher.config": "dict"}


def gathering(consumer: Any, min_bytes: int, wait_ms: int) -> Callable[[int], None]:
    """Return what is to be called after each poll, with how many ms it has waited in vain; 0: it brought records."""
    config, in_vain_ms = consumer._fetcher.config, 0
    patient = {name: config[name] for name in ("fetch_min_bytes", "fetch_max_wait_ms")}
    gathers = {"fetch_min_bytes": min_bytes, "fetch_max_wait_ms": wait_ms}
    config.update(gathers)

    def polled(waited_ms: int) -> None:
        nonlocal in_vain_ms
        in_vain_ms = in_vain_ms + waited_ms if waited_ms else 0
        config.update(patient if in_vain_ms > wait_ms else gathers)

    return polled
