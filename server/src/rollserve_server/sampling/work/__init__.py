"""Work: what a worker keeps for one sequence or population, and how it carries out orders for it."""
