"""``downspout dlq``: look at dead letters, write their records back, delete them.

``replay`` and ``purge`` only say what they would do, until ``--yes`` is given. Results go to stdout; with ``--json``
each command prints one JSON value.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, open_cluster
from downspout.cli.printing import printable
from downspout.errors import ConfigError, DownspoutError
from downspout.wording import counted

if TYPE_CHECKING:
    from downspout.kafka.deadletter import DeadLetter
    from downspout.kafka.letters import Choice, Group, Replay, Sorts
    from downspout.kafka.port import Cluster

PREVIEW_BYTES = 2_000
MESSAGE_CHARS = 80
UNKNOWN = "unknown"


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("dlq", help="look at dead letters, replay and purge them")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    ls = _add(actions, "ls", _ls, "count dead letters by topic and exception; each record counts once")
    show = _add(actions, "show", _show, "show one dead letter whole: where from, why, headers, stack, value")
    show.add_argument("place", metavar="PLACE", help="the record that failed, as orders[0]@918")
    show.add_argument("--bytes", type=int, default=PREVIEW_BYTES, help=f"of key and value ({PREVIEW_BYTES})")
    replay = _add(actions, "replay", _replay, "write records back to their topic, as the same records to the sinks")
    replay.add_argument("--to", metavar="TOPIC", help="write to this topic instead")
    purge = _add(actions, "purge", _purge, "delete the oldest dead letters for good")
    purge.add_argument(
        "--before", required=True, metavar="OFFSET",
        help="delete letters below this offset of the dead-letter topic: 100, or by partition 0:100,1:250",
    )  # fmt: skip
    for each in (ls, replay):
        _add_filters(each)
    purge.add_argument("--force", action="store_true", help="delete records that are no dead letters of ours, too")
    for each in (replay, purge):
        each.add_argument("--yes", action="store_true", help="do it; without, only say what would be done")


def _add(actions: Any, name: str, action: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.add_argument("letters", metavar="LETTERS", help="the dead-letter topic, as word_count.dead-letters")
    add_access(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=action)
    return parser


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="only records of this topic")
    parser.add_argument("--partition", type=int, help="only records of this partition")
    parser.add_argument(
        "--offsets", metavar="FROM-TO", help="only records at these offsets, both included: 900-950, 900-"
    )
    parser.add_argument("--exception", metavar="REGEX", help="only errors (class: message) in which this is found")
    parser.add_argument("--since", metavar="TIME", help="failed last at or after this: 2026-01-31T12:00, or epoch ms")
    parser.add_argument("--until", metavar="TIME", help="failed last before this")


def choice_of(arguments: argparse.Namespace) -> Choice:
    """Return which letters the options choose.

    Raises:
        ConfigError: one of them makes no sense.
    """
    from downspout.kafka.letters import Choice

    start, end = parse_offsets(arguments.offsets) if arguments.offsets else (None, None)
    try:
        exception = re.compile(arguments.exception) if arguments.exception else None
    except re.error as error:
        raise ConfigError(
            f"--exception {arguments.exception!r} is no regular expression: {error}", cure="KeyError"
        ) from None
    since_ms = parse_time("--since", arguments.since) if arguments.since else None
    until_ms = parse_time("--until", arguments.until) if arguments.until else None
    return Choice(arguments.topic, arguments.partition, start, end, exception, since_ms, until_ms)


def parse_offsets(text: str) -> tuple[int | None, int | None]:
    """Return the lowest offset and one more than the highest.

    >>> parse_offsets("900-950"), parse_offsets("900"), parse_offsets("900-"), parse_offsets("-950")
    ((900, 951), (900, 901), (900, None), (None, 951))
    """
    found = re.fullmatch(r"([0-9]*)(-?)([0-9]*)", text)
    if found is None or not (found[1] or found[3]):
        raise ConfigError(f"--offsets {text} is no range", cure="900-950, 900- or 900")
    low = int(found[1]) if found[1] else None
    high = (int(found[3]) if found[3] else None) if found[2] else low
    if low is not None and high is not None and high < low:
        raise ConfigError(f"--offsets {text} holds nothing", cure=f"{high}-{low}")
    return low, None if high is None else high + 1


def parse_time(option: str, text: str) -> int:
    """Return milliseconds since the epoch; a time without a zone is UTC.

    >>> parse_time("--since", "1970-01-01T00:00:01"), parse_time("--since", "250")
    (1000, 250)
    """
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text} is no time", cure="2026-01-31T12:00, or milliseconds") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    return open_cluster(arguments)


def _print(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    print(json.dumps(facts, indent=2) if arguments.json else text)


# --- ls ---


def _ls(arguments: argparse.Namespace) -> int:
    from downspout.kafka.letters import Sorts, group_letters, read_letters

    choice, sorts = choice_of(arguments), Sorts()
    ours = sorts.count(read_letters(_cluster(arguments), arguments.letters))
    groups = group_letters(letter for letter in ours if choice.takes(letter))
    if not sorts.ours and sorts.foreign:
        raise _no_letters(arguments.letters, sorts.foreign)
    facts = {
        "letters": sum(group.count for group in groups), "foreign": sorts.foreign,
        "groups": [_group_facts(group) for group in groups],
    }  # fmt: skip
    lines = [render_groups(groups)]
    if sorts.foreign:
        lines.append(f"{_foreign(arguments.letters, sorts.foreign)}, as {sorts.example}")
    _print(arguments, facts, "\n".join(lines))
    return 0


def _foreign(topic: str, count: int) -> str:
    return f"{counted(count, 'record')} of {topic} {'is no dead letter' if count == 1 else 'are no dead letters'}"


def _no_letters(topic: str, count: int) -> DownspoutError:
    return DownspoutError(
        f"{_foreign(topic, count)} of ours, and nothing else is there",
        cure="the topic that kafka.dead_letter_topic names, GROUP.dead-letters by default",
    )


def _group_facts(group: Group) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__slots__}


def render_groups(groups: list[Group]) -> str:
    """Return a table, and the total.

    >>> from downspout.kafka.letters import Group
    >>> group = Group("orders", "RecordError", 2, example="orders[0]@7", message="orders[0]@7: no JSON")
    >>> print(render_groups([group]).splitlines()[1].split("  ")[-1])
    orders[0]@7: no JSON
    """
    rows = [["records", "topic", "exception", "first failed", "last failed", "for example"]]
    for group in groups:
        # Errors of ours begin with the place themselves.
        named = [] if group.message.startswith(group.example) else [group.example]
        example = ": ".join(filter(None, [*named, group.message]))
        rows.append([
            f"{group.count:,}", group.topic or "unknown", group.error_class, _stamp(group.first_ms),
            _stamp(group.last_ms), _one_line(example),
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].rjust(widths[0]), *(cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    total = sum(group.count for group in groups)
    shown = [printable(line.rstrip()) for line in lines if groups]
    return "\n".join([*shown, counted(total, "dead letter")])


# --- show ---


def _show(arguments: argparse.Namespace) -> int:
    from downspout.kafka.letters import Sorts

    sorts = Sorts()
    found = _at(arguments, sorts)
    if not found and not sorts.ours and sorts.foreign:
        raise _no_letters(arguments.letters, sorts.foreign)
    if not found:
        raise DownspoutError(
            f"{arguments.letters} has no letter of {arguments.place}", cure=f"`downspout dlq ls {arguments.letters}`"
        )
    facts = [letter_facts(letter, arguments.bytes) for letter in found]
    _print(arguments, facts, "\n\n".join(render_letter(letter, arguments.bytes) for letter in found))
    return 0


def _at(arguments: argparse.Namespace, sorts: Sorts) -> list[DeadLetter]:
    """Return the letters of a place, more than one where its topic was deleted and made again.

    A record that is no letter of ours has no other place than its own in the dead-letter topic.
    """
    from downspout.kafka.letters import Choice, read_letters

    parsed = re.fullmatch(r"(.+)\[([0-9]+)\]@([0-9]+)", arguments.place)
    if parsed is None:
        raise ConfigError(f"{arguments.place} is no place of a record", cure="'orders[0]@918'")
    offset = int(parsed[3])
    choice = Choice(parsed[1], int(parsed[2]), offset, offset + 1)
    found, place = [], (parsed[1], int(parsed[2]), offset)
    for letter in read_letters(_cluster(arguments), arguments.letters):
        ours, record = any(sorts.count([letter])), letter.letter
        if choice.takes(letter) if ours else (record.topic, record.partition, record.offset) == place:
            found.append(letter)
    return found


def letter_facts(letter: DeadLetter, limit: int) -> dict[str, Any]:
    """Return all that a letter tells, as JSON values; bytes that are no text are escaped."""
    from downspout.kafka.letters import identity_of

    names = ("topic", "topic_id", "partition", "offset", "attempts", "first_failure_ms", "last_failure_ms", "kind",
             "component", "task", "error_class", "error", "stack", "incomplete", "is_ours")  # fmt: skip
    origin, record = identity_of(letter), letter.letter
    replay_of = None if origin is None or origin[:4] == letter.origin else list(origin[:4])
    return {
        **{name: getattr(letter, name) for name in names},
        "replay_of": replay_of,
        "letter": {"topic": record.topic, "partition": record.partition, "offset": record.offset},
        "timestamp": record.timestamp,
        "headers": [[name, _text(value)] for name, value in letter.headers],
        "key": _text(record.key, limit),
        "value": _text(record.value, limit),
        "value_bytes": None if record.value is None else len(record.value),
    }


def render_letter(letter: DeadLetter, limit: int) -> str:
    """Return a letter for people; of a record that is none of ours, what there is."""
    from downspout.errors import coordinates
    from downspout.kafka.letters import error_text, place_of

    facts, record = letter_facts(letter, limit), letter.letter
    times = f"first {_stamp(letter.first_failure_ms, UNKNOWN)}, last {_stamp(letter.last_failure_ms, UNKNOWN)}"
    where = f" in {letter.component}" if letter.component else ""
    why = [
        f"  failed:    {'?' if letter.attempts is None else counted(letter.attempts, 'time')}, {times}",
        f"  error:     {error_text(letter) or 'unknown'} ({letter.kind or 'unknown'}{where})",
    ]
    lines = [
        place_of(letter) + (f" (topic id {letter.topic_id})" if letter.topic_id else ""),
        f"  letter:    {coordinates(record.topic, record.partition, record.offset)}",
        *(why if letter.is_ours else ["  no dead letter of ours"]),
        f"  timestamp: {_stamp(record.timestamp)}",
    ]
    if letter.incomplete:
        lines.append(f"  not whole: {letter.incomplete}")
    if facts["replay_of"]:
        topic, _, partition, offset = facts["replay_of"]
        lines.append(f"  replay of: {coordinates(topic, partition, offset)}")
    lines += [f"  header:    {name}: {value}" for name, value in facts["headers"]]
    lines.append(f"  key:       {facts['key']}")
    size = len(record.value or b"")
    shown = f" (the first {limit:,} of {size:,} bytes)" if size > limit else ""
    lines.append(f"  value:     {facts['value']}{shown}")
    if letter.stack:
        lines += ["  stack:", *("    " + line for line in letter.stack.splitlines())]
    return printable("\n".join(lines), keep="\t\n")


# --- replay and purge ---


def _replay(arguments: argparse.Namespace) -> int:
    from downspout.kafka.letters import plan_replay

    cluster = _cluster(arguments)
    chosen = choice_of(arguments).read(cluster, arguments.letters)
    plan = plan_replay(cluster, arguments.letters, chosen, to=arguments.to, write=arguments.yes)
    facts = {
        "dry_run": not arguments.yes, "records": plan.total, "to": plan.counts, "without_origin": plan.without_origin,
        "repeated": plan.repeated, "examples": [{"record": place, "to": to} for place, to in plan.examples],
    }  # fmt: skip
    _print(arguments, facts, render_replay(plan, done=arguments.yes))
    return 0


def render_replay(plan: Replay, *, done: bool) -> str:
    """Return what was or would be written."""
    verb = "written" if done else "would be written"
    lines = [f"{place} → {to}" for place, to in plan.examples]
    lines += ["…"] if plan.total > len(plan.examples) else []
    lines += [f"{counted(count, 'record')} {verb} to {topic}" for topic, count in sorted(plan.counts.items())]
    lines += [] if plan.counts else [f"0 records {verb}"]
    if plan.without_origin:
        lines.append(f"without word of where it came from, so left out: {counted(plan.without_origin, 'letter')}")
    if plan.repeated:
        lines.append(f"of a record that is among these already, so left out: {counted(plan.repeated, 'letter')}")
    return "\n".join(lines + _hint(done))


def _hint(done: bool) -> list[str]:
    return [] if done else ["nothing was done: --yes does it"]


def _purge(arguments: argparse.Namespace) -> int:
    from downspout.cli.audit import parse_offset_list
    from downspout.kafka.purging import plan_purge, purge

    cluster = _cluster(arguments)
    plan = plan_purge(
        cluster, arguments.letters, parse_offset_list("--before", arguments.before), force=arguments.force
    )
    if arguments.yes:
        purge(cluster, arguments.letters, plan)
    facts = {
        "dry_run": not arguments.yes, "offsets": sum(part.count for part in plan),
        "partitions": [{"partition": p.partition, "from": p.start, "before": p.before} for p in plan],
    }  # fmt: skip
    verb = "deleted" if arguments.yes else "would be deleted"
    lines = [
        f"{arguments.letters}[{p.partition}]: {counted(p.count, 'offset')} {verb}, {p.start}–{p.before - 1}"
        for p in plan
    ]
    _print(arguments, facts, "\n".join((lines or [f"0 offsets {verb}"]) + _hint(arguments.yes)))
    return 0


def _text(data: bytes | None, limit: int | None = None) -> str | None:
    return None if data is None else data[:limit].decode("utf-8", errors="backslashreplace")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"


def _stamp(time_ms: int | None, unknown: str = "-") -> str:
    if time_ms is None or time_ms < 0:
        return unknown
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
