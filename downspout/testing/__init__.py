"""For tests of topologies, the users' and our own."""
