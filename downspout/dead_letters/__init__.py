"""Dead letters: format, writing, reading, replay and purge.

To change the content of a dead letter: dead_letter.py
To change how a bolt writes a dead letter: rejected.py
To change what a replay may write: replay.py
To change which original record a replay stands for: claims.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "claims": "PlainRecord claim identity_headers origin_of",
        "dead_letter": "DeadLetter DeadLetters PREFIX WrittenLetter WrittenLetters parse_dead_letter read_dead_letters",
        "replay": "group_dead_letters identity_of plan_replay",
    },
)
