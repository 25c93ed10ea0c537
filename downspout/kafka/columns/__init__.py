"""Columns from the wire: fetched record batches as numpy and Arrow arrays, without an object per record.

* ``record_columns``: what comes of it, records of one partition as columns.
* ``batch``: where batches begin and end, and what their headers say.
* ``decode``: many batches into columns at once; ``varints`` and ``headers`` are its parts.
* ``fetch``: the hook in kafka-python's fetcher, and the test of it when a consumer is made.

Nothing here knows of the network or of groups, and only ``fetch`` of the client's private parts. The decoder takes the
straight way only: whatever is not exactly as it should be is left to the client's own decoder, record by record. So
errors are the client's, and what the client reads, we read.
"""

from downspout.kafka.columns.record_columns import ColumnRecord, RecordColumns

__all__ = ["ColumnRecord", "RecordColumns"]
