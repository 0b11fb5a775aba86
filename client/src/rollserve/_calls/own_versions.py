"""Versions of the agent and the environment that a client has set itself, and expects in its calls."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_wire.v1.episode_batch_pb2 import Beginning
    from rollserve_wire.v1.samplers_pb2 import RestoreSamplerResponse

__all__ = ["OwnVersions"]


class OwnVersions:
    """Versions that the accepted updates of one client returned. Thread-safe.

    The server knows the updates of a client by the client's id. So a call that waits while the same client updates the
    sampler samples with the new version, and only updates of other clients make it fail.

    Attributes:
        policy_version: version of the last agent; None before the first one.
        env_version: version of the last environments; None before the first ones.
        agent_env_version: version of the environments that the last agent was checked against; None before the first.
    """

    def __init__(self, shared: bool) -> None:
        """Start without versions.

        Args:
            shared: whether the client samples with whatever other clients set.
        """
        self.policy_version: int | None = None
        self.env_version: int | None = None
        self.agent_env_version: int | None = None
        self._client_id = "" if shared else str(uuid.uuid4())

    @property
    def client_id(self) -> str:
        """Id of the client; empty if it samples with whatever other clients set."""
        return self._client_id

    def expect_in_call(self, options: pb.SamplingOptions | pb.EvaluationOptions) -> None:
        """Make a call fail if other clients have set what it would sample with.

        Versions that the options name, or expect themselves, are left as they are.
        """
        if not self._client_id:
            return
        expects_policy = options.HasField("expected_policy_version")
        expects_env = options.HasField("expected_environment_version")
        if not (expects_policy or expects_env):  # with an id, the numbers that the caller gave would not count
            options.client_id = self._client_id
        names_env = isinstance(options, pb.EvaluationOptions) and options.HasField("environment")
        brings_agent = isinstance(options, pb.SamplingOptions) and options.agent_update.HasField("agent")
        names_policy = options.HasField("policy_version") or brings_agent
        if not (self.policy_version is None or expects_policy or names_policy):
            options.expected_policy_version = self.policy_version
        env_version = self.env_version
        if env_version is None and not brings_agent:  # a whole agent is checked against whatever is there
            env_version = self.agent_env_version
        if not (env_version is None or expects_env or names_env or options.HasField("environment_version")):
            options.expected_environment_version = env_version

    def restore(self, restored: RestoreSamplerResponse) -> None:
        """Record the versions of a sampler that the client has restored."""
        self.policy_version = restored.policy_version or None
        self.env_version = restored.environment_version
        self.agent_env_version = restored.environment_version if restored.policy_version else None

    def set_agent(self, updated: pb.UpdateAgentResponse | Beginning) -> int:
        """Record an accepted update of the agent, of its own or of a call; return its version."""
        self.policy_version, self.agent_env_version = updated.policy_version, updated.environment_version
        return updated.policy_version

    def expect_in_agent_update(self, request: pb.UpdateAgentRequest, *, keeps_any: bool) -> None:
        """Make an update fail if its agent has to fit other clients' environments, or go into their agents.

        Args:
            request: the update.
            keeps_any: whether the update keeps any of the present agents, or a part of it.
        """
        request.client_id = self._client_id
        if not self._client_id:
            return
        if self.env_version is not None:
            request.expected_environment_version = self.env_version
        if keeps_any and self.policy_version is not None:
            request.expected_policy_version = self.policy_version

    def expect_in_env_update(self, request: pb.UpdateEnvRequest, *, keeps_any: bool) -> None:
        """Make an update fail if it would change other clients' environments.

        Args:
            request: the update.
            keeps_any: whether the update keeps or changes any of the present environments.
        """
        request.client_id = self._client_id
        if self._client_id and keeps_any and self.env_version is not None:
            request.expected_environment_version = self.env_version

    def expect_in_env_call(self, request: pb.CallEnvironmentsRequest) -> None:
        """Make a call of a method fail if it would ask other clients' environments, unless it names a version."""
        request.client_id = self._client_id
        if self._client_id and self.env_version is not None and not request.HasField("environment_version"):
            request.expected_environment_version = self.env_version

    def expect_in_rendering(self, request: pb.RenderEpisodeRequest) -> None:
        """Make a video fail if it would show what other clients have set, unless it names the versions."""
        request.client_id = self._client_id
        if not self._client_id:
            return
        if self.env_version is not None and not request.HasField("environment_version"):
            request.expected_environment_version = self.env_version
        is_current = request.HasField("sampled") and not request.sampled.HasField("policy_version")
        if self.policy_version is not None and is_current:
            request.expected_policy_version = self.policy_version
