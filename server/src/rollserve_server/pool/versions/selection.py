"""Selection of a call's versions, which have to fit each other, and of the slots where its episodes run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.agents import check_exploration, kind_of, prepare_for_env
from rollserve_server.errors import DomainError, NotReadyError, within
from rollserve_server.futures import in_request_thread
from rollserve_server.pool.plan.ledger import Anywhere, Placement, RoundRobin
from rollserve_wire.environments import Reproducibility
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.agents import Exploration
    from rollserve_server.pool.requests import Expectation, SamplingOptions
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.settings import AgentSettings


__all__ = ["Selection", "check_expected_env", "check_expected_policy", "no_agent"]


class Selection:
    """Chooses versions for calls, and remembers which agents fit which environments."""

    def __init__(self, versions: Versions, settings: AgentSettings) -> None:
        self._versions = versions
        self.settings = settings
        self._misfits: dict[tuple[int, int], DomainError | None] = {}

    def choose_policy(self, options: SamplingOptions) -> int:
        """Return the version of the agents that a call acts with.

        Raises:
            NotReadyError: there is no agent, the current version is not the expected one, or the version is too old
                or not kept.
        """
        agents = self._versions.agents
        if not agents.number or (agents.current is None and options.policy_version is None):
            raise no_agent()
        with within("options"):
            check_expected_policy(self._versions, options.expected)
            reason = Reason.POLICY_VERSION
            version = agents.choose(options.policy_version, reason)
            if options.min_policy_version is not None and version < options.min_policy_version:
                got = f"{version}, the version that would act"
                wanted = f"at least {options.min_policy_version}"
                raise NotReadyError.of("min_policy_version", expected=wanted, got=got, reason=reason)
        return version

    def choose_env(self, options: SamplingOptions) -> int:
        """Return the version of the environments that a call acts in.

        Raises:
            NotReadyError: the current version is not the expected one, or the version is not kept.
        """
        with within("options"):
            check_expected_env(self._versions, options.expected)
            return self._versions.envs.choose(options.env_version, Reason.ENVIRONMENT_VERSION)

    def check_exploration(self, policy_version: int, exploration: Exploration) -> None:
        """Raise InvalidValueError if the agents of a version cannot act like that."""
        with within("options.exploration"):
            for agent in self._versions.agents.get(policy_version) or ():
                check_exploration(agent, exploration)

    async def check_fit(self, policy_version: int, env_number: int) -> None:
        """Raise NotReadyError if the agents of a version do not fit environments; both are kept."""
        misfit = await self.misfit(policy_version, env_number)
        if misfit is not None:
            text = f"the agent does not fit the environment, so call UpdateAgent first: {misfit.message}"
            raise NotReadyError(text, reason=Reason.AGENT_MISFIT)

    def remember_fit(self, policy_version: int, env_number: int) -> None:
        """Record that the agents of a version fit environments, because they were checked against them."""
        self._remember((policy_version, env_number), None)

    def check_num_workers(self, policy_version: int, env_number: int, num_workers: int) -> None:
        """Raise NotReadyError if versions came for each worker when there were more or fewer."""
        agents, env = self._versions.agents.get(policy_version), self._versions.env(env_number)
        values = {"policy_version": agents or (), "environment_version": env.specs if env else ()}
        for name, each in values.items():
            if len(each) not in (0, 1, num_workers):
                expected = f"a version for {num_workers} workers"
                got = f"one for each of {len(each)}"
                raise NotReadyError.of(f"options.{name}", expected=expected, got=got, reason=Reason.WORKER_COUNT)

    def placement(self, policy_version: int, env_number: int, num_workers: int) -> Placement:
        """Return which worker an episode belongs to where the call does not say; both versions are kept."""
        env, agents = self._versions.env_in_use(env_number), self._versions.agents.get(policy_version)
        if env.rows_differ or len(agents or ()) > 1 or len(env.specs) > 1:
            by_rows = env.rows_differ or env.description.num_episodes_per_row is not None
            return RoundRobin(num_workers, env.description.num_rows if by_rows else 1)
        return Anywhere()

    def are_alike(self, policy_version: int, env_number: int) -> bool:
        """Whether all workers run an episode with the same result, so that its worker is only a name."""
        env, agents = self._versions.env_in_use(env_number), self._versions.agents.get(policy_version)
        is_repeatable = env.description.reproducibility is not Reproducibility.WORKER
        return is_repeatable and len(agents or ()) <= 1 and len(env.specs) <= 1

    async def misfit(self, policy_version: int, env_number: int) -> DomainError | None:
        """Return why the agents of a version do not fit environments, or None if they do; both are kept."""
        pair = policy_version, env_number
        if pair not in self._misfits:
            self._remember(pair, await in_request_thread(self._find_misfit, *pair))
        return self._misfits[pair]

    def _remember(self, pair: tuple[int, int], misfit: DomainError | None) -> None:
        """Record a result, and forget results for versions that are not kept any more."""
        self._misfits = {
            (policy, env): value
            for (policy, env), value in self._misfits.items()
            if policy in self._versions.agents and self._versions.env(env) is not None
        }
        self._misfits[pair] = misfit

    def _find_misfit(self, policy_version: int, env_number: int) -> DomainError | None:
        env = self._versions.env(env_number)
        try:
            for agent in self._versions.agents.get(policy_version) or ():
                with within(kind_of(agent)):
                    if env is not None:
                        spaces = env.description.observation_space, env.description.action_space
                        prepare_for_env(agent, *spaces, self.settings, env.description.agents)
        except DomainError as error:
            return error
        return None


def no_agent() -> NotReadyError:
    """Return the error of a request that needs an agent before there is one."""
    return NotReadyError("there is no agent yet: call UpdateAgent first", reason=Reason.NO_AGENT)


def check_expected_policy(versions: Versions, expected: Expectation) -> None:
    """Raise NotReadyError if the current agents are not the expected ones, or if there are none.

    So nobody samples with another client's versions in silence.
    """
    agents, wanted = versions.agents, expected.policy_version
    if wanted is None:
        return
    if agents.current is None:
        raise no_agent()
    is_own, is_first = expected.client_id in agents.current.clients, agents.number == versions.first_agents
    _check("agent", "expected_policy_version", expected.client_id, wanted, agents.number, is_own, is_first)


def check_expected_env(versions: Versions, expected: Expectation) -> None:
    """Raise NotReadyError if the current environments are not the expected ones."""
    envs, agents, wanted, client_id = versions.envs, versions.agents, expected.env_version, expected.client_id
    if wanted is None or envs.current is None:
        return
    # Whether the client has set the environments, or the agent for them, so that the number counts.
    has_agent = wanted == envs.number and agents.current is not None and client_id in agents.current.clients
    is_own, is_first = has_agent or client_id == envs.current.client_id, envs.number == versions.first_env
    _check("environment", "expected_environment_version", client_id, wanted, envs.number, is_own, is_first)


def _check(what: str, field: str, client_id: str, wanted: int, number: int, is_own: bool, is_first: bool) -> None:
    """Raise NotReadyError if a version is not the wanted one: by its number, or by who has set it for a known client.

    Args:
        what: what the version is of.
        field: field of the request that wants it.
        client_id: id of the client; empty for none.
        wanted: number of the wanted version.
        number: number of the current one.
        is_own: whether the client has set it.
        is_first: whether the sampler's run has begun with it, so that what the client has set is of an earlier run.
    """
    if not client_id:
        if wanted != number:
            got = f"{number}, the current version"
            raise NotReadyError.of(field, expected=wanted, got=got, reason=Reason.UNEXPECTED_VERSION)
    elif not is_own and is_first:
        text = (
            f"the sampler has begun a new run since this client set {what} {wanted}: "
            "call UpdateEnv again, and then UpdateAgent with a whole agent"
        )
        raise NotReadyError(text, reason=Reason.SAMPLER_RUN, field=field)
    elif not is_own:
        hint = f"update the {what} again, connect as shared to use what others set, or use a sampler of your own"
        expected, got = f"{wanted}, which this client set", f"{number}, which another client set"
        raise NotReadyError.of(field, expected=expected, got=got, hint=hint, reason=Reason.UNEXPECTED_VERSION)
