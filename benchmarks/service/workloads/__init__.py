"""Workloads of the service. Each module measures one kind, and checks the data that the calls deliver."""
