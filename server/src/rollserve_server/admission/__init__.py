"""Bounded concurrency: a limited number of calls run, in turns of their clients; the others queue."""

from rollserve_server.admission.admission import NEVER_STALLED, Admission, Receiver
from rollserve_server.admission.connections import ConnectionAdmission
from rollserve_server.admission.turn import Turn

__all__ = ["NEVER_STALLED", "Admission", "ConnectionAdmission", "Receiver", "Turn"]
