"""What Downspout is measured beside: one short program each, run in its own environment."""
