"""What happened to each record: pure, no I/O, no clock, no threads."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "breaker": "CELLS_MAX MINIMUM Breaker Trip",
        "epochs": "AssignmentEpochs Fact",
        "isolation": "AT_WORK Isolation WINDOW",
        "message_id": "id_prefix split_id",
        "metadata": "BYTES_MAX CommitMetadata ENDED NOTHING author_for_another_topic decode encode shorten",
        "offsets": "NEVER PartitionLedger RetryState",
        "origin": "Origin",
        "ranges": "Ranges",
        "retry_schedule": "Backoff",
    },
)
