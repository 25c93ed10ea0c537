"""More than one core of one machine: several processes that run one topology, and one that looks after them.

``downspout run --workers N`` starts N workers. Each is what ``downspout run --member K`` is: the whole topology in one
process, a member of the consumer group with its own partitions. They write into one output directory, whose commit log
keeps each row exactly once whatever becomes of a worker. The supervisor runs no topology; it

* settles once what all must agree on: the topology id, and where a bounded run ends (``plan``);
* starts the workers, adds their figures up (``merge``), and shows them as one run;
* starts again who dies, at first at once and not for ever (``restarts``);
* stops them all: in order, or at once (``supervisor``).

Supervisor and worker are joined by one socket pair (``channel``). Down goes the job, one line; up come figures and how
it ended, lines too. That it is closed means, for either side, that the other one is gone. To stop a worker the
supervisor sends SIGTERM, as anybody would.
"""
