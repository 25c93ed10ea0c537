"""``project/`` is a user's project, not part of the suite: its modules are found by its own paths alone."""

collect_ignore = ["project"]
