"""Rows that go on from call to call, and the fragments they make."""
