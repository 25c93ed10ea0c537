"""What it costs to be looked at: a busy run without ``--metrics-port``, with it, and with a scrape each second.

    python -m bench.metrics [--records 1000000] [--runs 5] [--quick]

The same topic is read by all by turns. The scraper is this process, so its own CPU time is in no figure; Prometheus
comes every 15 s as a rule, so a scrape each second is the worst of cases. Starting is taken off (a run over four
records), and every result is checked as in ``bench/race.py``.
"""

from __future__ import annotations

import statistics
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.contenders import downspout
from bench.flights import PARTITIONS
from bench.growth import measure
from bench.harness import Options, begin, load, machine, mib, save, spread, table
from bench.track import Measured, track
from downspout.system.ports import free_port

EVERY_S = 1.0


@dataclass
class Scrapes:
    """What the scraper has read."""

    count: int = 0
    size: int = 0  # bytes of the largest


@contextmanager
def scraping(port: int) -> Iterator[Scrapes]:
    """Read the metrics at a port each second, whenever a run serves them."""
    over, found = threading.Event(), Scrapes()

    def scrape() -> None:
        while not over.wait(EVERY_S):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    found.size = max(found.size, len(answer.read()))
                    found.count += 1
            except OSError:  # no run at the moment, or one without a port
                continue

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def report(measured: Sequence[Measured], scrapes: Scrapes, described: str) -> str:
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
        f"runs, median (min – max) without starting. {scrapes.count} scrapes of at most {scrapes.size:,} bytes. "
        "`python -m bench.metrics`", "", described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=5)
    options.size("--records", 1_000_000, 50_000, type=int)
    given: Any = options.read(arguments)
    before, scraped, silent = load(), free_port(), free_port()
    crews = [
        downspout("plain", "without metrics", note=""),
        downspout("port", "--metrics-port, not scraped", note="", options=("--metrics-port", str(silent))),
        downspout("scraped", "--metrics-port, scraped each second", note="", options=("--metrics-port", str(scraped))),
    ]
    with track() as course, scraping(scraped) as scrapes:
        measured = measure(course, crews, [given.records], given.runs)
    save(given.results, "metrics", report(measured, scrapes, machine(before)), measured, course.notes)


if __name__ == "__main__":
    begin(main)
