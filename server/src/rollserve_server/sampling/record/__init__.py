"""Steps, episodes and infos as columns."""
