"""A run of chaos: server, workers and clients fail at random, and all delivered data is compared with references."""
