"""The state of each record: pure code, without I/O, clock or threads.

To change which offset may be committed, when a partition is paused, and how a failed range is halved: offsets.py
To change when a failed record is tried again: retry_schedule.py
To change how commit metadata is encoded: metadata.py
To change when too many failures stop a run: breaker.py
To change how a record that kills its process is isolated: isolation.py
To change what identifies a row: origin.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "breaker": "CELLS_MAX MINIMUM Breaker PartitionProgress StallReport Trip",
        "epochs": "AssignmentEpochs Fact Start start_at",
        "isolation": "AT_WORK Isolation WINDOW",
        "metadata": "BYTES_MAX CommitMetadata ENDED NOTHING author_for_another_topic decode encode shorten",
        "offsets": "PartitionLedger",
        "origin": "Origin id_prefix range_of split_id",
        "ranges": "Ranges RangesInFlight",
        "retry_schedule": "NEVER Backoff RetrySchedule RetryState",
    },
)
