"""Expectations of a client about the current versions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANY_VERSIONS", "Expectation"]


@dataclass(frozen=True)
class Expectation:
    """Versions that a client expects to be current.

    Attributes:
        policy_version: version of the agents; None for any.
        env_version: version of the environments; None for any.
        client_id: id of the client. If it is not empty, a version that is expected at all has to be made by this
            client, whatever its number: updates of the client may overtake its calls. Environments of others are as
            expected if they have the expected number and this client has made the current agents.
    """

    policy_version: int | None = None
    env_version: int | None = None
    client_id: str = ""


ANY_VERSIONS = Expectation()
"""No expectation: the client takes the sampler as it is."""
