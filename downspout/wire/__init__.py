r"""Storm's multilang protocol in a Python component: encoding of values, reading, writing, shutdown.

A component inherits from :class:`~downspout.wire.MultilangComponent` beside pystorm's class. Storm keeps its own JSON
serializer and needs no change; unmodified streamparse components run in the same topology.

Plain JSON travels unchanged, any other value as a text that begins with a mark: ``values.py`` has the table. A value
that cannot travel is an error that names stream and field: the tuple, or KafkaSpout's record, fails. Stock pystorm logs
such a value, sends nothing and acks the tuple; it turns a Decimal into a float.

A chunk is one tuple of its stream. Its first field is ``"\u0000chunk:"`` and base64 of an Arrow IPC stream with all
columns (LZ4 from 16 KiB on); the other fields are null. Cost per record of 299 bytes, in chunks of 10,000: 90 bytes on
the pipe, 0.5 µs to write, 0.4 µs to read; as a list of values per field 380 bytes, 6.6 µs, 1.9 µs. A stream carries
chunks only if all its readers are on this wire and none uses a fields grouping over several tasks. The ``spec`` of a
Downspout component records these streams as ``wire.chunks`` when the topology class is created.

To change how a value travels to Storm: values.py
To change how messages are read and written: json_messages.py
To change how bytes are read and written: pipe.py
To change which streams carry chunks: side_streams.py
"""

from __future__ import annotations

from downspout.exports import offered
from downspout.wire.json_messages import WireError
from downspout.wire.multilang_component import MultilangComponent
from downspout.wire.tuple_io import Outlet

__getattr__, _offered = offered(
    __name__,
    {
        "chunks": "is_packed pack unpack",
        "multilang_component": "EXIT_S_MAX",
        "tuple_io": "READING acker as_origin emitter reader",
        "pipe": "Pipe",
        "json_messages": "WireSerializer",
        "side_streams": "CHUNKS FLUSH TRANSACTIONS",
        "values": "Encoder KRYO KRYO_CLASSES parse restore slow",
    },
)
__all__ = ["Outlet", "WireError", "MultilangComponent", *_offered]
