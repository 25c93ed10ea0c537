"""Workarounds for kafka-python, and the only modules that use its private names.

* ``connecting``: the choice of brokers, and brokers that do not answer.
* ``joining``: how a consumer joins and leaves its group.
* ``fetching``: polls, positions, commits, and requests about topics and logs.
* ``producing``: batches and their answers.
* ``transactional``: idempotent and transactional producers.
* ``private_api``: every private name that these use, checked for each new client, so an unsupported version of
  kafka-python fails at once and not in the middle of a rebalance.

Each fault has a heading and an entry point, whose docstring describes the fault (``Wrong``) and when the workaround
``Goes``. All faults were seen in kafka-python 3.0.9 to 3.0.12. The modules import nothing of ours but errors, log
filters, outages and the port's types; a test checks that all other code uses public names only.
"""
