"""A local S3 server, and a proxy that disturbs requests like a real network."""

from __future__ import annotations

import logging
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server with an empty ``bucket`` in threads of this process; yield its URL.

    All servers of a process share their objects, so a new one drops the earlier ones.
    """
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None  # it has started
    server._server.app = _one_at_a_time(server._server.app)
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        urllib.request.urlopen(f"{url}/moto-api/reset", data=b"", timeout=10).close()
        client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )
        client.create_bucket(Bucket="bucket")
        yield url
    finally:
        server.stop()


def _one_at_a_time(app: Any) -> Any:
    """Return an application that processes requests one at a time.

    moto checks whether a name is taken, and stores the object later. So two concurrent PUTs with ``If-None-Match: *``
    may both succeed, which no real store allows.
    """
    lock = threading.Lock()

    def call(environment: Any, start_response: Any) -> Any:
        with lock:
            return app(environment, start_response)

    return call


Fault = Callable[[str], str | None]
"""By the first line of a request: what to do with it, ``lose`` its answer, ``drop`` it unseen, ``slow`` it down.

``403 AccessDenied`` or another status and code: answer so. ``forget``: pass it on without its condition."""

SLOW_DOWN = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 43\r\nConnection: close\r\n\r\n"
    b"<Error><Code>SlowDown</Code></Error>       "
)


class FaultProxy:
    """A proxy before an S3 server that applies ``fault`` to each request; one request per connection."""

    def __init__(self, url: str, fault: Fault) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self.fault = fault
        self.requests: list[str] = []
        self.injected: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head, body = _request(connection)
            if not head:
                return
            line = head.split(b"\r\n", 1)[0].decode()
            self.requests.append(line)
            what = self.fault(line)
            if what:
                self.injected.append(f"{what} {line}")
            if what == "drop":
                return
            if what == "slow":
                connection.sendall(SLOW_DOWN)
                return
            if what and what[0].isdigit():
                connection.sendall(_refusal(what))
                return
            if what == "forget":
                head = re.sub(rb"(?i)if-none-match:[^\r]*\r\n", b"", head)
            with socket.create_connection(self._server) as upstream:
                # One request per connection, so its end is that of the answer.
                upstream.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
                answer = b""
                while block := upstream.recv(1 << 16):
                    answer += block
            if what == "lose":
                return
            if what == "tear":
                connection.sendall(answer[: len(answer) - 20])
                return
            connection.sendall(answer)


def _refusal(what: str) -> bytes:
    """Return a refusal, such as ``403 AccessDenied``."""
    status, _, code = what.partition(" ")
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    return (
        f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}"
    ).encode()


def _request(connection: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        block = connection.recv(1 << 16)
        if not block:
            return b"", b""
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head + b"\r\n\r\n", body
