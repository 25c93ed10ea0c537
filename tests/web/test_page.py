"""The page in a real Chromium: it shows the API's data, and never executes the content of a record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from downspout.clock import SYSTEM_CLOCK
from downspout.engine import Bounds, bucket_of, from_class, resolve
from downspout.run import RunMetrics
from downspout.testing import FakeKafka, MemoryBatches
from downspout.web import served
from tests.batches.counting import word_count
from tests.waiting import eventually
from tests.web.running import FOR_EVER, SCRIPT, TOPIC, Running, Shop, result, running, shop

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]

RECORDS = 2_400
HANDLER = "<img src=icon.svg onload=\"document.title='x'\">"
INLINE = """() => {
    const made = document.createElement("script");
    made.textContent = "document.title = 'x'";
    document.head.append(made);
}"""
PARTITIONS = 1_000


@pytest.fixture(scope="module")
def poisoned() -> Iterator[Running]:
    """A run that has processed all but one record, whose value is a script, and which waits for its retry."""
    values = [f"order {number}" for number in range(RECORDS)]
    with shop([SCRIPT, *values], FOR_EVER) as (made, _):
        made.until(lambda run: run["totals"]["completed"] == RECORDS and bool(run["blocked"]))
        yield made


def cells(page: Page, panel: str, row: int) -> list[str]:
    """Return the texts of a row of a panel's table."""
    return page.locator(f"#{panel} tbody tr").nth(row).locator("td").all_inner_texts()


def test_the_graph_is_drawn(page: Page, poisoned: Running) -> None:
    """A box for each component with its tasks, a curve for each input, and the one that has raised is marked."""
    page.goto(poisoned.url)
    expect(page.locator("#graph svg .node")).to_have_count(3)
    assert page.locator("#graph .node-name").all_text_contents() == ["reader", "check", "count ×2"]
    expect(page.locator("#graph path.edge")).to_have_count(2)
    expect(page.locator("#graph .box.erring")).to_have_count(1)
    expect(page.locator("#curves canvas")).to_have_count(3)
    box = page.locator("#graph svg").bounding_box()
    assert box is not None
    assert box["width"] <= 1_440


def test_its_numbers_are_those_of_the_api(page: Page, poisoned: Running) -> None:
    """Totals, each component's counters, and the partition's offsets, as the API has them."""
    page.goto(poisoned.url)
    expect(page.locator("#components tbody tr")).to_have_count(3)
    run = poisoned.api("run")
    for row, component in enumerate(run["components"]):
        shown, totals = cells(page, "components", row), component["totals"]
        executed = "–" if row == 0 else f"{totals['executed']:,}"
        assert [shown[at] for at in (2, 4, 6, 7)] == [
            f"{totals['emitted']:,}", executed, f"{totals['acked']:,}", f"{totals['failed']:,}",
        ]  # fmt: skip
    assert f"{run['totals']['completed']:,} in all" in page.locator("#tiles").inner_text()
    (figures,) = poisoned.api("partitions")["rows"]
    names = ("committed", "position", "emitted", "begin", "end", "lag")
    assert cells(page, "partitions", 0)[:7] == [f"{TOPIC}[0]", *(f"{figures[name]:,}" for name in names)]


def test_a_poison_record_appears_with_its_cure_and_runs_nothing(page: Page, poisoned: Running) -> None:
    """The record that blocks is named, its value is shown as the text that it is, and what helps stands beside."""
    page.goto(poisoned.url)
    blocked = page.locator("#blocked")
    expect(blocked).to_contain_text(f"{TOPIC}[0]@0")
    expect(blocked).to_contain_text("failed 1 time, waits for another try")
    expect(blocked).to_contain_text(SCRIPT)
    expect(blocked).to_contain_text("Try: repair the bolt")
    expect(page.locator("#components")).to_contain_text(SCRIPT)
    page.get_by_text("last error in check").click()
    expect(page.locator("#components pre")).to_contain_text("Traceback")
    assert page.title() == "shop"
    assert page.locator("section script, section img").count() == 0


def test_the_policy_stops_a_script_that_gets_in_all_the_same(page: Page, poisoned: Running) -> None:
    """Were there a hole, inline scripts and handlers would be refused by the browser."""
    page.goto(poisoned.url)
    expect(page.locator("#graph svg")).to_be_visible()
    refused: list[str] = []
    page.context.on("console", lambda message: refused.append(message.text))
    frame = page.context.new_page()
    frame.goto(poisoned.url)
    frame.evaluate("markup => { document.getElementById('name').innerHTML = markup }", HANDLER)
    frame.evaluate(INLINE)

    def both_refused() -> bool:
        frame.wait_for_timeout(20)  # lets the browser's messages in
        return sum("Content Security Policy" in text for text in refused) >= 2

    eventually(both_refused, otherwise=lambda: refused)
    assert frame.title() != "x"


def test_settings_open_with_their_sources(page: Page, poisoned: Running) -> None:
    """First what was given; all defaults at a click."""
    page.goto(poisoned.url)
    page.locator("#settings summary").click()
    row = page.locator("#settings tbody tr", has_text="kafka.retry_delay_ms_max").first
    expect(row).to_contain_text("command line")
    given = page.locator("#settings tbody tr").count()
    page.locator("#defaults").check()
    expect(page.locator("#settings tbody tr", has_text="kafka.retries_max").first).to_contain_text("default")
    assert page.locator("#settings tbody tr").count() > given


def many(done: int, at_s: float) -> RunMetrics:
    """Return made-up metrics of a run with 1,000 partitions, the last of which is far behind."""
    none = dict.fromkeys(("done", "uncommitted", "in_flight", "failed"), 0) | dict.fromkeys(
        ("why", "error", "cure"), ""
    )
    partitions = {
        f"{TOPIC}[{number}]": {
            **none, "committed": done, "position": done, "end": done + number, "lag": number, "blocks": None,
            "owner": "reader[task 1]",
        }
        for number in range(PARTITIONS)
    }  # fmt: skip
    made = result(at_s, done, partitions={"reader": partitions})
    return RunMetrics(
        "shop", made, {"reader": (0, 0), "check": (0, 0)}, Bounds(), False, {bucket_of(0.01): float(done)}
    )


@pytest.mark.sweep
def test_a_thousand_partitions_stay_usable(page: Page) -> None:
    """Fifty rows, the one furthest behind first; the others by turning pages; new figures come; a button answers."""
    graph = from_class(Shop, "shop")
    del graph.components["count"]
    with served(graph, resolve(graph, []), "127.0.0.1:0") as shown:
        shown.snapshots.look(0.0, lambda: many(1_000, 1.0))
        page.goto(shown.url)
        expect(page.locator("#partitions tbody tr")).to_have_count(50)
        expect(page.locator("#partition-count")).to_contain_text("1,000 in all, 499,500 records behind")
        first = page.locator("#partitions tbody tr").first
        expect(first).to_contain_text(f"{TOPIC}[999]")
        page.locator("#pages").get_by_text("next").click()
        expect(page.locator("#pages")).to_contain_text("51 to 100 of 1,000")
        expect(first).to_contain_text(f"{TOPIC}[949]")
        page.locator("#partitions th").get_by_text("partition").click()
        expect(first).to_contain_text(f"{TOPIC}[0]")
        taken: list[RunMetrics] = []

        def is_taken() -> bool:
            shown.snapshots.look(10.0, lambda: taken.append(many(2_000, 11.0)) or taken[0])
            page.wait_for_timeout(50)  # the page's thread may not have asked again yet
            return bool(taken)

        eventually(is_taken)
        expect(page.locator("#tiles")).to_contain_text("2,000 in all")
        page.locator("#windows").get_by_text("10 min").click()
        expect(page.locator("#windows button[aria-pressed=true]")).to_have_text("10 min")
        expect(page.locator("#partitions tbody tr")).to_have_count(50)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1_440, 800])
def test_it_fits_wide_and_narrow_windows_light_and_dark(
    chromium: Browser, poisoned: Running, width: int, scheme: Any
) -> None:
    """Nothing is wider than the window, and the colours follow the browser's scheme."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        page = context.new_page()
        page.goto(poisoned.url)
        expect(page.locator("#graph svg")).to_be_visible(timeout=60_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        channels = [int(number) for number in re.findall(r"\d+", back)]
        assert (sum(channels) < 200) == (scheme == "dark")
    finally:
        context.close()


def test_a_run_that_has_ended_is_said_to_be_gone(page: Page) -> None:
    """The page keeps what it shows, and says that it is old."""
    with shop(["order"]) as (made, _):
        made.until(lambda run: run["totals"]["completed"] == 1)
        page.goto(made.url)
        expect(page.locator("#state")).to_have_text("running")
    expect(page.locator("#state")).to_have_text("no answer", timeout=60_000)
    expect(page.locator("#notice")).to_contain_text("it has ended")
    expect(page.locator("#graph svg .node")).to_have_count(3)


def test_the_last_dead_letters_of_all_components_stand_above_the_fold(page: Page) -> None:
    """The latest first, whichever component wrote them, and no more than fit; all of them are further below."""

    def letter(at_ms: int, component: str) -> dict[str, Any]:
        where = {"topic": TOPIC, "partition": 0, "offset": at_ms, "attempts": 1, "component": component}
        text = f"<b>{at_ms}</b> does not fit" + " one line" * 40
        return where | {"at_ms": at_ms, "error": f"ValueError: {TOPIC}[0]@{at_ms}: {text}. Try: another\n  in line 7"}

    letters = {
        "reader": {
            "topic": "dead",
            "by_error": {"ValueError": 4},
            "last": [letter(at, "check") for at in (1, 3, 5, 7)],
        },
        "rejects": {"topic": "bad", "by_error": {"ValueError": 4}, "last": [letter(at, "") for at in (2, 4, 6, 8)]},
    }
    graph = from_class(Shop, "shop")
    del graph.components["count"]
    with served(graph, resolve(graph, []), "127.0.0.1:0") as shown:
        queues = {"reader": (0, 0), "check": (0, 0)}
        made = RunMetrics("shop", result(1.0, 9, dead_letters=letters), queues, Bounds(), False, {})
        shown.snapshots.look(0.0, lambda: made)
        page.goto(shown.url)
        lines = page.locator("#last-dead-letters tbody tr")
        expect(lines).to_have_count(5)
        texts = [cells(page, "last-dead-letters", row) for row in range(5)]
        assert [(row[1], row[2]) for row in texts] == [
            (f"{TOPIC}[0]@{at}", "rejects" if at % 2 == 0 else "reader") for at in (8, 7, 6, 5, 4)
        ]
        assert texts[0][-1] == "ValueError: <b>8</b> does not fit" + " one line" * 40 + "."
        box = page.locator("#last-dead-letters").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 1_000
        line = lines.first.bounding_box()
        assert line is not None
        assert line["height"] < 40
        expect(page.locator("#dead-letters .block")).to_have_count(8)


@pytest.mark.fake_only("the page shows what the engine reports; batches on a broker have tests of their own")
def test_batches_are_shown_by_their_transactions(page: Page) -> None:
    """Of a run of batches there is a table of its coordinator, and its partitions are shown as those of a spout."""
    with FakeKafka("page-of-batches", SYSTEM_CLOCK) as kafka, MemoryBatches("test"):
        kafka.create_topic("lines", 3)
        for number in range(30):
            kafka.produce("lines", b"to be", partition=number % 3)
        graph = from_class(word_count(records_max=10), "words")
        with running(kafka, graph, {"batch.store": "memory://test"}) as made:
            run = made.until(lambda run: any(row["batches_succeeded"] >= 3 for row in run.get("coordinators", ())))
            (row,) = run["coordinators"]
            assert row["component"] == "coordinator"
            assert row["batch_txid"] == row["batches_succeeded"] + 1
            page.goto(made.url)
            expect(page.locator("#batches tbody tr")).to_have_count(1)
            drawn = page.locator("#graph path.edge title").all_text_contents()
            assert len(drawn) == len({title.partition(":")[0] for title in drawn})
            assert any(title.startswith("lines → split: stream default") for title in drawn)
            expect(page.locator("#partitions tbody tr")).to_have_count(3)
            assert cells(page, "partitions", 2)[:7] == ["lines[2]", "10", "10", "9", "0", "10", "0"]
            (total,) = run["partitions"]["topics"]
            assert (total["spout"], total["topic"], total["partitions"]) == ("lines", "lines", 3)
            assert cells(page, "topics", 0)[:5] == ["lines", "lines", "3", "30", "0"]
            expect(page.locator("#lag")).to_be_visible()
            expect(page.locator(".tile", has_text="records not committed").locator("b")).to_have_text("0")
            shown = cells(page, "batches", 0)
            assert (shown[0], int(shown[1].replace(",", "")) >= row["batch_txid"]) == ("coordinator", True)
