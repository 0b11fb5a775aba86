"""Lines: sockets between the server and workers on its machine, for calls that would take Ray milliseconds."""

from rollserve_server.pool.backends.ray.line.results import ResultMemory
from rollserve_server.pool.backends.ray.line.server_end import Answer, Line, LineEndedError, Listener
from rollserve_server.pool.backends.ray.line.worker_end import WorkerLine

__all__ = ["Answer", "Line", "LineEndedError", "Listener", "ResultMemory", "WorkerLine"]
