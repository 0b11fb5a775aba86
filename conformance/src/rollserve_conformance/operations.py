"""Operations of the cases as requests of the service: what a client has to send."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.json_format import MessageToDict, ParseDict

from rollserve_wire.v1 import agent_pb2, environment_pb2, policies_pb2, tensor_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["RPCS", "array", "array_of", "divided_steps", "driven_actions", "meaning", "request_of"]

RPCS = {
    "update_env": "UpdateEnv",
    "change_env": "UpdateEnv",
    "update_env_per_worker": "UpdateEnv",
    "call_environments": "CallEnvironments",
    "update_agent": "UpdateAgent",
    "change_agent": "UpdateAgent",
    "update_agent_per_worker": "UpdateAgent",
    "update_policies": "UpdateAgent",
    "obtain_samples": "ObtainSamples",
    "obtain_exact_episodes": "ObtainExactEpisodes",
    "obtain_fragments": "ObtainSamples",
    "stream_samples": "ObtainSamples",
    "drive": "DriveEnvironments",
    "evaluate": "Evaluate",
    "status": "GetSampler",
}
"""The RPC of each operation."""

_TRANSPORT = {
    "accept_compression",
    "accept_frame_stacks",
    "accept_joined",
    "accept_shared_memory",
    "max_message_bytes",
    "client_id",
    "expected_policy_version",
    "expected_environment_version",
    "return_returns_before",
    "return_spaces",
}
"""Fields that clients set as they like."""

_OPTIONS = {
    "first_episode_index",
    "max_episode_length",
    "policy_version",
    "min_policy_version",
    "environment_version",
    "return_states",
    "return_last_values",
    "return_last_states",
    "return_returns_before",
    "skip_failed_episodes",
    "prefetch",
}
_UPDATES = ("agent", "parameters", "change", "policies")
_EXPLORATION = {"deterministic", "temperatures", "noise_scales", "epsilons"}


def array(value: object, dtype: str) -> dict[str, Any]:
    """Return an array as operations have it."""
    array = np.asarray(value, dtype)
    return {"dtype": dtype, "shape": list(array.shape), "base64": base64.b64encode(array.tobytes()).decode()}


def array_of(value: Mapping[str, Any]) -> np.ndarray:
    """Return the array that an operation has."""
    return np.frombuffer(base64.b64decode(value["base64"]), value["dtype"]).reshape(value["shape"])


def request_of(operation: Mapping[str, Any]) -> Message:
    """Return the request that an operation describes."""
    return _REQUESTS[operation["do"]](operation)


def meaning(request: Message) -> Any:
    """Return what a request says, without what clients may add or write in several ways, as JSON has it."""
    return _meaning(MessageToDict(request, preserving_proto_field_name=True))


def _meaning(value: Any) -> Any:
    if isinstance(value, list):
        values = [_meaning(each) for each in value]
        is_named = all(isinstance(each, dict) and "tensor" in each for each in values)
        return sorted(values, key=lambda each: each.get("name", "")) if is_named else values
    if not isinstance(value, dict):
        return value
    result = {name: _meaning(each) for name, each in value.items() if name not in _TRANSPORT}
    for name in [name for name in result if name.endswith("_json")]:
        texts = result[name]
        result[name] = list(map(json.loads, texts)) if isinstance(texts, list) else json.loads(texts or "{}")
        if name != "argument_json" and not result[name]:
            del result[name]
    for name in ("exploration", "options", "episodes"):
        if result.get(name) == {}:
            del result[name]
    if not any(result.get("idle", (True,))):
        del result["idle"]
    for name in ("change", "python"):  # whose parameters can be left out; an update with none is another update
        if name in result and result[name].get("parameters") == {}:
            del result[name]["parameters"]
    return result


def _tensors(arrays: Mapping[str, Any]) -> list[tensor_pb2.NamedTensor]:
    tensors = []
    for name, each in arrays.items():
        data_type = tensor_pb2.DataType.Value(f"DATA_TYPE_{each['dtype'].upper()}")
        tensor = tensor_pb2.Tensor(data_type=data_type, shape=each["shape"], data=base64.b64decode(each["base64"]))
        tensors.append(tensor_pb2.NamedTensor(name=name, tensor=tensor))
    return tensors


def _agent(agent: Mapping[str, Any]) -> agent_pb2.Agent:
    message = _agent_without_mask(agent)
    if "action_mask" in agent:
        getattr(message, agent["kind"]).action_mask.CopyFrom(agent_pb2.ActionMask(**agent["action_mask"]))
    return message


def _agent_without_mask(agent: Mapping[str, Any]) -> agent_pb2.Agent:
    kind = agent["kind"]
    parameters = agent_pb2.Parameters(tensors=_tensors(agent.get("parameters", {})))
    if kind == "random":
        return agent_pb2.Agent(random=agent_pb2.RandomAgent())
    if kind == "constant":
        return agent_pb2.Agent(constant=agent_pb2.ConstantAgent(action=_tensors(agent["action"])))
    if kind == "mlp":
        mlp = agent_pb2.MlpAgent(layer_sizes=agent["layer_sizes"], parameters=parameters)
        mlp.activation = agent_pb2.Activation.Value(f"ACTIVATION_{agent['activation'].upper()}")
        getattr(mlp, agent["head"]).SetInParent()
        _set_parts(mlp, agent)
        return agent_pb2.Agent(mlp=mlp)
    if kind == "onnx":
        onnx = agent_pb2.OnnxAgent(
            model=base64.b64decode(agent["model"]),
            inputs=agent.get("inputs", {}),
            outputs=agent.get("outputs", {}),
            infos=agent.get("infos", []),
        )
        getattr(onnx, agent["head"]).SetInParent()
        return agent_pb2.Agent(onnx=onnx)
    python = agent_pb2.PythonAgent(name=agent["name"], kwargs_json=json.dumps(agent.get("kwargs", {})))
    if "parameters" in agent:
        python.parameters.CopyFrom(parameters)
    return agent_pb2.Agent(python=python)


def _set_parts(mlp: agent_pb2.MlpAgent, agent: Mapping[str, Any]) -> None:
    """Set the parts of an MLP that the names of its parameters stand for."""
    parameters = agent["parameters"]
    if "value/weight" in parameters:
        mlp.shared_value.SetInParent()
    if "core/weight_hh" in parameters:
        mlp.gru.size = parameters["core/weight_hh"]["shape"][1]
    if "observation/mean" in parameters:
        mlp.normalization.epsilon = agent["normalization_epsilon"]
        mlp.normalization.clip = agent["normalization_clip"]


def _agent_update(operation: Mapping[str, Any]) -> pb.AgentUpdate:
    if "agent" in operation:
        return pb.AgentUpdate(agent=_agent(operation["agent"]))
    if "change" in operation:
        return pb.AgentUpdate(change=_agent_change(operation["change"]))
    if "policies" in operation:
        return pb.AgentUpdate(policies=_policy_updates(operation))
    return pb.AgentUpdate(parameters=agent_pb2.Parameters(tensors=_tensors(operation["parameters"])))


def _policy_updates(operation: Mapping[str, Any]) -> pb.PolicyUpdates:
    updates = {name: _agent_update(update) for name, update in operation["policies"].items()}
    policy_map = _policy_map(operation["policy_map"]) if "policy_map" in operation else None
    return pb.PolicyUpdates(policies=updates, policy_map=policy_map)


def _policy_map(rules: Any) -> policies_pb2.PolicyMap:
    return ParseDict({"rules": rules}, policies_pb2.PolicyMap())


def _agent_change(change: Mapping[str, Any]) -> pb.AgentChange:
    parameters = agent_pb2.Parameters(tensors=_tensors(change.get("parameters", {})))
    return pb.AgentChange(kwargs_json=json.dumps(change.get("kwargs", {})), parameters=parameters)


def _update_agent(operation: Mapping[str, Any]) -> Message:
    skip = operation.get("skip_if_identical", False)
    return pb.UpdateAgentRequest(all_workers=_agent_update(operation), skip_if_identical=skip)


def _change_agent(operation: Mapping[str, Any]) -> Message:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(change=_agent_change(operation)))


def _update_policies(operation: Mapping[str, Any]) -> Message:
    return pb.UpdateAgentRequest(all_workers=_agent_update(operation))


def _update_agent_per_worker(operation: Mapping[str, Any]) -> Message:
    updates = [_agent_update(each) if each else pb.AgentUpdate() for each in operation["updates"]]
    return pb.UpdateAgentRequest(per_worker=pb.AgentUpdatePerWorker(updates=updates))


def _environment(operation: Mapping[str, Any]) -> environment_pb2.Environment:
    environment = environment_pb2.Environment(
        id=operation["id"],
        kwargs_json=json.dumps(operation.get("kwargs", {})),
        wrappers=[
            environment_pb2.Wrapper(name=each["name"], kwargs_json=json.dumps(each.get("kwargs", {})))
            for each in operation.get("wrappers", [])
        ],
        reset_options_json=json.dumps(operation.get("reset_options", {})),
        row_count=operation.get("num_rows", 0),
        transforms=[ParseDict(each, environment_pb2.Transform()) for each in operation.get("transforms", [])],
    )
    if "multi_agent" in operation:
        name = f"MULTI_AGENT_API_{operation['multi_agent'].upper()}"
        environment.multi_agent = environment_pb2.MultiAgentApi.Value(name)
    environment.global_state = operation.get("global_state", False)
    if "task" in operation:
        task = operation["task"]
        environment.task.method, environment.task.argument_json = task["method"], json.dumps(task["argument"])
    if "vectorization" in operation:
        name = f"VECTORIZATION_{operation['vectorization'].upper()}"
        environment.vectorization = environment_pb2.Vectorization.Value(name)
    return environment


def _env_update(operation: Mapping[str, Any]) -> environment_pb2.EnvironmentUpdate:
    """Return a whole environment if there is an id, otherwise a change."""
    if "id" in operation:
        return environment_pb2.EnvironmentUpdate(environment=_environment(operation))
    change = environment_pb2.EnvironmentChange(kwargs_json=json.dumps(operation["kwargs"]))
    return environment_pb2.EnvironmentUpdate(change=change)


def _update_env(operation: Mapping[str, Any]) -> Message:
    return pb.UpdateEnvRequest(all_workers=_env_update(operation))


def _update_env_per_worker(operation: Mapping[str, Any]) -> Message:
    updates = [_env_update(each) if each else environment_pb2.EnvironmentUpdate() for each in operation["updates"]]
    return pb.UpdateEnvRequest(per_worker=pb.EnvironmentUpdatePerWorker(updates=updates))


def _call_environments(operation: Mapping[str, Any]) -> Message:
    arguments = [json.dumps(each) for each in operation.get("arguments", [])]
    request = pb.CallEnvironmentsRequest(method=operation["method"], arguments_json=arguments)
    if "environment_version" in operation:
        request.environment_version = operation["environment_version"]
    return request


def _sampling_options(operation: Mapping[str, Any]) -> pb.SamplingOptions:
    options = operation.get("options", {})
    message = pb.SamplingOptions(**{name: value for name, value in options.items() if name in _OPTIONS})
    if "seed" in options:
        message.seed = int(options["seed"])
    if "expected_num_workers" in options:
        message.worker_count = options["expected_num_workers"]
    if exploration := {name: value for name, value in options.items() if name in _EXPLORATION}:
        message.exploration.CopyFrom(pb.Exploration(**exploration))
    message.deliver_policies.extend(options.get("deliver", ()))
    message.count_agent_steps = options.get("count") == "agent_steps"
    if options.keys() & set(_UPDATES):
        message.agent_update.CopyFrom(_agent_update(options))
    return message


def _obtain_samples(operation: Mapping[str, Any]) -> Message:
    return pb.ObtainSamplesRequest(step_count=operation["num_steps"], options=_sampling_options(operation))


def _obtain_fragments(operation: Mapping[str, Any]) -> Message:
    fragments = pb.Fragments(soft_horizon=operation.get("soft_horizon", False))
    if "row_step_count" in operation:
        fragments.row_step_count = operation["row_step_count"]
    options = _sampling_options(operation)
    return pb.ObtainSamplesRequest(step_count=operation["num_steps"], options=options, fragments=fragments)


def _obtain_exact_episodes(operation: Mapping[str, Any]) -> Message:
    count, options = operation["num_episodes_per_worker"], _sampling_options(operation)
    return pb.ObtainExactEpisodesRequest(episode_count_per_worker=count, options=options)


def _evaluate(operation: Mapping[str, Any]) -> Message:
    options = _sampling_options(operation)
    evaluation = pb.EvaluationOptions(skip_failed_episodes=options.skip_failed_episodes)
    for name in ("policy_version", "environment_version", "seed", "max_episode_length", "min_policy_version"):
        if options.HasField(name):
            setattr(evaluation, name, getattr(options, name))
    evaluation.first_episode_index = options.first_episode_index
    if options.HasField("exploration"):
        evaluation.exploration.CopyFrom(options.exploration)
    evaluation.policy_maps.extend(map(_policy_map, operation.get("policy_maps", ())))
    return pb.EvaluateRequest(episode_count=operation["num_episodes"], options=evaluation)


def _drive(operation: Mapping[str, Any]) -> Message:
    """Return the first request of a session."""
    options = _sampling_options(operation)
    options.blackhole = not operation.get("record", True)
    infos = {name: array_of(example) for name, example in operation.get("agent_infos", {}).items()}
    forms = {name: array(np.empty((0, *example.shape)), example.dtype.name) for name, example in infos.items()}
    spec = pb.DriveSpec(options=options, fragment_length=operation["fragment_length"], agent_infos=_tensors(forms))
    spec.return_infos = operation.get("infos", False)
    spec.min_ready_row_count = operation.get("min_ready", 0)
    spec.lease_seconds = operation.get("lease_seconds", 0)
    return pb.DriveEnvironmentsRequest(spec=spec)


def driven_actions(operation: Mapping[str, Any], step: int, idle: np.ndarray) -> pb.DriveEnvironmentsRequest:
    """Return the request of a step of a session.

    Args:
        operation: the session's operation `step`.
        step: number of the step.
        idle: (N,), the rows that make no step.
    """
    return pb.DriveEnvironmentsRequest(
        actions=pb.DrivenActions(
            step=step,
            actions=_tensors(operation["actions"]),
            agent_infos=_tensors(operation.get("agent_infos", {})),
            idle=idle.tolist() if idle.any() else (),
        )
    )


def divided_steps(operation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations `step` of a session that an operation `rows` stands for."""
    columns = {
        field: {name: array_of(each) for name, each in operation.get(field, {}).items()}
        for field in ("actions", "agent_infos")
    }
    return [
        {
            field: {name: array(column[step], column.dtype.name) for name, column in its.items()}
            for field, its in columns.items()
        }
        for step in range(len(next(iter(columns["actions"].values()))))
    ]


_REQUESTS: Mapping[str, Callable[[Mapping[str, Any]], Message]] = {
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
    "stream_samples": _obtain_samples,
    "drive": _drive,
    "evaluate": _evaluate,
    "status": lambda _: pb.GetSamplerRequest(),
}
