"""Answers of object stores that disks never give: conflicts, late arrivals, objects that represent folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from obstore import exceptions as refused

from bolts.parquet import with_origins
from demos.s3 import KEYS, s3_server
from downspout.audit import make_replay
from downspout.errors import ConfigError, SinkError, TopologyError
from downspout.settings import STORAGE_OPTIONS, ObjectPath, place, shown
from downspout.sink import CommitLog, Compactor, Identities, ObjectStore, object_store
from downspout.sink.layout import probe
from downspout.sink.object_store import RETRIES, TornError, as_os_error, resolve
from downspout.testing import run_on_records
from tests.sink.cloud_support import memory, out, rows_in_sight, s3_client, visible
from tests.sink.support import write_rows

TOP = out("doubts")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


def origins(first: int, end: int) -> list[tuple[str, str, int, int, str]]:
    return [("t", "id", 0, offset, "") for offset in range(first, end)]


def flush(writer: Any, first: int, end: int) -> None:
    identities = Identities.of(origins(first, end))
    table = with_origins(pa.table({"n": pa.array(range(first, end), pa.int64())}), identities)
    writer.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


class Meddled(ObjectStore):
    """A store at whose requests a test has something happen first."""

    before: Callable[[str, Path, Callable[[], Any]], object] = staticmethod(lambda kind, path, send: None)

    def _request(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        def sent() -> Any:
            self.before(kind, path, send)
            return send()

        return super()._request(kind, path, sent)


# --- conflicts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("conflicts", "committed"), [(1, True), (object_store.ATTEMPTS, False)])
def test_a_conflict_with_a_request_that_then_fails_is_no_taken_name(
    monkeypatch: pytest.MonkeyPatch, conflicts: int, committed: bool
) -> None:
    """S3 answers 409 while another request for a name is under way: it is sent again, or the error says why not."""
    monkeypatch.setattr(object_store, "CONFLICT_PAUSE_S", 0.0)
    client = memory().client
    disk = Meddled(client)
    writer = write_rows(TOP, origins(0, 4), writer="w", disk=disk)
    met: list[Path] = []

    def conflict(kind: str, path: Path, send: Callable[[], Any]) -> None:
        if kind == "create" and path.parent.name == "log" and len(met) < conflicts:
            met.append(path)
            raise refused.AlreadyExistsError("409 Conflict: ConditionalRequestConflict")

    disk.before = conflict
    if committed:
        flush(writer, 4, 8)
    else:
        with pytest.raises(SinkError, match=r"other requests for it were under way each time.*log/0+1\.json"):
            flush(writer, 4, 8)
    assert len(met) == conflicts
    write_rows(TOP, origins(0, 8), writer="next", disk=ObjectStore(client))
    assert rows_in_sight(ObjectStore(client), TOP) == list(range(8))


# --- late arrivals -------------------------------------------------------------------------------------------


def test_an_entry_of_ours_that_arrives_during_a_later_flush_comes_into_sight() -> None:
    """A flush gave up and its entry arrives while the next one is about to commit the same rows: they are in sight."""
    client = memory().client
    disk = Meddled(client)
    writer = write_rows(TOP, origins(0, 4), writer="w", disk=disk)
    late: list[Callable[[], Any]] = []

    def lose(kind: str, path: Path, send: Callable[[], Any]) -> None:
        if path.name == f"{1:020d}.json" and (kind == "create" or late):
            late[:] = [*late, send][:1]
            raise refused.GenericError("HTTP error: operation timed out")

    def arrive(kind: str, path: Path, send: Callable[[], Any]) -> None:
        if kind == "create" and late:
            late.pop()()

    disk.before = lose
    with pytest.raises(SinkError, match="timed out"):
        flush(writer, 4, 8)
    assert late
    disk.before = arrive
    flush(writer, 4, 8)
    assert not late
    assert rows_in_sight(ObjectStore(client), TOP) == list(range(8))


def test_a_compaction_that_is_interrupted_in_doubt_deletes_nothing_that_a_late_entry_names() -> None:
    """Ctrl-C while a compaction looks whether its entry has arrived, and then it arrives: no row is lost."""
    client = memory().client
    for number in range(3):
        write_rows(TOP, origins(4 * number, 4 * number + 4), writer=f"w{number}", disk=ObjectStore(client))
    disk = Meddled(client)
    late: list[Callable[[], Any]] = []

    def interrupt(kind: str, path: Path, send: Callable[[], Any]) -> None:
        if path.name == f"{3:020d}.json" and kind == "create":
            late.append(send)
            raise refused.GenericError("HTTP error: operation timed out")
        if late and not disk.interrupted:
            disk.interrupted = True
            raise KeyboardInterrupt

    disk.interrupted = False
    disk.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        Compactor(TOP, disk=disk, say=lambda line: None).run()
    late.pop()()
    write_rows(TOP, origins(0, 12), writer="next", disk=ObjectStore(client))
    assert rows_in_sight(ObjectStore(client), TOP) == list(range(12))


# --- what is in the bucket -----------------------------------------------------------------------------------


def test_objects_that_stand_for_folders_are_no_files(server: str) -> None:
    """A console makes an object ``folder/`` for a new folder: a sink begins there, and readers see its rows alone."""
    client = boto3.client(
        "s3", endpoint_url=server, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )
    for key in ("made/", "made/n=1/", "made/_downspout/", "made/n=1/empty"):
        client.put_object(Bucket="bucket", Key=key, Body=b"")
    disk, top = ObjectStore(s3_client(server)), out("made")
    assert disk.names(top) == ["_downspout", "n=1"]
    assert list(disk.files_below(top)) == [top / "n=1" / "empty"]
    client.delete_object(Bucket="bucket", Key="made/n=1/empty")
    write_rows(top, origins(0, 4), writer="w", disk=disk)
    write_rows(top, origins(0, 8), writer="x", disk=disk)
    assert rows_in_sight(disk, top) == list(range(8))
    log = CommitLog(top, disk)
    log.refresh()
    assert visible(disk, top) == sorted(log.files)


def test_a_look_before_a_run_leaves_nothing() -> None:
    disk = memory()
    probe(disk, CommitLog(TOP, disk).layout, "w")
    assert list(disk.files_below(TOP)) == []


def test_a_long_log_is_not_listed_with_the_data() -> None:
    """The files of a directory take one page or two, however many entries its log has."""
    disk, pages = Meddled(memory().client), list[str]()
    for name in ("A/1", "_downspout0/2", "z/3", *(f"_downspout/log/{number:020d}.json" for number in range(500))):
        disk.write(TOP / name, b"x")
    disk.before = lambda kind, path, send: pages.append(kind)
    found = [path.relative_to(TOP).as_posix() for path in disk.files_below(TOP, without="_downspout")]
    assert found == ["A/1", "_downspout0/2", "z/3"]
    assert len(pages) < 5


# --- words ---------------------------------------------------------------------------------------------------


def test_a_password_in_an_endpoint_is_refused_and_never_shown() -> None:
    """An endpoint with a password is a secret in the open: as an option, as one text, and in the store's words."""
    option = "endpoint=http://me:hush@minio:9000"
    with pytest.raises(ConfigError, match="endpoint is not a reference to a secret"):
        resolve([option])
    for value in ([option], f"region=x,{option}", "region=x,secret_access_key=hush"):
        assert shown(STORAGE_OPTIONS, value) == "…"
    assert resolve([option.replace("me:hush@", "")]) == {"endpoint": "http://minio:9000"}
    error = refused.GenericError("Error performing GET http://me:hush@minio:9000/bucket/out/x in 2 ms")
    assert "http://…@minio:9000/bucket/out/x" in str(as_os_error("get", TOP, error))


def test_a_name_with_body_in_it_is_no_torn_answer() -> None:
    """An answer that broke off is told by the client's words, and not by those in the names of objects."""
    error = refused.GenericError("Error performing GET http://s3/bucket/nobody/x - HTTP error: error sending request")
    assert not isinstance(as_os_error("get", TOP, error), TornError)
    error = refused.GenericError("HTTP error: request or response body error")
    assert isinstance(as_os_error("get", TOP, error), TornError)
    error = refused.GenericError("Got invalid DeleteObjects response: syntax error: tag not closed")
    assert isinstance(as_os_error("delete", TOP, error), TornError)


@pytest.mark.parametrize("text", [" s3://bucket/out", "s3://bucket/out\n"])
def test_a_blank_around_a_url_does_not_make_a_local_path_of_it(text: str) -> None:
    """What a file or a variable has left around a URL is no part of it."""
    assert place(text) == ObjectPath("s3://bucket/out")


def test_control_characters_are_refused_in_a_url() -> None:
    """No store's client takes them, so the directory is refused by its name."""
    with pytest.raises(ConfigError, match="is not the URL of a folder on an object store"):
        place("s3://bucket/a\nb")


# --- how the store is reached --------------------------------------------------------------------------------

TOPOLOGY = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout

class Lines(Topology):
    spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
    out = ParquetBolt.spec(inputs=[spout], directory="s3://bucket/replayed", schema=["value:string"],
                           storage_options=["endpoint=URL", "access_key_id=env:ID", "secret_access_key=env:ID"])
"""


def test_a_topology_is_run_again_against_the_store_that_its_own_options_name(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the topology says how its store is reached, records are compared with that one, and no other is asked."""
    write_rows(out("replayed"), origins(0, 4), writer="w", disk=ObjectStore(s3_client(server)))
    monkeypatch.setitem(RETRIES, "max_retries", 0)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "ID": "test"}.items():
        monkeypatch.setenv(name, value)
    (file := tmp_path / "lines.py").write_text(TOPOLOGY.replace("URL", server), encoding="utf-8")
    assert make_replay(str(file), out("replayed"), run_on_records).topics == ("t",)
    with pytest.raises(TopologyError, match="no sink writes to s3://bucket/replayed"):  # its log was read: of others
        make_replay(str(file), out("replayed"), run_on_records, overrides=["parquet.directory=s3://bucket/moved"])
