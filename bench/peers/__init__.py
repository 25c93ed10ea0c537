"""What Downspout is measured beside: one short program each, run in an environment of its own."""
