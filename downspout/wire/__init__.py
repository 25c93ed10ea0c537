r"""Storm's multilang pipe in a Python component: encoding of values, reading and writing of bytes, shutdown.

A component gets it by inheriting from :class:`~downspout.wire.MultilangComponent`, beside pystorm's class. Storm needs
nothing: its own JSON serializer is at the other end, and unmodified streamparse components run in the same topology.

How values travel: None, bool, int of any size, text, finite floats, lists and dicts with text keys are plain JSON and
arrive the same, floats to the bit. A tuple becomes a list; an ``Origin`` in the field ``origin`` a list, and an Origin
again in bolts on the wire. The others are texts that begin with NUL, which a stock component never writes by chance:

=======================================  ====================================================  =====================
value                                    on the pipe                                           arrives as
=======================================  ====================================================  =====================
bytes, bytearray, memoryview             ``"\u0000bytes:"`` and base64                         bytes
NaN, infinities                          ``"\u0000float:nan"``, ``inf``, ``-inf``              the same
Decimal                                  ``"\u0000decimal:1.50"``                              the same, digits and all
datetime, date, time                     ``"\u0000datetime:"`` and ISO 8601, …                 the same; a zone becomes
                                                                                               its offset, ``fold`` is
                                                                                               lost
text with NUL in front, lone surrogates  ``"\u0000text:"`` and base64 of UTF-8                 the same
dict with other keys                     ``{"\u0000dict": [[key, value], …]}``                 the same
UUID; Enum; a numpy number               text; its value; plain JSON                           text; the value; a number
=======================================  ====================================================  =====================

Anything else is an error that names stream and field: the tuple fails, or KafkaSpout's record. Stock pystorm logs such
a value, sends nothing, and acks the tuple; it makes a float of a Decimal.

A chunk is one tuple of its stream. Its first field is ``"\u0000chunk:"`` and base64 of an Arrow IPC stream with all
columns (LZ4 from 16 KiB on); the other fields are null. Cost per record of 299 bytes, in chunks of 10,000: 90 bytes on
the pipe, 0.5 µs to write, 0.4 µs to read; as a list of values per field 380 bytes, 6.6 µs, 1.9 µs. Only streams whose
readers are all on the wire carry chunks, and none that a fields grouping over several tasks reads. The ``spec`` of a
Downspout component writes them down as ``wire.chunks`` when the topology class is made.

To change how a value travels to Storm: values.py
To change how messages are read and written: serializer.py
To change which streams carry chunks: side_streams.py
"""

from __future__ import annotations

from downspout.exports import offered
from downspout.wire.multilang import MultilangComponent
from downspout.wire.serializer import WireError
from downspout.wire.tuple_io import Outlet

__getattr__, _offered = offered(
    __name__,
    {
        "chunks": "is_packed pack unpack",
        "multilang": "EXIT_S_MAX",
        "tuple_io": "READING acker as_origin emitter reader",
        "pipe": "Pipe",
        "serializer": "WireSerializer",
        "side_streams": "CHUNKS FLUSH TRANSACTIONS",
        "values": "Encoder KRYO KRYO_CLASSES parse restore slow",
    },
)
__all__ = ["Outlet", "WireError", "MultilangComponent", *_offered]
