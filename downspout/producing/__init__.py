"""Writing to Kafka: how a tuple becomes a record, where it goes, and when it is acked. The bolt: ``bolts/kafka.py``.

To change what a tuple becomes in Kafka: mapper.py
To change when a tuple is acked: sending.py
To change which producer errors concern all records: sending.py
To change what a transaction holds, when it is aborted, and how a fenced producer is replaced: transaction.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "mapper": "Outgoing rows_of_chunk",
        "sending": "error_of_record",
        "transaction": "PartitionCommit SentDeadLetter SpoutMessage",
    },
)
