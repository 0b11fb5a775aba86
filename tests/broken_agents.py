"""A module of agents that cannot be imported."""

raise RuntimeError("no licence for this machine")
