"""The storage port's contract, over a disk, a store in memory and a real S3 server."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from downspout.sink import Disk, ObjectStore, Storage
from tests.sink.cloud_support import SERVERS, memory, out, s3_client, server_of, simulated

NAMES = [
    "a.parquet",
    "key=a%2Fb/part-é ~'(x)-1.parquet",
    "k=%3A/l=1/part-sink-3-0a-1.hidden",
    "log/00000000000000000001.json",
]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(server_of(name)) for name in SERVERS}


@pytest.fixture(params=["disk", "memory", "simulated", *SERVERS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, Path]:
    if request.param == "disk":
        return Disk(), tmp_path
    if request.param == "simulated":
        return simulated(tmp_path), out("x")
    if request.param == "memory":
        return memory(), out("x")
    return ObjectStore(s3_client(request.getfixturevalue("servers")[request.param])), out(uuid.uuid4().hex)


def put(disk: Storage, path: Path, content: bytes = b"content") -> None:
    disk.make_folder(path.parent)
    disk.write(path, content)
    disk.sync(path)
    disk.sync(path.parent)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_read_listed_and_removed(place: tuple[Storage, Path], name: str) -> None:
    """A file is seen by every look as soon as it is written, under its name, and by none once it is removed."""
    disk, top = place
    before = time.time()
    put(disk, top / name)
    assert disk.read(top / name) == b"content"
    assert disk.exists(top / name)
    assert list(disk.files_below(top)) == [top / name]
    assert disk.names((top / name).parent) == [(top / name).name]
    assert disk.names(top) == [name.partition("/")[0]]
    assert before - 5 <= disk.modified(top / name) <= time.time() + 5
    assert before - 5 <= disk.changed(top / name) <= time.time() + 5
    put(disk, top / name, b"another")
    assert disk.read(top / name) == b"another"
    disk.remove(top / name)
    disk.remove(top / name)
    assert not disk.exists(top / name)
    assert list(disk.files_below(top)) == []
    assert disk.modified(top / name) == disk.changed(top / name) == 0.0
    with pytest.raises(FileNotFoundError):
        disk.read(top / name)


def test_a_folder_is_left_out(place: tuple[Storage, Path]) -> None:
    """Files before, beside and behind it in the order of names are listed, and none that is in it."""
    disk, top = place
    names = ["A.parquet", "_downspout0.parquet", "_downspouts/b", "m=1/_downspout/c", "z.parquet"]
    for name in [*names, "_downspout/log/0.json", "_downspout/z"]:
        put(disk, top / name)
    assert sorted(disk.files_below(top, without="_downspout")) == [top / name for name in names]


def test_a_folder_is_there_where_something_is_in_it(place: tuple[Storage, Path]) -> None:
    """A folder's names are those directly in it; a name that another begins with is no folder of it."""
    disk, top = place
    put(disk, top / "in" / "a" / "b")
    put(disk, top / "in" / "c")
    put(disk, top / "in2")
    assert sorted(disk.names(top / "in")) == ["a", "c"]
    assert disk.exists(top / "in")
    assert disk.has_names(top / "in")
    assert not disk.exists(top / "i")
    assert not disk.has_names(top / "i")
    assert disk.names(top / "nowhere") == []
    assert sorted(disk.files_below(top / "in")) == [top / "in" / "a" / "b", top / "in" / "c"]
    assert list(disk.files_below(top / "in", without="a")) == [top / "in" / "c"]


def test_a_listing_may_begin_at_a_name(place: tuple[Storage, Path]) -> None:
    """Names from a given one on are all listed; of more files than a page of a listing holds, too."""
    disk, top = place
    for number in range(30):
        disk.put_if_absent(top / "log" / f"{number:020d}.json", b"x", top / "tmp")
    found = disk.names(top / "log", f"{27:020d}")
    assert sorted(found)[-3:] == [f"{number:020d}.json" for number in (27, 28, 29)]
    assert len(disk.names(top / "log")) == 30


def test_of_many_writers_exactly_one_creates_a_file(place: tuple[Storage, Path]) -> None:
    """Four writers put 20 names each, all at once: each name has one winner, and holds what that one wrote."""
    disk, top = place
    won: dict[str, list[int]] = {}

    def write(me: int) -> None:
        for number in range(20):
            if disk.put_if_absent(top / f"{number}", f"of {me}".encode(), top / f".{me}-{number}.tmp"):
                won.setdefault(f"{number}", []).append(me)

    threads = [threading.Thread(target=write, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(who) for name, who in won.items()} == {f"{number}": 1 for number in range(20)}
    assert all(disk.read(top / name) == f"of {who[0]}".encode() for name, who in won.items())


def test_who_puts_the_same_again_is_told_that_it_is_ours(place: tuple[Storage, Path]) -> None:
    """A writer whose answer was lost asks again, finds its own content, and is told so; another writer is not."""
    disk, top = place
    assert disk.put_if_absent(top / "a", b"mine", top / "t")
    assert disk.put_if_absent(top / "a", b"mine", top / "t")
    assert not disk.put_if_absent(top / "a", b"yours", top / "t2")
    assert disk.read(top / "a") == b"mine"


def test_a_file_is_renamed_once(place: tuple[Storage, Path]) -> None:
    """A renamed file is at its new name alone; who renames it second is told that it is not there."""
    disk, top = place
    put(disk, top / "from" / "a")
    disk.make_folder(top / "to")
    disk.rename(top / "from" / "a", top / "to" / "a")
    assert disk.read(top / "to" / "a") == b"content"
    assert not disk.exists(top / "from" / "a")
    with pytest.raises(FileNotFoundError) as raised:
        disk.rename(top / "from" / "a", top / "to" / "a")
    assert raised.value.filename == str(top / "from" / "a")
    assert disk.read(top / "to" / "a") == b"content"


def test_a_file_is_replaced_whole(place: tuple[Storage, Path]) -> None:
    """A file takes the place of another, or of none."""
    disk, top = place
    for content in (b"one", b"two"):
        disk.replace(top / "runs.json", content, top / "staging" / ".w-0.tmp")
        assert disk.read(top / "runs.json") == content
    assert list(disk.files_below(top)) == [top / "runs.json"]
