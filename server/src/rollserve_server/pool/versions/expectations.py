"""Checks of what clients expect of the current versions, so that nobody samples with another client's in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.errors import NotReadyError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.pool.interface.expectation import Expectation
    from rollserve_server.pool.versions.versions import Versions

__all__ = ["check_expected_env", "check_expected_policy"]


def check_expected_policy(versions: Versions, expected: Expectation) -> None:
    """Raise NotReadyError if the current agents are not the expected ones, or if there are none."""
    agents, wanted = versions.agents, expected.policy_version
    if wanted is None:
        return
    if agents.current is None:
        raise NotReadyError("there is no agent yet: call UpdateAgent first", reason=Reason.NO_AGENT)
    if expected.client_id and expected.client_id not in agents.current.clients:
        if agents.number == versions.first_agents:
            raise _earlier_run("agent", "expected_policy_version", wanted)
        raise _not_own("agent", "expected_policy_version", wanted, f"{agents.number}, which another client set")
    if not expected.client_id and wanted != agents.number:
        raise _not_equal("expected_policy_version", wanted, agents.number)


def check_expected_env(versions: Versions, expected: Expectation) -> None:
    """Raise NotReadyError if the current environments are not the expected ones."""
    envs, wanted = versions.envs, expected.env_version
    if wanted is None or envs.current is None:
        return
    if expected.client_id and not _knows_env(versions, expected.client_id, wanted):
        if envs.number == versions.first_env:
            raise _earlier_run("environment", "expected_environment_version", wanted)
        got = f"{envs.number}, which another client set"
        raise _not_own("environment", "expected_environment_version", wanted, got)
    if not expected.client_id and wanted != envs.number:
        raise _not_equal("expected_environment_version", wanted, envs.number)


def _knows_env(versions: Versions, client_id: str, wanted: int) -> bool:
    """Whether a client has set the current environments, or the current agent for them, so that the number counts."""
    envs, agents = versions.envs, versions.agents
    if envs.current is not None and client_id == envs.current.client_id:
        return True
    return wanted == envs.number and agents.current is not None and client_id in agents.current.clients


def _earlier_run(what: str, field: str, wanted: int) -> NotReadyError:
    """Return the error for a version of an earlier run, to a client that has set it."""
    text = (
        f"the sampler has begun a new run since this client set {what} {wanted}: "
        "call UpdateEnv again, and then UpdateAgent with a whole agent"
    )
    return NotReadyError(text, reason=Reason.SAMPLER_RUN, field=field)


def _not_own(what: str, field: str, wanted: int, got: str) -> NotReadyError:
    """Return the error for a version that another client has set, to a client that has set one itself."""
    expected = f"{wanted}, which this client set"
    hint = f"update the {what} again, connect with shared=True to use what others set, or use a server of your own"
    return NotReadyError.of(field, expected=expected, got=got, hint=hint, reason=Reason.UNEXPECTED_VERSION)


def _not_equal(field: str, wanted: int, number: int) -> NotReadyError:
    got = f"{number}, the current version"
    return NotReadyError.of(field, expected=wanted, got=got, reason=Reason.UNEXPECTED_VERSION)
