"""Records on a terminal: bytes as text, milliseconds as a time, and nothing that the terminal would obey."""

from __future__ import annotations

from downspout.errors import ConfigError


def printable(text: str, keep: str = "") -> str:
    r"""Return a text as a terminal may show it: characters that are not visible are escaped, but those to ``keep``.

    Records may hold characters that move a cursor, hide a line or send an answer to the terminal's input.

    >>> printable("ü\n\x1b[2J"), printable("a\nb", keep="\n")
    ('ü\\n\\x1b[2J', 'a\nb')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def as_text(data: bytes | None, limit: int | None = None, null: str | None = None) -> str | None:
    r"""Return bytes as text, those that are none escaped; of the first ``limit`` bytes.

    >>> as_text(b"caf\xc3\xa9 \xff"), as_text(b"abc", 2), as_text(None, null="null")
    ('café \\xff', 'ab', 'null')
    """
    return null if data is None else data[:limit].decode("utf-8", errors="backslashreplace")


def stamp(time_ms: int | None, unknown: str = "-", timespec: str = "seconds") -> str:
    """Return a time in ms since the epoch as UTC.

    >>> stamp(1500), stamp(1500, timespec="milliseconds"), stamp(-1)
    ('1970-01-01T00:00:01Z', '1970-01-01T00:00:01.500Z', '-')
    """
    from datetime import UTC, datetime, timedelta  # not at the top: each command loads this

    if time_ms is None or time_ms < 0:
        return unknown
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_time(option: str, text: str) -> int:
    """Return milliseconds since the epoch; a time without a zone is UTC.

    >>> parse_time("--since", "1970-01-01T00:00:01"), parse_time("--since", "250")
    (1000, 250)
    """
    from datetime import UTC, datetime, timedelta

    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text} is not a time", cure="2026-01-31T12:00, or milliseconds") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
