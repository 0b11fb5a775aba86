"""The cases of the kit."""

from collections.abc import Mapping

from rollserve_conformance.cases.calls import call_cases, resumption_cases, warning_cases
from rollserve_conformance.cases.case import Case
from rollserve_conformance.cases.errors import access_cases, error_cases
from rollserve_conformance.cases.many_agents import many_agent_cases
from rollserve_conformance.cases.segments import segment_cases, value_cases
from rollserve_conformance.cases.sessions import session_cases
from rollserve_conformance.cases.updates import transform_cases, update_cases

__all__ = ["CASES", "Case"]

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        *(*value_cases(), *call_cases(), *error_cases(), *resumption_cases(), *access_cases()),
        *(*segment_cases(), *transform_cases(), *update_cases()),  # behind the others, which keep their numbers
        *(*many_agent_cases(), *warning_cases(), *session_cases()),
    )
}
"""All cases by name, in the order in which they run. The number of a case is its position, from 1."""
