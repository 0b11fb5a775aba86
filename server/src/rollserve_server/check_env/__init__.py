"""`rollserve-server check-env`: whether the same seed gives the same episodes again."""

from rollserve_server.check_env.command import check_env_command

__all__ = ["check_env_command"]
