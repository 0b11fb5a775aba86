"""The adapter of the Python client: `python -m rollserve_conformance.python_adapter`."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import rollserve
from rollserve_conformance.description import (
    MANY_HEADERS,
    OPTIONAL_STATES,
    describe_columns,
    describe_groups,
    describe_step,
    describe_sums,
)
from rollserve_conformance.operations import array_of
from rollserve_conformance.reading import GROUPS, HEADERS
from rollserve_wire.columns import leaves_of
from rollserve_wire.transforms import transform_from_json

__all__: list[str] = []

_Json = Mapping[str, Any]

_KINDS: Mapping[type[rollserve.RollserveError], str] = {
    rollserve.AccessError: "access",
    rollserve.InvalidArgumentError: "invalid_argument",
    rollserve.PreconditionError: "precondition",
    rollserve.LimitError: "limit",
    rollserve.UnavailableError: "unavailable",
    rollserve.CancelledError: "cancelled",
    rollserve.DeadlineError: "deadline",
}
_Sampler = rollserve.Sampler[rollserve.EpisodeBatch] | rollserve.Sampler[rollserve.MultiAgentBatch]
_RENAMED = {"environment_version": "env_version"}
_NUMBERS = {"temperatures": "temperature", "noise_scales": "noise_scale", "epsilons": "epsilon"}


def main() -> None:
    """Answer each line of the standard input."""
    for line in sys.stdin:
        case = json.loads(line)
        sys.stdout.write(f"{json.dumps({'case': case['case'], 'results': _results(case)})}\n")
        sys.stdout.flush()


def _results(case: _Json) -> list[_Json]:
    connect = dict(case["connect"])
    options = {"timeout": connect.pop("timeout_seconds")} if "timeout_seconds" in connect else {}
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            rollserve.connect(connect.pop("target"), **connect, **options) as sampler,
        ):
            warnings.simplefilter("always", RuntimeWarning)
            has_many_agents = any("multi_agent" in operation for operation in case["operations"])
            calls: _Sampler = sampler.multi_agent if has_many_agents else sampler
            return [_result(calls, operation, caught) for operation in case["operations"]]
    except rollserve.RollserveError as error:
        return [_error(error)] * len(case["operations"])


def _result(sampler: _Sampler, operation: _Json, caught: list[warnings.WarningMessage]) -> _Json:
    if operation["do"] == "warnings":
        return {"warnings": [str(each.message) for each in caught]}
    try:
        return _OPERATIONS[operation["do"]](sampler, operation)
    except rollserve.RollserveError as error:
        return _error(error)


def _error(error: rollserve.RollserveError) -> _Json:
    kind = next((_KINDS[each] for each in type(error).__mro__ if each in _KINDS), "server")
    text = {"message": error.message, "reason": str(error.reason), "field": error.field, "request_id": error.request_id}
    return {"error": {"kind": kind, "status": error.code.name, **text}}


def _env(operation: _Json) -> rollserve.EnvSpec:
    settings = {
        name: operation[name]
        for name in ("kwargs", "reset_options", "vectorization", "num_rows", "multi_agent", "global_state")
        if name in operation
    }
    wrappers = [rollserve.Wrapper(each["name"], each.get("kwargs", {})) for each in operation.get("wrappers", [])]
    if "task" in operation:
        settings["task"] = rollserve.Task(operation["task"]["method"], operation["task"]["argument"])
    transforms = list(map(transform_from_json, operation.get("transforms", [])))
    return rollserve.EnvSpec(operation["id"], wrappers=wrappers, transforms=transforms, **settings)


def _env_update(operation: _Json) -> rollserve.EnvSpec | rollserve.EnvChange:
    return _env(operation) if "id" in operation else rollserve.EnvChange(kwargs=operation["kwargs"])


def _update_env(sampler: _Sampler, operation: _Json) -> _Json:
    return {"environment_version": sampler.update_env(_env_update(operation)).env_version}


def _update_env_per_worker(sampler: _Sampler, operation: _Json) -> _Json:
    updates = [each and _env_update(each) for each in operation["updates"]]
    return {"environment_version": sampler.update_env(per_worker=updates).env_version}


def _call_environments(sampler: _Sampler, operation: _Json) -> _Json:
    version, arguments = operation.get("environment_version"), operation.get("arguments", ())
    return {"values": sampler.call_environments(operation["method"], *arguments, env_version=version)}


def _arrays(arrays: _Json) -> dict[str, np.ndarray]:
    return {name: array_of(each) for name, each in arrays.items()}


def _agent(agent: _Json) -> Any:
    settings = {name: value for name, value in agent.items() if name != "kind"}
    if "parameters" in settings:
        settings["parameters"] = _arrays(settings["parameters"])
    if agent["kind"] == "onnx":
        settings["model"] = base64.b64decode(settings["model"])
    if agent["kind"] == "constant":
        action = _arrays(settings["action"])
        settings["action"] = action[""] if action.keys() == {""} else action
    if "action_mask" in settings:
        settings["action_mask"] = rollserve.ActionMask(**settings["action_mask"])
    settings.pop("layer_sizes", None)  # which follow from the parameters
    kinds = {
        "random": rollserve.RandomAgent,
        "constant": rollserve.ConstantAgent,
        "mlp": rollserve.MlpAgent,
        "onnx": rollserve.OnnxAgent,
        "python": rollserve.PythonAgent,
    }
    return kinds[agent["kind"]](**settings)


def _update(operation: _Json) -> Any:
    if "change" in operation:
        return _change(operation["change"])
    if "policies" in operation:
        return _policies(operation)
    return _agent(operation["agent"]) if "agent" in operation else _arrays(operation["parameters"])


def _policies(operation: _Json) -> rollserve.Policies:
    updates = {name: _update(update) for name, update in operation["policies"].items()}
    return rollserve.Policies(updates, _policy_map(operation["policy_map"]) if "policy_map" in operation else None)


def _policy_map(rules: list[_Json]) -> dict[str | int, Any]:
    return {_agents(rule): [_choice(each) for each in rule["choices"]] for rule in rules}


def _agents(rule: _Json) -> str | int:
    if "position" in rule:
        return int(rule["position"])
    return str(rule["name"]) if "name" in rule else f"{rule['prefix']}*"


def _choice(choice: _Json) -> tuple[str, int, float]:
    return choice["policy"], choice.get("version", 0), choice["weight"]


def _change(change: _Json) -> rollserve.AgentChange:
    return rollserve.AgentChange(change.get("kwargs", {}), _arrays(change.get("parameters", {})))


def _update_agent(sampler: _Sampler, operation: _Json) -> _Json:
    skip = operation.get("skip_if_identical", False)
    return {"policy_version": sampler.update_agent(_update(operation), skip_if_identical=skip)}


def _update_policies(sampler: _Sampler, operation: _Json) -> _Json:
    return {"policy_version": sampler.update_agent(_policies(operation))}


def _change_agent(sampler: _Sampler, operation: _Json) -> _Json:
    return {"policy_version": sampler.update_agent(_change(operation))}


def _update_agent_per_worker(sampler: _Sampler, operation: _Json) -> _Json:
    updates = [each and _update(each) for each in operation["updates"]]
    return {"policy_version": sampler.update_agent(per_worker=updates)}


def _options(operation: _Json) -> dict[str, Any]:
    options = dict(operation.get("options", {}))
    result: dict[str, Any] = {}
    updates = {"agent", "parameters", "change", "policies", "policy_map"}
    if options.keys() & updates:
        result["agent"] = _update(options)
        options = {name: value for name, value in options.items() if name not in updates}
    options.pop("return_returns_before", None)  # which this client always asks for
    for name, value in options.items():
        if name == "seed":
            result[name] = int(value)
        elif name == "plain_frames":
            result["frames_once"] = not value
        else:
            result[_NUMBERS.get(name, _RENAMED.get(name, name))] = value
    return result


def _result_of(batch: rollserve.EpisodeBatch | rollserve.MultiAgentBatch, operation: _Json) -> _Json:
    """Describe the batch of a call, of one agent or of many."""
    if not isinstance(batch, rollserve.MultiAgentBatch):
        return {"batch": _batch(batch)}
    result = {"multi_agent_batch": _many(batch)}
    if "by_agent" in operation.get("views", ()):
        result["by_agent"] = {agent: _batch(of_agent) for agent, of_agent in batch.by_agent().items()}
    if "joint" in operation.get("views", ()):
        result["joint"] = {agent: _steps(steps) for agent, steps in batch.joint().items()}
    return result


def _many(batch: rollserve.MultiAgentBatch) -> _Json:
    description: dict[str, Any] = {name: getattr(batch, name).tolist() for name in MANY_HEADERS}
    description["agents"] = list(batch.agents)
    for name in OPTIONAL_STATES:
        if (states := getattr(batch, name)) is not None:
            description[name] = describe_columns({"": states})[""]
    batches = batch.by_policy()
    description["policies"] = {
        part.policy: {
            **_batch(batches[part.policy]),
            "agents": [batch.agents[position] for position in part.agent_positions],
            "env_steps": part.env_steps.tolist(),
            "rewards_before": part.rewards_before.tolist(),
        }
        for part in batch.policies
    }
    return {**description, "account": _account(batch.account)}


def _steps(steps: rollserve.AgentSteps) -> _Json:
    names = ("acted", "observations", "actions", "rewards", "terminated", "truncated", "policy_versions")
    return {name: describe_columns(leaves_of(getattr(steps, name))) for name in names}


def _account(account: rollserve.Account) -> _Json:
    names = ("num_steps", "num_episodes", "num_resumptions", "num_non_finite_steps")
    described = {name: getattr(account, name) for name in names}
    return {**described, "seed": str(account.seed), "dropped_infos": dict(account.dropped_infos)}


def _batch(batch: rollserve.EpisodeBatch) -> _Json:
    description: dict[str, Any] = {name: getattr(batch, name).tolist() for name in HEADERS}
    description["returns"] = batch.returns.tolist()
    columns = {name: getattr(batch, name) for name in GROUPS}
    description |= describe_groups({name: {} if each is None else leaves_of(each) for name, each in columns.items()})
    description["returns_before"] = describe_sums(batch.returns_before)
    if batch.account_or_none is not None:
        description["account"] = _account(batch.account)
    return description


def _obtain_samples(sampler: _Sampler, operation: _Json) -> _Json:
    start = time.perf_counter()
    batch = sampler.obtain_samples(operation["num_steps"], **_options(operation))
    return {"seconds": time.perf_counter() - start, **_result_of(batch, operation)}


def _obtain_exact_episodes(sampler: _Sampler, operation: _Json) -> _Json:
    batch = sampler.obtain_exact_episodes(operation["num_episodes_per_worker"], **_options(operation))
    return _result_of(batch, operation)


def _obtain_fragments(sampler: _Sampler, operation: _Json) -> _Json:
    options = {name: operation[name] for name in ("row_step_count", "soft_horizon") if name in operation}
    batch = sampler.obtain_fragments(operation["num_steps"], **options, **_options(operation))
    return _result_of(batch, operation)


def _stream_samples(sampler: _Sampler, operation: _Json) -> _Json:
    num_batches = num_steps = 0
    reports: list[rollserve.CallProgress] = []
    with sampler.stream_samples(operation["num_steps"], progress=reports.append, **_options(operation)) as stream:
        for batch in stream:
            num_batches += 1
            num_steps += batch.num_steps
            if num_batches == operation.get("stop_after"):
                break
    result: dict[str, Any] = {"num_batches": num_batches, "num_steps": num_steps}
    if operation.get("progress"):
        names = ("num_simulated_steps", "num_ended_episodes")
        result["progress"] = {name: getattr(reports[-1], name) for name in names}
    return result


def _drive(sampler: Any, operation: _Json) -> _Json:
    names = ("fragment_length", "infos", "record", "min_ready", "lease_seconds")
    settings = {name: operation[name] for name in names if name in operation}
    infos = _arrays(operation.get("agent_infos", {}))
    session: rollserve.Session = sampler.drive(agent_infos=infos, **settings, **_options(operation))
    results: list[_Json] = []
    with contextlib.ExitStack() as stack:
        stack.callback(session.close)
        for each in operation["operations"]:
            if each["do"] == "resume":
                session.close()
                time.sleep(each.get("after_seconds", 0))
                session = sampler.resume_session(session.token, agent_infos=infos)
                stack.callback(session.close)
                results.append({})
            else:
                results.append(_driven(session, each, operation))
    return {"results": results}


def _driven(session: rollserve.Session, operation: _Json, driven: _Json) -> _Json:
    try:
        match operation["do"]:
            case "observe":
                return {"step": describe_step(_step(session.observe()))}
            case "step":
                actions, infos = _arrays(operation["actions"]), _arrays(operation.get("agent_infos", {}))
                before = session.observe()
                idle = before.terminated | before.truncated if driven.get("next_step") else None
                shown = session.step(actions[""] if actions.keys() == {""} else actions, infos, idle)
                return {"step": describe_step(_step(shown))}
            case "rows":
                return {"rows": _rows(session, operation)}
            case "batch":
                return {"batch": _batch(session.batch())}
            case _:
                return {"account": _account(session.end())}
    except rollserve.RollserveError as error:
        return _error(error)


def _rows(session: rollserve.Session, operation: _Json) -> _Json:
    """Act in rows as they become ready; return what each has shown, by step and row."""
    actions, infos = _arrays(operation["actions"]), _arrays(operation.get("agent_infos", {}))
    num_steps = len(next(iter(actions.values())))
    shown: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    while not session.num_rows or len(shown) < (num_steps + 1) * session.num_rows:
        step = session.recv()
        columns = leaves_of(step.observations)
        for position, place in enumerate(zip(step.row_steps.tolist(), step.rows.tolist(), strict=True)):
            shown[place] = {name: column[position] for name, column in columns.items()}
            shown[place]["rewards"] = step.rewards[position]
        acts = step.row_steps < num_steps
        if acts.any():
            rows, steps = step.rows[acts], step.row_steps[acts]
            sent, its = ({name: each[steps, rows] for name, each in given.items()} for given in (actions, infos))
            session.send(sent[""] if sent.keys() == {""} else sent, rows, its)
    whole = {name: np.stack([shown[place][name] for place in sorted(shown)]) for name in shown[0, 0]}
    whole = {name: each.reshape(num_steps + 1, session.num_rows, *each.shape[1:]) for name, each in whole.items()}
    rewards = {"": whole.pop("rewards")}
    return {"observations": describe_columns(whole), "rewards": describe_columns(rewards)}


def _step(step: rollserve.DrivenStep) -> dict[str, Any]:
    columns = {name: leaves_of(getattr(step, name)) for name in ("observations", "last_observations")}
    return {**vars(step), **columns}


def _evaluate(sampler: _Sampler, operation: _Json) -> _Json:
    options = _options(operation)
    if "policy_maps" in operation:
        options["policy_map"] = list(map(_policy_map, operation["policy_maps"]))
    evaluation = sampler.evaluate(operation["num_episodes"], **options)
    result: dict[str, Any] = {"returns": evaluation.returns.tolist(), "lengths": evaluation.lengths.tolist()}
    if evaluation.agent_returns is not None:
        result["agent_returns"] = _agent_returns(evaluation.agent_returns)
    return result


def _agent_returns(returns: rollserve.AgentReturns) -> _Json:
    return {
        "agents": list(returns.agents),
        "policies": list(map(str, returns.policies)),
        "returns": describe_sums(returns.returns.ravel()),
        "policy_positions": returns.policy_positions.ravel().tolist(),
        "by_agent": {agent: summary.mean for agent, summary in returns.by_agent().items()},
        "by_policy": {str(policy): summary.mean for policy, summary in returns.by_policy().items()},
    }


def _status(sampler: _Sampler, _: _Json) -> _Json:
    status = sampler.status()
    return {
        "policy_version": status.policy_version,
        "environment_version": status.env_version,
        "num_workers": len(status.workers),
    }


_OPERATIONS: Mapping[str, Callable[[_Sampler, _Json], _Json]] = {
    "update_env": _update_env,
    "change_env": _update_env,
    "update_env_per_worker": _update_env_per_worker,
    "call_environments": _call_environments,
    "update_agent": _update_agent,
    "change_agent": _change_agent,
    "update_agent_per_worker": _update_agent_per_worker,
    "update_policies": _update_policies,
    "obtain_samples": _obtain_samples,
    "obtain_exact_episodes": _obtain_exact_episodes,
    "obtain_fragments": _obtain_fragments,
    "stream_samples": _stream_samples,
    "drive": _drive,
    "evaluate": _evaluate,
    "status": _status,
}

if __name__ == "__main__":
    main()
