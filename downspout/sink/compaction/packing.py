"""Which files a compaction makes one of: arithmetic on sizes, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from downspout.sink.log.entry import DataFile

TARGET_BYTES = 128_000_000
SMALL_BYTES = 1_000_000  # Below that a file costs its opening and not its reading: all such files weigh the same
OUTWEIGHS = 4
"""A file that is so many times as large as those it would be merged with is left out: it waits for more of them."""
INPUTS_MAX = 10_000


def plan(files: Iterable[DataFile], target_bytes: int = TARGET_BYTES) -> list[list[DataFile]]:
    """Return which files are to become one, in the order of the log; no file stands twice.

    Files of one Hive folder that are smaller than the target fill bins of that size, each the first bin where it fits.
    A file that outweighs all others of its bin is left out: so a row is written again only when its file grows by a
    quarter, and compacting after each small flush does not write the whole directory each time.

    >>> files = [DataFile(f"a=1/{n}", 1, n * 1_000_000) for n in (90, 2, 3, 200)] + [DataFile("b", 1, 5)]
    >>> [[file.path for file in one] for one in plan(files, 100_000_000)]
    [['a=1/2', 'a=1/3']]
    """
    bins: dict[PurePosixPath, list[list[DataFile]]] = {}
    room: dict[PurePosixPath, list[int]] = {}
    for file in files:
        if file.bytes >= target_bytes:
            continue
        folder = PurePosixPath(file.path).parent
        own, left = bins.setdefault(folder, []), room.setdefault(folder, [])
        for number, space in enumerate(left):
            if file.bytes <= space and len(own[number]) < INPUTS_MAX:
                own[number].append(file)
                left[number] -= file.bytes
                break
        else:
            own.append([file])
            left.append(target_bytes - file.bytes)
    made = [_balanced(one) for folder in sorted(bins) for one in bins[folder]]
    return [one for one in made if len(one) > 1]


def _balanced(files: list[DataFile]) -> list[DataFile]:
    """Return the files without those that outweigh all that are smaller."""
    kept = sorted(files, key=_weight)
    others = sum(map(_weight, kept))
    while kept:
        others -= _weight(kept[-1])
        if _weight(kept[-1]) <= others * OUTWEIGHS:
            break
        kept.pop()
    chosen = {file.path for file in kept}
    return [file for file in files if file.path in chosen]


def _weight(file: DataFile) -> int:
    return max(file.bytes, SMALL_BYTES)
