"""Child processes in which agents are tried before they are accepted."""
