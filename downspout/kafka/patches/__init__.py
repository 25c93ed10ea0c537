"""What is changed about kafka-python, and every place that touches a private name of it: one file per fault or limit.

Each file begins with a docstring of the same form: ``Wrong`` (what the client does, or does not offer), ``Patch`` (what
is done about it here), ``Self-test``, ``Since`` (the versions that are known to be so) and ``Goes when`` (what the
client would have to do for the file to be deleted); ``Upstream`` where the client's own project has a page about it.

Each file declares its self-test, the private names that it uses with the types that they must have:

* ``CONSUMER`` and ``PRODUCER``: looked at in each consumer or producer that is made (``check``), as paths from it.
* ``CLASSES``: of the client's classes; likewise.
* ``OPTIONAL``: where these are not as they should be, we do without.

So another version of the client fails at once, and not in the middle of a rebalance. The files know the client and
nothing of ours but errors and the port's types; all else touches public names only, which a test sees to.
"""
