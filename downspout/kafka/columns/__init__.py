"""Columns from the wire: fetched record batches as numpy and Arrow arrays, without an object per record.

* ``record_columns``: what comes of it, records of one partition as columns.
* ``batch``: where batches begin and end, and what their headers say.
* ``decode``: many batches into columns at once; ``varints`` and ``headers`` are its parts.
* ``reading``: the way through the batches of one fetch; ``large`` and ``unpacking`` bound what they unpack to.
* ``fetch``: what takes the place of a class in kafka-python's fetcher.

Nothing here knows of the network or of groups, nor of the client's private parts (``downspout.kafka.patches``). The
decoder takes the straight way only: whatever is not exactly as it should be is left to the client's own decoder, record
by record. So errors are the client's, and what the client reads, we read.
"""

from downspout.kafka.columns.record_columns import ColumnRecord, RecordColumns

__all__ = ["ColumnRecord", "RecordColumns"]
