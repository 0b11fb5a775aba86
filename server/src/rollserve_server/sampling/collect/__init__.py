"""Loops that step environments with an agent, and what the loops need: noise, seeds, recurrent states, retries."""
