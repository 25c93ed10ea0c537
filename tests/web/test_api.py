"""The API of a real run: its numbers are the engine's, and other users cannot read them."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from streamparse import Topology

from downspout.clock import SYSTEM_CLOCK
from downspout.engine import from_class
from downspout.errors import ConfigError
from downspout.export import server
from downspout.export.server import listen
from downspout.testing import FakeKafka
from downspout.web.page import STATIC
from spouts.kafka import KafkaSpout
from tests.command import PYTHON_CODE, cli
from tests.web.running import FOR_EVER, GROUP, SCRIPT, TOPIC, WAIT_S, CheckBolt, Running, running, shop

RECORDS = 400
MARKUP = re.compile(
    r"""innerHTML|outerHTML|insertAdjacentHTML|document\s*\.\s*write|DOMParser|ContextualFragment|setHTML|srcdoc"""
    r"""|\beval\b|\bFunction\(|javascript:|setAttribute\(["'](?:on|href|src|style)|el\(["'](?:script|iframe|object|embed|style)"""
)
"""What makes elements, or code, of a text."""


@pytest.fixture(scope="module")
def busy() -> Iterator[Running]:
    """A run that has processed all but one record, which waits for its retry."""
    values = [f"order {number}" for number in range(RECORDS)]
    secret = {"kafka.client.sasl_plain_password": "hush"}
    with shop([*values[:7], SCRIPT, *values[7:]], {**FOR_EVER, **secret}) as (made, _):
        made.until(lambda run: run["totals"]["completed"] >= RECORDS and run["totals"]["failed"] and run["blocked"])
        yield made


def test_the_numbers_are_those_of_the_engines_report() -> None:
    """What the API says of components, of partitions and of the whole is what the run reports at its end."""
    values = [f"order {number}" for number in range(RECORDS)]
    with shop(values, {"kafka.commit_period_ms": 200}, partitions=3) as (made, kafka):
        run = made.until(lambda run: sum(row["committed"] or 0 for row in run["partitions"]["rows"]) == RECORDS)
        ended = made.stop()
    assert run["totals"]["completed"] == ended.completed == RECORDS
    assert run["windows"]["all"]["completed_per_s"] == pytest.approx(RECORDS / run["windows"]["all"]["span_s"])
    for component in run["components"]:
        counts = ended.components[component["name"]]
        assert {**component["totals"], "tasks": component["tasks"], "busy_s": 0} == {**vars(counts), "busy_s": 0}
    rows = {row["partition"]: row for row in run["partitions"]["rows"]}
    commits = {f"{tp.topic}[{tp.partition}]": c.offset for tp, c in kafka.group_offsets(GROUP).items()}
    assert {place: row["committed"] for place, row in rows.items()} == commits
    assert {place: figures["end"] for place, figures in ended.partitions["reader"].items()} == {
        place: row["end"] for place, row in rows.items()
    }


def test_the_graph_is_the_topologys(busy: Running) -> None:
    """Components with their tasks and streams, and who reads whom by which grouping."""
    found = busy.api("topology")
    assert [(each["name"], each["kind"], each["tasks"]) for each in found["components"]] == [
        ("reader", "spout", 1),
        ("check", "bolt", 1),
        ("count", "bolt", 2),
    ]
    assert [(edge["source"], edge["target"], edge["grouping"]) for edge in found["edges"]] == [
        ("reader", "check", "shuffle"),
        ("check", "count", "shuffle"),
    ]
    assert found["components"][1]["streams"] == {"default": ["origin", "value"]}


def test_a_record_that_blocks_is_named_with_its_error_and_a_cure(busy: Running) -> None:
    """The eighth record fails: its offset, how often, with what, and what to try."""
    (blocked,) = busy.api("run")["blocked"]
    assert (blocked["partition"], blocked["blocks"], blocked["done"]) == (f"{TOPIC}[0]", 7, RECORDS - 7)
    assert blocked["why"] == "failed 1 time, waits for another try"
    assert blocked["error"] == f"ValueError: no order: {SCRIPT}"
    assert blocked["cure"].startswith("repair the bolt")


def test_the_last_error_has_its_traceback(busy: Running) -> None:
    errors = {each["name"]: (each["last_error"], each["stack"]) for each in busy.api("run")["components"]}
    assert errors["reader"] == errors["count"] == ("", "")
    line, stack = errors["check"]
    assert line == f"ValueError: no order: {SCRIPT}"
    assert "Traceback" in stack
    assert "in process" in stack


def test_capacity_is_executed_times_execute_latency_over_the_window(busy: Running) -> None:
    """Storm's formula holds in each window; a bolt that acks at once has process and execute latency alike."""
    for component in busy.api("run")["components"][1:]:
        for window in component["windows"].values():
            capacity = window["executed_per_s"] * window["execute_ms"] / 1000
            assert window["capacity"] == pytest.approx(capacity)
            assert window["process_ms"] >= window["execute_ms"] > 0


def test_a_run_shows_its_own_process(busy: Running) -> None:
    """Pid and memory of the process that runs, and its share of a core at the second look."""
    (worker,) = busy.until(lambda run: run["workers"][0]["cpu_percent"] is not None)["workers"]
    assert worker["state"] == "running"
    assert worker["memory_bytes"] > 10_000_000


def test_settings_say_where_they_came_from_and_hide_secrets(busy: Running) -> None:
    """One from the command line, one from the component, one by default; a password is nowhere in the answer."""
    answer = busy.get("api/settings").data.decode()
    assert "hush" not in answer
    rows = {(row["component"], row["key"]): row for row in busy.api("settings")["settings"]}
    assert rows["reader", "kafka.client.sasl_plain_password"]["value"] == "…"
    assert rows["reader", "kafka.retry_delay_ms"]["source"] == "command line"
    assert rows["reader", "kafka.group"] == {
        "component": "reader", "key": "kafka.group", "value": GROUP, "source": "component",
    }  # fmt: skip
    assert rows["reader", "kafka.retries_max"]["source"] == "default"


def test_the_curves_are_there_for_a_page_that_comes_late(busy: Running) -> None:
    """All points since the start, or those after a moment."""
    found = busy.until(lambda found: len(found["wall_s"]) >= 3, "history")
    assert {len(column) for column in found.values()} == {len(found["wall_s"])}
    later = busy.api(f"history?since_ms={found['wall_s'][1] * 1000}")
    assert later["wall_s"][0] == found["wall_s"][2]


def test_dead_letters_are_counted_by_exception_with_the_command_that_replays_them() -> None:
    """A record that fails for good is there, with its error as text and a command that the shell takes."""
    with shop(["order", SCRIPT, "order"], {"kafka.retries_max": 0, "kafka.breaker_ratio": 0}) as (made, kafka):
        run = made.until(lambda run: run["totals"]["dead_lettered"] == 1 and run["dead_letters"])
        bootstrap = kafka.bootstrap
    (found,) = run["dead_letters"]
    assert (found["component"], found["topic"], found["by_error"]) == ("reader", "shop.dead-letters", {"ValueError": 1})
    (letter,) = found["last"]
    assert (letter["topic"], letter["partition"], letter["offset"], letter["attempts"]) == (TOPIC, 0, 1, 1)
    assert letter["error"] == f"ValueError: no order: {SCRIPT}"
    options = f"--bootstrap {bootstrap} --topic orders --partition 0 --offsets 1 --yes"
    assert letter["replay"] == f"downspout dlq replay shop.dead-letters {options}"
    assert "dead letter" in [event["kind"] for event in run["events"]]


class OddBolt(CheckBolt):
    """Raises with half of a character in its message, as a value of JSON may have it."""

    def process(self, tup: Any) -> None:
        raise ValueError("half \ud800")


class Odd(Topology):
    reader = KafkaSpout.spec(topics=[TOPIC], group=GROUP, start="EARLIEST", fields=["origin", "value"])
    odd = OddBolt.spec(inputs=[reader])


@pytest.mark.fake_only("the page of a run is the question; Kafka is a detail of it")
def test_an_error_that_is_no_utf_8_leaves_the_page_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is shown with a mark for what is no character; a record cannot take the answers away."""
    # Without a log: pytest's processes cannot send each other a captured text that is no UTF-8.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    with FakeKafka("odd", SYSTEM_CLOCK) as kafka:
        kafka.create_topic(TOPIC, 1)
        kafka.produce(TOPIC, b"order", partition=0)
        with running(kafka, from_class(Odd, "odd"), FOR_EVER) as made:
            run = made.until(lambda run: bool(run["blocked"]))
    assert run["blocked"][0]["error"] == "ValueError: half \\ud800"
    assert run["components"][1]["last_error"] == "ValueError: half \\ud800"


def test_a_page_that_asks_for_a_web_socket_gets_none(busy: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Any page in a browser of this machine may ask: that is answered as a GET, and fills no log."""
    headers = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Origin": "http://evil.example",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    assert busy.get("api/topology", **headers).status == 200
    assert busy.get("api/topology", Host="evil.example", **headers).status == 421
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


@pytest.mark.parametrize(
    ("query", "problem"),
    [("sort=nonsense", "sort=nonsense is not known"), ("offset=-1", "offset=-1 is not"), ("limit=x", "limit=x is not")],
)
def test_a_wrong_argument_is_named(busy: Running, query: str, problem: str) -> None:
    answer = busy.get(f"api/partitions?{query}")
    assert answer.status == 400
    assert problem in answer.data.decode()
    assert "Try: " in answer.data.decode()


def test_the_port_of_the_page_serves_metrics_and_health(busy: Running) -> None:
    assert b"downspout_run_completed_total" in busy.get("metrics").data
    assert busy.get("healthz").data == b"ok\n"
    assert busy.get("readyz").data == b"ready\n"


@pytest.mark.parametrize("path", ["", "api/run", "app.js"])
def test_a_foreign_name_is_refused(busy: Running, path: str) -> None:
    """A page that lets its own name point here (DNS rebinding) reads nothing; our addresses are answered."""
    assert busy.get(path, Host="evil.example").status == 421
    port = busy.url.rstrip("/").rpartition(":")[2]
    assert busy.get(path, Host=f"localhost:{port}").status == 200


@pytest.mark.parametrize("path", ["", "api/run", "vendor/uPlot.iife.min.js", "nowhere"])
def test_every_answer_forbids_what_is_not_ours(busy: Running, path: str) -> None:
    """Scripts and styles from here alone and none inline, no frames, no guessing of types, no cache."""
    headers = busy.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["../pyproject.toml", "..%2f..%2fserver.py", "static/../../server.py"])
def test_nothing_but_the_page_is_served(busy: Running, path: str) -> None:
    assert busy.get(path).status in (400, 404)


def test_a_port_that_is_taken_is_an_error_with_a_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--ui 127.0.0.1:{port}: cannot listen there: .*Try: .*--ui {port + 1}"):
            listen("127.0.0.1", port, "--ui")


@pytest.mark.slow
def test_requests_that_do_not_end_keep_nobody_out(busy: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are few, and one whose request does not arrive is closed: a run keeps its descriptors."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    host, port = busy.url.removeprefix("http://").rstrip("/").split(":")
    with ExitStack() as opened:
        halves = [opened.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S)) for _ in range(40)]
        for half in halves:
            with suppress(OSError):  # it is closed by now
                half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        for half in halves:
            with suppress(ConnectionResetError):
                assert half.recv(1) == b""
        assert busy.api("topology")["topology"] == "shop"


def test_a_run_without_ui_imports_nothing_of_it() -> None:
    code = "import sys, downspout.cli.run, downspout.run.runner, downspout.run.start_workers\nprint(*sys.modules)"
    done = cli(code, program=PYTHON_CODE, ends_s=120)
    assert not {"downspout.web", "starlette", "uvicorn", "psutil"} & set(done.stdout.split())


def test_no_script_of_the_page_takes_text_for_markup() -> None:
    """Each way to do so is missing in all of them, so what a record or an error says stays text in every panel."""
    scripts = [path for path in STATIC.rglob("*.js") if path.parent.name != "vendor"]
    assert len(scripts) >= 5
    for path in scripts:
        assert not MARKUP.search(path.read_text(encoding="utf-8")), path.name
