"""Records out to Kafka: what a tuple becomes, where it goes, which tuples are done. Its shell: ``bolts/kafka.py``."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "faults": "error_of_record",
        "mapper": "Outgoing",
        "messages": "Message Progress SentDeadLetter",
    },
)
