"""Programs that run in the peers' virtual environments. Each module collects with one peer for a while.

`python -m benchmarks.peers.runs.PEER WORKLOAD SECONDS SETTINGS`, with the settings as JSON, prints its report as a line
of JSON. The modules need the peer alone, and nothing of Rollserve.
"""
