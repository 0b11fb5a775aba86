"""Processes of a measurement: the server, the timed client, and the processes that both are compared with."""
