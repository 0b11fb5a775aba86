"""Child processes in which agents are probed before they are accepted."""
