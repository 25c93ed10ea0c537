"""Word count in batches: the count of each word, exact and up to date in a database, as Storm's Trident keeps it.

    coordinator ─▶ lines ──▶ split ──▶ counts

``lines`` emits the records of numbered batches, ``split`` splits them into words and passes the attempt on, and
``counts`` aggregates each batch and applies it to the state at the batch's commit::

    downspout kafka produce lines < some.txt
    downspout run topologies/batch_word_count.py --until end
    sqlite3 counts.db "SELECT key, value FROM downspout_state WHERE state = 'counts'"

``word_count.py`` writes partial counts of the same words to files for a reader to finish. ``make batch-demo`` runs both
kinds of batches and kills them.
"""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from topologies.batch_bolts import SplitBolt


class BatchWordCount(Topology):
    """Kafka in, counts in a database."""

    coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value"])
    split = SplitBolt.spec(inputs=[lines])
    counts = StateBolt.spec(
        coordinator=coordinator,
        inputs={split: Grouping.fields("word")},
        store="sqlite:///counts.db",
        key="word",
        update="count",
    )
