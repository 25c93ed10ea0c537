"""More than one core of one machine: several processes that run one topology, and a supervisor.

``downspout run --workers N`` starts N workers. Each is what ``downspout run --member K`` is: the whole topology in one
process, a member of the consumer group with its own partitions. They write into one output directory, whose commit log
keeps each row exactly once whatever becomes of a worker. The supervisor runs no topology; it

* decides once what all must agree on: the topology id, and where a bounded run ends (``plan``);
* starts the workers, adds their metrics up (``merge``), and shows them as one run;
* restarts crashed workers, soon at first and not for ever (``restarts``);
* stops them all: in order, or at once (``supervisor``).

One socket pair joins supervisor and worker (``channel``). The job goes down, as one line; metrics and the error that
ended the worker come up, as lines too. When it is closed, each side knows that the other one is gone. To stop a worker
the supervisor sends SIGTERM.
"""
