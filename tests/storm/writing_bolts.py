"""A bolt of stock streamparse before KafkaBolt: it knows nothing about Downspout."""

from __future__ import annotations

from typing import ClassVar

from streamparse import Bolt


class Shout(Bolt):
    outputs: ClassVar = ["key", "message"]

    def process(self, tup):
        self.emit([None, tup.values.value.upper()])


class ShoutWithOrigin(Bolt):
    """The same, and hands on which record a value came from."""

    outputs: ClassVar = ["origin", "key", "message"]

    def process(self, tup):
        self.emit([tup.values.origin, None, tup.values.value.upper()])
