"""The server process: checked and built from settings, serving until a signal, then closed in order."""

from rollserve_server.serving.build import Extras
from rollserve_server.serving.checks import check_environment, check_settings
from rollserve_server.serving.parent import Answer
from rollserve_server.serving.process import run

__all__ = ["Answer", "Extras", "check_environment", "check_settings", "run"]
