"""The pool's interface: requests for calls and updates, and what they yield, as plain values."""
