"""Workers: slots, the processes in them, broadcasts to all, restarts."""
