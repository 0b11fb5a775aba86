"""What runs in the peers' own environments: each module collects with one peer, for a while, and prints a line of JSON.

`python -m benchmarks.peers.runs.PEER WORKLOAD SECONDS SETTINGS`, with the settings as JSON. The modules need the peer
alone, and nothing of Rollserve.
"""
