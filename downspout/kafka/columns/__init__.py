"""Columns from the wire: fetched record batches as numpy and Arrow arrays, without an object per record.

* ``record_columns``: the result, records of one partition as columns.
* ``batch``: parses and unpacks record batches.
* ``wire``: varints, headers and Arrow arrays over the fetched bytes; ``decode``: many batches into columns at once.
* ``reading``: iterates over the batches of one fetch; ``fetcher``: replaces a class of kafka-python's fetcher.

Nothing here knows the network, groups, or private names of the client (``downspout.kafka.patches``). The decoder
handles well-formed batches only; the client decodes all others record by record. So errors are the client's, and we
read whatever the client reads.
"""

from downspout.kafka.columns.record_columns import ColumnRecord, RecordColumns

__all__ = ["ColumnRecord", "RecordColumns"]
