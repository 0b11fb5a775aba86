"""Bounded concurrency: a limited number of calls run, the others queue in order of arrival."""

from rollserve_server.admission.admission import NEVER_STALLED, Admission, Receiver
from rollserve_server.admission.connections import ConnectedReceiver, ConnectionAdmission

__all__ = ["NEVER_STALLED", "Admission", "ConnectedReceiver", "ConnectionAdmission", "Receiver"]
