"""The loops that step environments with an agent."""
