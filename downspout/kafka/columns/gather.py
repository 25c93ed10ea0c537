"""Parts of bytes as Arrow arrays.

``pyarrow.array`` would do for the indices; but it loads pandas where that is installed, which costs 0.3 CPU-seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def laid_on(data: bytes | memoryview, bounds: NDArray[np.int32]) -> Any:
    """Return a binary array whose elements lie between these bounds of the data; nothing is copied.

    >>> laid_on(b"keyvalue", np.array([0, 3, 8], np.int32)).to_pylist()
    [b'key', b'value']
    """
    places: Any = bounds
    buffers: Any = [None, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def indices(rows: NDArray[np.int64], is_null: NDArray[np.bool_] | None = None) -> Any:
    """Return what Arrow's ``take`` takes: these rows, and nulls.

    >>> indices(np.array([2, 0, 1]), np.array([False, True, False])).to_pylist()
    [2, None, 1]
    """
    numbers: Any = rows
    valid: Any = None
    if is_null is not None and is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.int64(), len(rows), [valid, pa.py_buffer(numbers)])
