"""The step protocol of hosts, rollserve.rows."""
