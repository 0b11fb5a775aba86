"""Module of agents that raises when it is imported."""

raise RuntimeError("no licence for this machine")
