"""Heads: what turns a network's outputs into actions and their log-probabilities."""
