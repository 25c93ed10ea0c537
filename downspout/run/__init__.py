"""``downspout run`` and ``downspout check`` on one machine: the runner, the live view, several workers."""
