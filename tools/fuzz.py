"""``make fuzz``: the parsers of untrusted input under atheris, which follows the branches that an input takes.

Needs ``pip install atheris`` (Linux, and a Python that it supports), which is no part of what a user or CI installs.
The tests in ``test_untrusted.py`` make inputs by rules; this one finds them::

    python -m tools.fuzz "log entry" -max_total_time=60
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Fuzz one parser with the samples as a start; ends with a crash file where an error of another kind comes."""
    import atheris

    with atheris.instrument_imports(include=["downspout.ledger", "downspout.sink", "downspout.kafka", "json"]):
        from tests.security.untrusted import PARSERS, survives
    name, *options = sys.argv[1:]
    parser = PARSERS[name]

    def sealed(content: bytes) -> bytes:
        """Return the input, and where it is a document the same under a checksum that fits."""
        import json

        if parser.resealed is None:
            return content
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return content
        if not isinstance(document, dict):
            return content
        document.pop("checksum", None)
        try:
            return parser.resealed(document)
        except RecursionError:
            return content

    with tempfile.TemporaryDirectory() as corpus:
        for number, sample in enumerate(parser.samples):
            (Path(corpus) / str(number)).write_bytes(sample)
        atheris.Setup([sys.argv[0], "-max_len=4096", *options, corpus], lambda data: survives(parser, sealed(data)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
