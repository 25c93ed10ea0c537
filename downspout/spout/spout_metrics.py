"""What a spout counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SpoutMetrics:
    """Counters of a spout's life; the names are in ``downspout.metrics``."""

    records: int = 0
    acked: int = 0
    failed: int = 0
    timeouts: int = 0
    retries: int = 0
    splits: int = 0
    dead_lettered: int = 0
    filtered: int = 0
    compacted: int = 0
    aborted: int = 0
    lost: int = 0
    left_behind: int = 0
    unreadable: int = 0
    skipped: int = 0
    stale: int = 0
    unclean: int = 0
    errors: int = 0
    commits_failed: int = 0
    uncommitted: int = 0
    retry_later: int = 0
    fetches: int = 0  # of consumers that are closed; what is open has its own
    fetched: int = 0  # likewise
