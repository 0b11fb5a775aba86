"""Accounts: what became of everything that was simulated."""
