"""An in-memory schema registry for tests and demos, with the HTTP interface that producers and bolts use."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote


class SchemaRegistry:
    """A registry on a free port of 127.0.0.1, inside a ``with`` block. It does not check compatibility.

    >>> with SchemaRegistry() as registry:
    ...     number = registry.register("flights-value", '{"type": "record", "name": "Flight", "fields": []}')
    ...     print(number, registry.url.startswith("http://127.0.0.1:"))
    1 True
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}  # responses by id
        self.subjects: dict[str, list[int]] = {}  # ids by version
        self.away = False  # answer all requests with 503
        self.password: str | None = None  # required from clients, as ``user:password``
        self.requests: list[str] = []  # the requested paths

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[dict[str, Any]] = ()) -> int:
        """Add a version to a subject; return its schema's id. Kind is AVRO, PROTOBUF or JSON."""
        found: dict[str, Any] = {"schema": schema}
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = list(references)
        number = next((known for known, other in self.schemas.items() if other == found), len(self.schemas) + 1)
        self.schemas[number] = found
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> SchemaRegistry:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _answer(self, registry, b"")

            def do_POST(self) -> None:
                _answer(self, registry, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and document of a response."""
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
        if parts[0] == "subjects" and body:
            given = json.loads(body)
            kind, references = given.get("schemaType", "AVRO"), given.get("references", ())
            return 200, {"id": self.register(parts[1], given["schema"], kind, references)}
        if parts[:2] == ["schemas", "ids"] and parts[2].isdecimal() and int(parts[2]) in self.schemas:
            return 200, self.schemas[int(parts[2])]
        if parts[0] == "subjects" and len(parts) == 4 and parts[1] in self.subjects:
            ids = self.subjects[parts[1]]
            version = len(ids) if parts[3] in ("latest", "-1") else int(parts[3])
            if 1 <= version <= len(ids):
                number = ids[version - 1]
                return 200, {"subject": parts[1], "version": version, "id": number, **self.schemas[number]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


def _answer(request: BaseHTTPRequestHandler, registry: SchemaRegistry, body: bytes) -> None:
    from base64 import b64encode

    registry.requests.append(request.path)
    wanted = registry.password and f"Basic {b64encode(registry.password.encode()).decode()}"
    if registry.away:
        status, document = 503, {"message": "away"}
    elif wanted and request.headers.get("Authorization") != wanted:
        status, document = 401, {"message": "Unauthorized"}
    else:
        status, document = registry.answer(request.path, body)
    content = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)
