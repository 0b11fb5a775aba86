"""Numbered versions of agents and environments: checked, installed on all workers, kept, evicted."""
