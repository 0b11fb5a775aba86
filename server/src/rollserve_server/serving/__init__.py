"""The server process: checked and built from settings, serving until a signal, then closed in order."""

from rollserve_server.serving.build import Extras
from rollserve_server.serving.checks import check_environment, check_settings
from rollserve_server.serving.parent import Answer
from rollserve_server.serving.process import run
from rollserve_server.serving.reloading import ReadSettings

__all__ = ["Answer", "Extras", "ReadSettings", "check_environment", "check_settings", "run"]
