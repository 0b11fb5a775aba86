"""Environments with many agents, over PettingZoo's two interfaces, as rows whose agents take turns."""
