"""Errors about an unusable object store: its name, its message, and a hint."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore import exceptions as refused

from demos.s3 import KEYS, FaultProxy, s3_server
from downspout.cli import main
from downspout.errors import SinkError
from downspout.settings import STORAGE_OPTIONS, ObjectPath, place, shown
from downspout.sink import ObjectStore
from downspout.sink.object_store import as_os_error
from tests.sink.cloud_support import s3_client, visible
from tests.sink.support import write_rows

TOPOLOGY = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout

class Lines(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    out = ParquetBolt.spec(inputs=[spout], directory="s3://bucket/out", schema=["value:string"])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.mark.parametrize(("directory", "options", "said"), [
    ("s3://bucket/out", "endpoint=URL,access_key_id=env:ID,secret_access_key=env:KEY", "0 errors"),
    ("s3://no-such-bucket/out", "endpoint=URL,access_key_id=env:ID,secret_access_key=env:KEY", "there is no bucket"),
    ("s3://bucket/out", "endpoint=URL,access_key_id=hush", "access_key_id is not a reference to a secret"),
    ("s3://bucket/out", "endpoint=URL,access_key_id=env:NOT_THERE", "NOT_THERE is not in the environment"),
    ("s3://bucket/out", "endpoit=URL", "'endpoit' is not valid"),
    ("s3://bucket/out", "endpoint", "option 1 is not name=value"),
    ("s3://bucket/out", "endpoint=URL,secret_access_key=env:KEY,hush", "option 3 is not name=value"),
    ("s3://bucket", "endpoint=URL", "is a whole bucket"),
])  # fmt: skip
def test_check_says_before_the_run_whether_the_store_can_be_used(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    directory: str, options: str, said: str,
) -> None:  # fmt: skip
    """A missing bucket, a secret in the open, an unknown option: an error with its cure, and no secret in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ID", "test")
    monkeypatch.setenv("KEY", "test")
    Path("lines.py").write_text(TOPOLOGY.replace("s3://bucket/out", directory), encoding="utf-8")
    code = main(["check", "lines.py", "--set", f"parquet.storage_options={options.replace('URL', server)}"])
    output = "".join(capsys.readouterr())
    assert said in output
    assert "hush" not in output
    assert (code == 0) == (said == "0 errors")
    assert "Try: " in output or code == 0
    assert [path.name for path in Path().iterdir() if path.name.startswith("s3")] == []


@pytest.mark.parametrize(("error", "kind", "expected"), [
    (refused.PermissionDeniedError("403 Forbidden: AccessDenied"), "list", "refuses to list"),
    (refused.GenericError("400: <Code>ExpiredToken</Code>"), "put", "credentials are expired"),
    (refused.GenericError("PUT http://169.254.169.254/latest/api/token"), "get", "no credentials were found"),
    (refused.PermissionDeniedError("403: SignatureDoesNotMatch"), "get", "credentials are wrong"),
    (refused.GenericError("after 4 retries: 503 SlowDown"), "put", "request to put failed .*SlowDown"),
    (refused.NotFoundError("404: <Code>NoSuchBucket</Code>"), "get", "no bucket of that name"),
])  # fmt: skip
def test_errors_of_a_store_say_what_can_be_done(error: Exception, kind: str, expected: str) -> None:
    """Expired and wrong credentials, missing rights and buckets are told apart, and the store's words are kept."""
    made = as_os_error(kind, ObjectPath("s3://bucket/out/a"), error)
    with pytest.raises(OSError, match=f"{expected}.*s3://bucket/out/a"):
        raise made


@pytest.mark.parametrize(("method", "answer", "said"), [
    ("", "403 AccessDenied", "refuses to"),
    ("PUT", "403 AccessDenied", "refuses to create"),
    ("GET /bucket?", "403 AccessDenied", "refuses to list|refuses to page"),
    ("POST /bucket?delete", "403 AccessDenied", "refuses to delete"),
    ("", "400 ExpiredToken", "credentials are expired"),
    ("", "403 InvalidAccessKeyId", "credentials are wrong"),
    ("", "403 SignatureDoesNotMatch", "credentials are wrong"),
    ("forget", "", "the store replaces an object although it was told to create one"),
])  # fmt: skip
def test_a_store_that_refuses_is_found_by_check_and_by_the_sink_before_a_row_is_written(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    method: str, answer: str, said: str,
) -> None:  # fmt: skip
    """Missing rights, expired or wrong keys, no conditional writes: ``check`` and a sink's start say which it is."""
    monkeypatch.chdir(tmp_path)
    directory = f"s3://bucket/{uuid.uuid4().hex}"
    Path("lines.py").write_text(TOPOLOGY.replace("s3://bucket/out", directory), encoding="utf-8")

    def fault(line: str) -> str | None:
        if method == "forget":
            return "forget"
        return answer if line.startswith(method) else None

    with FaultProxy(server, fault) as proxy:
        for name, value in {**KEYS, "DOWNSPOUT_PARQUET_STORAGE_OPTIONS": f"endpoint={proxy.url}"}.items():
            monkeypatch.setenv(name, value)
        assert main(["check", "lines.py"]) != 0
        output = "".join(capsys.readouterr())
        assert re.search(said, output), output
        assert "Try: " in output
        store = ObjectStore(s3_client(proxy.url))
        with pytest.raises(SinkError, match=said):
            write_rows(ObjectPath(directory), [("t", "", 0, 0, "")], disk=store)
    assert visible(ObjectStore(s3_client(server)), ObjectPath(directory)) == []


def test_an_object_path_is_never_looked_up_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What opens, lists or makes a local path refuses one, and no folder comes into being."""
    monkeypatch.chdir(tmp_path)
    path = place("s3://bucket/out")
    for look in (path.exists, path.is_dir, path.mkdir, path.read_bytes, path.open, lambda: [*path.iterdir()]):
        with pytest.raises(Exception, match="s3://bucket/out is on s3, but this works with local paths only"):
            look()
    assert list(tmp_path.iterdir()) == []
    assert path / "a" == place("s3:/bucket/out/a")


def test_an_open_secret_is_hidden_wherever_settings_are_shown() -> None:
    assert shown(STORAGE_OPTIONS, ["region=x", "secret_access_key=hush"]) == "…"
    assert shown(STORAGE_OPTIONS, ["secret_access_key=env:KEY", "hush"]) == "…"
    assert shown(STORAGE_OPTIONS, "region=x,hush") == "…"
    assert shown(STORAGE_OPTIONS, ["region=x", "secret_access_key=env:KEY"]) == [
        "region=x",
        "secret_access_key=env:KEY",
    ]
