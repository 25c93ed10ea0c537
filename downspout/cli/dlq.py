"""``downspout dlq``: show dead letters, replay their records, delete them.

``replay`` and ``purge`` change nothing without ``--yes``. Results go to stdout; with ``--json`` each command prints one
JSON value.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, open_cluster
from downspout.cli.arguments import add_actions, exit_codes, sentence
from downspout.cli.terminal import as_text, parse_time, printable, stamp
from downspout.errors import ConfigError, DownspoutError
from downspout.formatting import columns, counted

if TYPE_CHECKING:
    from downspout.dead_letters.dead_letter import DeadLetter
    from downspout.dead_letters.replay import Choice, LetterGroup, Replay, Sorts
    from downspout.kafka.port import Cluster

PREVIEW_BYTES = 2_000
MESSAGE_CHARS = 80
UNKNOWN = "unknown"


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("dlq", help="show, replay and purge dead letters")
    actions = add_actions(parser)
    ls = _add(actions, "ls", _ls, "count dead letters by topic, exception and message")
    show = _add(actions, "show", _show, "show one dead letter: its coordinates, error, stack, headers, key and value")
    show.add_argument("place", metavar="PLACE", help="the record that failed, such as orders[0]@918")
    show.add_argument(
        "--bytes", type=int, default=PREVIEW_BYTES, help=f"bytes of key and value to show ({PREVIEW_BYTES})"
    )
    replay = _add(
        actions, "replay", _replay, "write records back to their topic; sinks recognise them as the same records"
    )
    replay.add_argument("--to", metavar="TOPIC", help="write to this topic instead")
    replay.add_argument(
        "--skip-truncated", action="store_true",
        help="skip dead letters without the whole record, which Kafka could not return",
    )  # fmt: skip
    purge = _add(actions, "purge", _purge, "delete the oldest dead letters permanently")
    purge.add_argument(
        "--before", required=True, metavar="OFFSET",
        help="delete dead letters below this offset of the dead-letter topic: 100, or 0:100,1:250 by partition",
    )  # fmt: skip
    for each in (ls, replay):
        _add_filters(each)
    purge.add_argument(
        "--force", action="store_true", help="also delete records that are not dead letters of Downspout's"
    )
    for each in (replay, purge):
        each.add_argument("--yes", action="store_true", help="do it; without --yes, only show what would be done")


def _add(actions: Any, name: str, action: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=sentence(text), epilog=exit_codes(4)
    )
    parser.add_argument("dead_letters", metavar="TOPIC", help="the dead-letter topic, such as word_count.dead-letters")
    add_access(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=action)
    return parser


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="only records of this topic")
    parser.add_argument("--partition", type=int, help="only records of this partition")
    parser.add_argument("--offsets", metavar="FROM-TO", help="only records at these offsets, inclusive: 900-950, 900-")
    parser.add_argument("--exception", metavar="REGEX", help="only errors (class: message) that contain a match")
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="only records that last failed at or after this time: 2026-01-31T12:00, or epoch ms",
    )
    parser.add_argument("--until", metavar="TIME", help="only records that last failed before this time")


def choice_of(arguments: argparse.Namespace) -> Choice:
    """Return the choice of dead letters from the options."""
    from downspout.dead_letters.replay import Choice

    start, end = parse_offsets(arguments.offsets) if arguments.offsets else (None, None)
    try:
        exception = re.compile(arguments.exception) if arguments.exception else None
    except re.error as error:
        raise ConfigError(
            f"--exception {arguments.exception!r} is not a regular expression: {error}", cure="KeyError"
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
        raise ConfigError(f"--offsets {text} is not a range", cure="900-950, 900- or 900")
    low = int(found[1]) if found[1] else None
    high = (int(found[3]) if found[3] else None) if found[2] else low
    if low is not None and high is not None and high < low:
        raise ConfigError(f"--offsets {text} is empty", cure=f"{high}-{low}")
    return low, None if high is None else high + 1


def _cluster(arguments: argparse.Namespace) -> Cluster:
    return open_cluster(arguments)


def _print(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    print(json.dumps(facts, indent=2) if arguments.json else text)


# --- ls ---


def _ls(arguments: argparse.Namespace) -> int:
    from downspout.dead_letters.replay import Sorts, group_dead_letters, read_topic

    choice, sorts = choice_of(arguments), Sorts()
    ours = sorts.count(read_topic(_cluster(arguments), arguments.dead_letters))
    groups = group_dead_letters(dead_letter for dead_letter in ours if choice.takes(dead_letter))
    if not sorts.ours and sorts.foreign:
        raise _no_dead_letters(arguments.dead_letters, sorts.foreign)
    facts = {
        "letters": sum(group.count for group in groups), "foreign": sorts.foreign,
        "groups": [{name: getattr(group, name) for name in group.__slots__} for group in groups],
    }  # fmt: skip
    lines = [render_groups(groups)]
    if sorts.foreign:
        lines.append(f"{_foreign(arguments.dead_letters, sorts.foreign)}, as {sorts.example}")
    _print(arguments, facts, "\n".join(lines))
    return 0


def _nothing_chosen(cluster: Cluster, topic: str) -> str:
    """Return a message that no dead letters match, with those that exist."""
    from downspout.dead_letters.replay import group_dead_letters, read_topic

    groups = group_dead_letters(each for each in read_topic(cluster, topic) if each.is_ours)
    if not groups:
        return f"{topic} has no dead letters"
    return f"none of these is chosen:\n{render_groups(groups)}"


def _foreign(topic: str, count: int) -> str:
    return f"{counted(count, 'record')} of {topic} {'is not a dead letter' if count == 1 else 'are not dead letters'}"


def _no_dead_letters(topic: str, count: int) -> DownspoutError:
    return DownspoutError(
        f"{_foreign(topic, count)} of Downspout, and the topic holds nothing else",
        cure="the topic that kafka.dead_letter_topic names, GROUP.dead-letters by default",
    )


def render_groups(groups: list[LetterGroup]) -> str:
    """Return a table with the total.

    >>> from downspout.dead_letters.replay import LetterGroup
    >>> group = LetterGroup("orders", "RecordError", 2, example="orders[0]@7", message="orders[0]@7: no JSON")
    >>> print(render_groups([group]).splitlines()[1].split("  ")[-1])
    orders[0]@7: no JSON
    """
    rows = [["records", "topic", "exception", "first failed", "last failed", "for example"]]
    for group in groups:
        # Our errors begin with the coordinates already.
        named = [] if group.message.startswith(group.example) else [group.example]
        example = ": ".join(filter(None, [*named, group.message]))
        rows.append([
            f"{group.count:,}", group.topic or "unknown", group.error_class, stamp(group.first_ms),
            stamp(group.last_ms), _one_line(example),
        ])  # fmt: skip
    total = sum(group.count for group in groups)
    shown = map(printable, columns(rows, {0}) if groups else ())
    return "\n".join([*shown, counted(total, "dead letter")])


# --- show ---


def _show(arguments: argparse.Namespace) -> int:
    from downspout.dead_letters.replay import Sorts

    sorts = Sorts()
    found = _at(arguments, sorts)
    if not found and not sorts.ours and sorts.foreign:
        raise _no_dead_letters(arguments.dead_letters, sorts.foreign)
    if not found:
        raise DownspoutError(
            f"{arguments.dead_letters} has no dead letter of {arguments.place}",
            cure=f"`downspout dlq ls {arguments.dead_letters}`",
        )
    facts = [dead_letter_facts(dead_letter, arguments.bytes) for dead_letter in found]
    _print(arguments, facts, "\n\n".join(render_dead_letter(dead_letter, arguments.bytes) for dead_letter in found))
    return 0


def _at(arguments: argparse.Namespace, sorts: Sorts) -> list[DeadLetter]:
    """Return the dead letters of a record; several if its topic was deleted and created again."""
    from downspout.dead_letters.replay import Choice, read_topic

    parsed = re.fullmatch(r"(.+)\[([0-9]+)\]@([0-9]+)", arguments.place)
    if parsed is None:
        raise ConfigError(f"{arguments.place} does not identify a record", cure="'orders[0]@918'")
    offset = int(parsed[3])
    choice = Choice(parsed[1], int(parsed[2]), offset, offset + 1)
    found, place = [], (parsed[1], int(parsed[2]), offset)
    for dead_letter in read_topic(_cluster(arguments), arguments.dead_letters):
        ours, record = any(sorts.count([dead_letter])), dead_letter.record
        # A record that is not one of our dead letters is identified by its own coordinates.
        if choice.takes(dead_letter) if ours else (record.topic, record.partition, record.offset) == place:
            found.append(dead_letter)
    return found


def dead_letter_facts(dead_letter: DeadLetter, limit: int) -> dict[str, Any]:
    """Return a dead letter as JSON values; bytes that are not text are escaped."""
    from downspout.dead_letters.replay import identity_of

    names = ("topic", "topic_id", "partition", "offset", "attempts", "first_failure_ms", "last_failure_ms", "kind",
             "component", "task", "error_class", "error", "stack", "incomplete", "end",
             "record_bytes", "is_ours")  # fmt: skip
    origin, record = identity_of(dead_letter), dead_letter.record
    replay_of = None if origin is None or origin[:4] == dead_letter.origin else list(origin[:4])
    return {
        **{name: getattr(dead_letter, name) for name in names},
        "replay_of": replay_of,
        "letter": {"topic": record.topic, "partition": record.partition, "offset": record.offset},
        "timestamp": record.timestamp,
        "headers": [[name, as_text(value)] for name, value in dead_letter.headers],
        "key": as_text(record.key, limit),
        "value": as_text(record.value, limit),
        "value_bytes": None if record.value is None else len(record.value),
    }


def render_dead_letter(dead_letter: DeadLetter, limit: int) -> str:
    """Return a dead letter, or a record that is not one of ours, as text."""
    from downspout.dead_letters.replay import error_text, place_of
    from downspout.errors import coordinates

    facts, record = dead_letter_facts(dead_letter, limit), dead_letter.record
    times = f"first {stamp(dead_letter.first_failure_ms, UNKNOWN)}, last {stamp(dead_letter.last_failure_ms, UNKNOWN)}"
    where = f" in {dead_letter.component}" if dead_letter.component else ""
    why = [
        f"  failed:    {'?' if dead_letter.attempts is None else counted(dead_letter.attempts, 'time')}, {times}",
        f"  error:     {error_text(dead_letter) or 'unknown'} ({dead_letter.kind or 'unknown'}{where})",
    ]
    lines = [
        place_of(dead_letter) + (f" (topic id {dead_letter.topic_id})" if dead_letter.topic_id else ""),
        f"  stored at: {coordinates(record.topic, record.partition, record.offset)}",
        *(why if dead_letter.is_ours else ["  not a dead letter of Downspout"]),
        f"  timestamp: {stamp(record.timestamp)}",
    ]
    if len(dead_letter.offsets) > 1:
        lines.append(f"  offsets:   {dead_letter.offsets.start} to {dead_letter.offsets.stop - 1}")
    if dead_letter.incomplete:
        lines.append(f"  not whole: {dead_letter.incomplete}")
    if facts["replay_of"]:
        topic, _, partition, offset = facts["replay_of"]
        lines.append(f"  replay of: {coordinates(topic, partition, offset)}")
    lines += [f"  header:    {name}: {value}" for name, value in facts["headers"]]
    lines.append(f"  key:       {facts['key']}")
    size = len(record.value or b"")
    shown = f" (the first {limit:,} of {size:,} bytes)" if size > limit else ""
    lines.append(f"  value:     {facts['value']}{shown}")
    if dead_letter.stack:
        lines += ["  stack:", *("    " + line for line in dead_letter.stack.splitlines())]
    return printable("\n".join(lines), keep="\t\n")


# --- replay and purge ---


def _replay(arguments: argparse.Namespace) -> int:
    from downspout.dead_letters.replay import plan_replay

    cluster = _cluster(arguments)

    def plan(write: bool) -> Replay:
        chosen = choice_of(arguments).read(cluster, arguments.dead_letters)
        skip_cut = arguments.skip_truncated
        return plan_replay(cluster, arguments.dead_letters, chosen, to=arguments.to, write=write, skip_cut=skip_cut)

    planned = plan(write=False)  # first, so that a refusal comes before anything is written
    planned = plan(write=True) if arguments.yes else planned
    facts = {
        "dry_run": not arguments.yes, "records": planned.total, "to": planned.counts,
        "without_origin": planned.without_origin, "repeated": planned.repeated, "truncated": planned.cut,
        "examples": [{"record": place, "to": to} for place, to in planned.examples],
    }  # fmt: skip
    is_any = planned.total or planned.left_out
    told = render_replay(planned, done=arguments.yes) if is_any else _nothing_chosen(cluster, arguments.dead_letters)
    _print(arguments, facts, told)
    return 0


def render_replay(plan: Replay, *, done: bool) -> str:
    """Return the result of a replay or its dry run."""
    verb = "written" if done else "would be written"
    lines = [f"{place} → {to}" for place, to in plan.examples]
    lines += ["…"] if plan.total > len(plan.examples) else []
    lines += [f"{counted(count, 'record')} {verb} to {topic}" for topic, count in sorted(plan.counts.items())]
    lines += [] if plan.counts else [f"0 records {verb}"]
    left_out = {
        "they do not say where they came from": plan.without_origin,
        "they do not hold the whole record": plan.cut,
        "their record is already among these": plan.repeated,
    }
    lines += [f"skipped, because {why}: {counted(count, 'dead letter')}" for why, count in left_out.items() if count]
    return "\n".join(lines + _hint(done))


def _hint(done: bool) -> list[str]:
    return [] if done else ["nothing was changed: add --yes to do it"]


def _purge(arguments: argparse.Namespace) -> int:
    from downspout.cli.audit import parse_offset_list
    from downspout.dead_letters.replay import plan_purge, purge

    cluster = _cluster(arguments)
    plan = plan_purge(
        cluster, arguments.dead_letters, parse_offset_list("--before", arguments.before), force=arguments.force
    )
    if arguments.yes:
        purge(cluster, arguments.dead_letters, plan)
    facts = {
        "dry_run": not arguments.yes, "offsets": sum(part.count for part in plan),
        "partitions": [{"partition": p.partition, "from": p.start, "before": p.before} for p in plan],
    }  # fmt: skip
    verb = "deleted" if arguments.yes else "would be deleted"
    lines = [
        f"{arguments.dead_letters}[{p.partition}]: {counted(p.count, 'offset')} {verb}, {p.start}–{p.before - 1}"
        for p in plan
    ]
    _print(arguments, facts, "\n".join((lines or [f"0 offsets {verb}"]) + _hint(arguments.yes)))
    return 0


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"
