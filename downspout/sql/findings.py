"""Findings about SqlBolts; no database is asked."""

from __future__ import annotations

from collections.abc import Iterator

from downspout.engine.graph import Graph
from downspout.engine.settings import Settings, reads
from downspout.errors import DownspoutError
from downspout.findings import Finding
from downspout.offsets.stores.sql import open_database
from downspout.settings.folders import of_project_url
from downspout.sink.findings import without_origin
from downspout.sink.row_sink import too_old
from downspout.sql.table import DATABASE, PASSWORD, check


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find what would keep a SqlBolt from starting, or from writing rows exactly once."""
    tables: dict[tuple[str, str], str] = {}
    for component in graph.bolts:
        if not reads(component, "sql"):
            continue
        conf, name = dict(settings.components[component.name].values), component.name
        if doubt := too_old(conf, float(conf["sql.flush_age_s"]), "sql"):
            yield Finding(True, name, *doubt)
        url, table = str(conf[DATABASE] or ""), str(conf["sql.table"] or "")
        try:
            check(conf)
            if url:  # the driver is there, and the path can be one; nothing is connected
                open_database(
                    of_project_url(url, DATABASE, conf), DATABASE, password_setting=PASSWORD, wait_s=0.0
                ).close()
        except DownspoutError as error:
            yield Finding(True, name, error.message, error.cure or "`downspout settings sql`")
        if conf.get("topology.acker.executors") == 0:
            yield Finding(
                False,
                name,
                "without ackers, a crash loses the rows that the sink holds",
                "topology.acker.executors = 1",
            )
        yield from without_origin(graph, component)
        if (other := tables.setdefault((url, table.lower()), name)) != name:
            yield Finding(
                True,
                name,
                f"sql.table = {table} is also that of {other}, in the same database",
                "a table for each sink",
            )
