"""The port beside a run: access, answers, and shutdown."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest

from downspout.errors import ConfigError, MissingExtraError
from downspout.export import server
from downspout.export.server import exposed


def get(url: str, **headers: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_it_listens_on_loopback_alone() -> None:
    """The address that is bound is the one asked for, and by default no other machine reaches it."""
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure:
        port = int(exposure.url.rpartition(":")[2])
        assert get(f"{exposure.url}/healthz") == (200, "text/plain; charset=utf-8", "starting\n")
        with socket.socket() as other:  # another address of this machine is free: nothing listens there
            other.bind(("127.0.0.2", port))


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/nowhere"])
def test_a_foreign_name_is_refused_on_loopback(path: str) -> None:
    """A page that lets its own name point here (DNS rebinding) reads nothing; this machine's own names are answered."""
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure:
        exposure.snapshots.close()
        port = exposure.url.rpartition(":")[2]
        ours = get(exposure.url + path)
        status, _, text = get(exposure.url + path, Host=f"evil.example:{port}")
        assert (status, "downspout_" in text, "start" in text) == (421, False, False)
        assert "http://127.0.0.1" in text
        assert get(exposure.url + path, Host=f"localhost:{port}")[0] == ours[0] != 421


def test_a_request_without_a_name_is_answered() -> None:
    """Probes that speak HTTP/1.0 send no Host; a browser always sends one."""
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure:
        port = int(exposure.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as probe, probe.makefile("rb") as answer:
            probe.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert b" 200 OK\r\n" in answer.readline()


def test_a_port_that_is_open_to_others_has_any_name() -> None:
    """Prometheus asks by the name of a service, which the process in a container does not know."""
    with exposed("0.0.0.0", 0, {}, stuck_s=30) as exposure:
        port = exposure.url.rpartition(":")[2]
        assert get(f"http://127.0.0.1:{port}/healthz", Host=f"shop.orders.svc:{port}")[0] == 200


def test_paths_are_three() -> None:
    """Anything else is not found, says what there is, and shows nothing of the request."""
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure:
        exposure.snapshots.close()
        assert get(f"{exposure.url}/metrics")[0] == 200
        assert get(f"{exposure.url}/readyz")[::2] == (503, "starting\n")
        for path in ("/", "/metrics/", "/%3Cscript%3E", "/../etc/passwd"):
            assert get(exposure.url + path) == (
                404, "text/plain; charset=utf-8", "there are /metrics, /healthz, /readyz\n"
            )  # fmt: skip


def test_a_newer_prometheus_gets_openmetrics() -> None:
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure:
        exposure.snapshots.close()
        url = f"{exposure.url}/metrics"
        assert get(url, Accept="application/openmetrics-text")[1].startswith("application/openmetrics-text")
        assert get(url)[1].startswith("text/plain")


def test_only_reading_is_allowed() -> None:
    with (
        exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure,
        pytest.raises(urllib.error.HTTPError, match="405"),
    ):
        urllib.request.urlopen(f"{exposure.url}/metrics", data=b"x", timeout=60)


def test_a_port_in_use_is_one_error_with_a_cure() -> None:
    """The message names the setting, the port and the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(
                ConfigError,
                match=rf"--metrics-port 127.0.0.1:{port}: cannot listen there: Address already in use. Try: ",
            ),
            exposed("127.0.0.1", port, {}, stuck_s=30),
        ):
            pytest.fail("it cannot be served")


def test_an_address_that_is_not_ours_is_one_error() -> None:
    """Neither a name that nothing knows nor an address of another machine ends in a traceback."""
    for host in ("no-such-host.invalid", "192.0.2.1"):
        with (
            pytest.raises(ConfigError, match=f"--metrics-port {host}:0: .+ Try: "),
            exposed(host, 0, {}, stuck_s=30),
        ):
            pytest.fail("it cannot be served")


def test_the_port_is_free_again_at_the_end() -> None:
    """The next run may have the port at once, though a client has not closed its connection."""
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure:
        port = int(exposure.url.rpartition(":")[2])
        silent = socket.create_connection(("127.0.0.1", port))
    with silent, exposed("127.0.0.1", port, {}, stuck_s=30) as again:
        assert again.url.endswith(f":{port}")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """prometheus_client is asked for only where a port is."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        pytest.raises(MissingExtraError, match=r"downspout\[metrics\]"),
        exposed("127.0.0.1", 0, {}, stuck_s=30),
    ):
        pytest.fail("it cannot be served")


def test_connections_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are only so many at once, and one that does not ask is closed: a run keeps its descriptors."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    with exposed("127.0.0.1", 0, {}, stuck_s=30) as exposure, ExitStack() as opened:
        exposure.snapshots.close()
        port = int(exposure.url.rpartition(":")[2])
        silent = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(20)]
        for each in silent:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
        assert urllib.request.urlopen(f"{exposure.url}/metrics", timeout=60).status == 200
