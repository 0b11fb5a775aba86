"""`rollserve-server check-env`: whether the same seed gives the same episodes again."""
