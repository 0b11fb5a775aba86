"""What a worker keeps for one sequence or population."""
