"""Child processes of the server and its workers: their variables, and their end with the process they work for."""

from rollserve_server.children.boundary import BOUNDARY, SCRATCH
from rollserve_server.children.launcher import live_by
from rollserve_server.children.lifeline import (
    Lifeline,
    launching,
    launching_command,
    launching_module,
    variables_for_code,
    variables_for_models,
)
from rollserve_server.children.watchdog import BEAT_SECONDS, WATCHDOG

__all__ = [
    "BEAT_SECONDS",
    "BOUNDARY",
    "SCRATCH",
    "WATCHDOG",
    "Lifeline",
    "launching",
    "launching_command",
    "launching_module",
    "live_by",
    "variables_for_code",
    "variables_for_models",
]
