"""A real Storm on one machine, and what streamparse needs to find there: see ``downspout storm``."""
