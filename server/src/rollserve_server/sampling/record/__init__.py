"""Steps, episodes and infos, recorded as columns."""
