"""Workarounds for kafka-python, and the only modules that use its private names.

* ``connecting``: which brokers a client asks, and brokers that do not answer.
* ``joining``: how a consumer joins and leaves its group.
* ``fetching``: what polls return, positions, commits, and questions about logs.
* ``producing``: batches, and what an answer says about them.
* ``transactional``: idempotent and transactional producers.
* ``private_api``: every private name that these use, checked for each client that is made. An unknown version of
  kafka-python fails there at once, and not in the middle of a rebalance.

Each fault has one heading and one entry point, whose docstring says what is ``Wrong`` and when the workaround ``Goes
when``. All faults were seen in kafka-python 3.0.9 to 3.0.12. The modules import nothing of ours but errors, log
filters, outages and the port's types; all other code uses public names only, which a test checks.
"""
