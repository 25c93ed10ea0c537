"""Write the parts of the documentation that are made from tables in the code. ``make docs`` runs it."""

from __future__ import annotations

from pathlib import Path

from downspout.cli.settings import markdown
from downspout.config import SETTINGS
from downspout.metrics import METRICS

HERE = Path(__file__).parent
TITLES = {
    "kafka": ("KafkaSpout", "Given to `KafkaSpout.spec(...)` without the prefix, or in any layer with it."),
    "parse": ("JsonParseBolt", "Given to `JsonParseBolt.spec(...)` without the prefix."),
    "split": ("SplitBolt", "Given to `SplitBolt.spec(...)` without the prefix."),
    "enrich": ("EnrichBolt", "Given to `EnrichBolt.spec(...)` without the prefix."),
    "parquet": ("ParquetBolt and AggregateBolt", "Given to their `spec(...)` without the prefix."),
    "run": ("The local engine", "Most have an option of `downspout run`."),
}
INTRO = """# Settings

A value comes from the first of: command line (`--set KEY=VALUE`, or `--set COMPONENT:KEY=VALUE` for one component),
environment (`kafka.group` is `DOWNSPOUT_KAFKA_GROUP`), topology (the component's `config`, then the topology's),
`downspout.toml` in the working directory, default. `downspout check topologies/x.py` prints each value and where it
came from. Properties of the Kafka client go below `kafka.client.`, in kafka-python's spelling.

This page is made from the table in `downspout/config.py`.
"""


def settings_page() -> str:
    """Return docs/reference/settings.md."""
    parts = [INTRO]
    for scope in dict.fromkeys(setting.scope for setting in SETTINGS.values()):
        title, lead = TITLES.get(scope, (scope, ""))
        table = markdown([setting for setting in SETTINGS.values() if setting.scope == scope])
        parts.append(f"## {title}\n\n{lead}\n\n{table}\n")
    return "\n".join(parts)


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    rows = [f"| `{m.name}` | {m.kind} | {m.unit} | {m.help} |" for m in METRICS.values()]
    table = "\n".join(["| figure | kind | unit | what it says |", "| --- | --- | --- | --- |", *rows])
    return f"# Figures\n\nWhat a component's `report()` holds; the live view and the summary show them.\n\n{table}\n"


PAGES = {"reference/settings.md": settings_page, "reference/metrics.md": metrics_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_text(make(), encoding="utf-8")
        print(f"wrote docs/{name}")
