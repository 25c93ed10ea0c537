"""What it costs to be looked at: a busy run alone, with ``--metrics-port`` and with ``--ui``, without readers and with.

    python -m bench.metrics [--records 1000000] [--runs 5] [--quick]

The same topic is read by all by turns. The scraper is this process, so its own CPU time is in no figure; Prometheus
comes every 15 s as a rule, so a scrape each second is the worst of cases. The page's answers are read as one that is
open reads them: the run, fifty partitions and the new points every two seconds. Starting is taken off (a run over four
records), and every result is checked as in ``bench/race.py``.
"""

from __future__ import annotations

import statistics
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bench.contenders import downspout
from bench.flights import PARTITIONS
from bench.growth import measure
from bench.harness import Options, begin, load, machine, mib, save, spread, table
from bench.track import Measured, track
from downspout.system.ports import free_port

EVERY_S = 1.0
PAGE_EVERY_S = 2.0
PAGE = ("api/run", "api/partitions?sort=lag&offset=0&limit=50", "api/history?since_ms=9e12")


@dataclass
class Scrapes:
    """What the scraper has read."""

    count: int = 0
    size: int = 0  # bytes of the largest


@contextmanager
def scraping(port: int, paths: Sequence[str] = ("metrics",), every_s: float = EVERY_S) -> Iterator[Scrapes]:
    """Read what is served at a port each second, whenever a run serves it."""
    over, found = threading.Event(), Scrapes()

    def scrape() -> None:
        while not over.wait(every_s):
            with suppress(OSError):  # no run at the moment, or one without a port
                for path in paths:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                        found.size = max(found.size, len(answer.read()))
                        found.count += 1

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def report(measured: Sequence[Measured], scrapes: Scrapes, pages: Scrapes, described: str) -> str:
    """Return the Markdown report; the first is what the others are compared with."""
    first, rows = measured[0], []
    for each in measured:
        # Each run beside the one without of the same turn: what the machine did then was the same for both.
        more = [100 * (own / other - 1) for own, other in zip(each.each_us, first.each_us, strict=True)]
        compared = "–" if each is first else f"{statistics.median(more):+.1f} % ({min(more):+.1f} – {max(more):+.1f})"
        rows.append([each.contender.name, spread(each.each_us), compared, mib(each.rss_bytes)])
    columns = ("what", "CPU-s per million", "beside the first, by pairs", "peak memory")
    return "\n".join([
        "# What it costs to be looked at", "",
        f"{first.records:,} flights as JSON to typed Parquet, {PARTITIONS} partitions, {len(first.costs)} interleaved "
        f"runs, median (min – max) without starting. {scrapes.count} scrapes of at most {scrapes.size:,} bytes, and "
        f"{pages.count} answers for the page of at most {pages.size:,}. `python -m bench.metrics`",
        "", described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=5)
    options.size("--records", 1_000_000, 50_000, type=int)
    given: Any = options.read(arguments)
    before, scraped, silent, unseen, seen = load(), *(free_port() for _ in range(4))
    crews = [
        downspout("plain", "without metrics", note=""),
        downspout("port", "--metrics-port, not scraped", note="", options=("--metrics-port", str(silent))),
        downspout("scraped", "--metrics-port, scraped each second", note="", options=("--metrics-port", str(scraped))),
        downspout("ui", "--ui, no page open", note="", options=("--ui", str(unseen))),
        downspout("page", "--ui, a page open", note="", options=("--ui", str(seen))),
    ]
    with track() as course, scraping(scraped) as scrapes, scraping(seen, PAGE, PAGE_EVERY_S) as pages:
        measured = measure(course, crews, [given.records], given.runs)
    save(given.results, "metrics", report(measured, scrapes, pages, machine(before)), measured, course.notes)


if __name__ == "__main__":
    begin(main)
