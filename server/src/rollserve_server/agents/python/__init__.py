"""Agents written in Python: installed beside the server, or pickled where the operator allows it."""
