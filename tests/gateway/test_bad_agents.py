"""Updates of agents that the server rejects, with the field at fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rejections import Rejection, check_status, rejection_of, rejections

import rollserve
from rollserve import Reason
from rollserve.agents import agent_to_proto
from rollserve_wire.tensors import tensor_to_proto
from rollserve_wire.v1 import agent_pb2, tensor_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

MLP = "all_workers.agent.mlp"
CONSTANT = "all_workers.agent.constant.action"
FLOAT32 = tensor_pb2.DATA_TYPE_FLOAT32
ZEROS = np.zeros((8, 4), np.float32)
WITH_NAN = ZEROS.copy()
WITH_NAN[3, 1] = np.nan


def cartpole_agent() -> agent_pb2.Agent:
    """Return an agent that fits CartPole-v1: layers of 4, 8 and 2."""
    observations = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    return agent_to_proto(rollserve.MlpAgent.initial(observations, rollserve.spaces.Discrete(2), hidden_sizes=(8,)))


def update(agent: agent_pb2.Agent) -> pb.UpdateAgentRequest:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent))


def changed(change: Callable[[agent_pb2.MlpAgent], Any]) -> pb.UpdateAgentRequest:
    """Return an update to the agent for CartPole-v1 after a change of its MLP."""
    agent = cartpole_agent()
    change(agent.mlp)
    return update(agent)


def head(name: str) -> pb.UpdateAgentRequest:
    return changed(lambda mlp: getattr(mlp, name).SetInParent())


def layer_sizes(*sizes: int) -> pb.UpdateAgentRequest:
    return changed(lambda mlp: mlp.layer_sizes.__setitem__(slice(None), sizes))


def weight(value: np.ndarray | tensor_pb2.Tensor) -> pb.UpdateAgentRequest:
    """Return an update whose parameter `0/weight` has this value instead of one of shape (8, 4)."""

    def change(mlp: agent_pb2.MlpAgent) -> None:
        for tensor in mlp.parameters.tensors:
            if tensor.name == "0/weight":
                tensor.tensor.CopyFrom(value if isinstance(value, tensor_pb2.Tensor) else tensor_to_proto(value))

    return changed(change)


def added(name: str) -> pb.UpdateAgentRequest:
    return changed(lambda mlp: mlp.parameters.tensors.add(name=name, tensor=tensor_to_proto(ZEROS)))


def parameters(*tensors: tensor_pb2.NamedTensor) -> pb.UpdateAgentRequest:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(parameters=agent_pb2.Parameters(tensors=tensors)))


def constant(**leaves: Any) -> pb.UpdateAgentRequest:
    """Return an update to an agent with a constant action; the leaf `plain` is the one of a plain space."""
    tensors = [
        tensor_pb2.NamedTensor(name=name.replace("plain", ""), tensor=tensor_to_proto(np.asarray(value)))
        for name, value in leaves.items()
    ]
    return update(agent_pb2.Agent(constant=agent_pb2.ConstantAgent(action=tensors)))


def per_worker(*agents: agent_pb2.Agent) -> pb.UpdateAgentRequest:
    updates = [pb.AgentUpdate(agent=agent) for agent in agents]
    return pb.UpdateAgentRequest(per_worker=pb.AgentUpdatePerWorker(updates=updates))


UPDATE_CASES = {
    "no update": Rejection(pb.UpdateAgentRequest(), "update", ("all_workers", "per_worker")),
    "empty update": Rejection(
        pb.UpdateAgentRequest(all_workers=pb.AgentUpdate()), "all_workers.update", ("agent", "parameters")
    ),
    "agent of no kind": Rejection(update(agent_pb2.Agent()), "all_workers.agent.kind"),
    "more updates than workers": Rejection(per_worker(*[cartpole_agent()] * 3), "per_worker.updates", ("3", "2")),
    "other agent on one worker": Rejection(
        per_worker(cartpole_agent(), constant(plain=5).all_workers.agent),
        "per_worker.updates[1].agent.constant.action",
        ("5", "Discrete(2)"),
    ),
    "parameters without a name": Rejection(parameters(), "all_workers.parameters", ("'0/weight'",)),
    "no leaf": Rejection(constant(), CONSTANT, ("[]", "['']")),
    "other leaf": Rejection(constant(other=1), CONSTANT, ("['other']", "['']")),
    "leaf of another shape": Rejection(constant(plain=[1, 1]), f"{CONSTANT}.shape", ("(2,)", "()")),
    "leaf of another type": Rejection(constant(plain=0.5), f"{CONSTANT}.data_type", ("float64", "int64")),
    "limits of a model": Rejection(
        update(
            agent_pb2.Agent(onnx=agent_pb2.OnnxAgent(squashed_gaussian=agent_pb2.SquashedGaussianHead(max_log_std=2)))
        ),
        "all_workers.agent.onnx.squashed_gaussian.max_log_std",
        ("2.0",),
    ),
}
SETTING_CASES = {
    "no head": Rejection(changed(lambda mlp: mlp.ClearField("head")), f"{MLP}.head", ("categorical",)),
    "head for a Box": Rejection(head("diagonal_gaussian"), f"{MLP}.head", ("diagonal_gaussian", "Discrete(2)", "Box")),
    "head for MultiBinary": Rejection(head("bernoulli"), f"{MLP}.head", ("bernoulli", "MultiBinary")),
    "head for MultiDiscrete": Rejection(
        head("multi_categorical"), f"{MLP}.head", ("multi_categorical", "MultiDiscrete")
    ),
    "head for a Box with bounds": Rejection(head("squashed_gaussian"), f"{MLP}.head", ("squashed_gaussian", "Box")),
    "no activation": Rejection(changed(lambda mlp: mlp.ClearField("activation")), f"{MLP}.activation"),
    "unknown activation": Rejection(
        changed(lambda mlp: setattr(mlp, "activation", 99)), f"{MLP}.activation", ("99", "Activation")
    ),
    "epsilon above 1": Rejection(
        changed(lambda mlp: setattr(mlp.epsilon_greedy, "epsilon", 2)), f"{MLP}.epsilon_greedy.epsilon", ("2.0",)
    ),
    "epsilon of NaN": Rejection(
        changed(lambda mlp: setattr(mlp.epsilon_greedy, "epsilon", np.nan)), f"{MLP}.epsilon_greedy.epsilon", ("nan",)
    ),
    "temperature of 0": Rejection(
        changed(lambda mlp: setattr(mlp.boltzmann, "temperature", 0)), f"{MLP}.boltzmann.temperature", ("0.0", "1e-06")
    ),
    "crossed limits": Rejection(
        changed(
            lambda mlp: mlp.diagonal_gaussian.MergeFrom(agent_pb2.DiagonalGaussianHead(min_log_std=1, max_log_std=-1))
        ),
        f"{MLP}.diagonal_gaussian.max_log_std",
        ("-1.0", "min_log_std", "1.0"),
    ),
    "epsilon of a norm": Rejection(
        changed(lambda mlp: setattr(mlp.layer_norm, "epsilon", 0)), f"{MLP}.layer_norm.epsilon", ("0.0", "1e-12")
    ),
    "value without units": Rejection(
        changed(lambda mlp: mlp.separate_value.hidden_sizes.extend([8, 0])),
        f"{MLP}.separate_value.hidden_sizes[1]",
        ("0",),
    ),
    "value with too many layers": Rejection(
        changed(lambda mlp: mlp.separate_value.hidden_sizes.extend([1] * 1000)),
        f"{MLP}.separate_value.hidden_sizes",
        ("1000", "999"),
    ),
    "core without units": Rejection(changed(lambda mlp: mlp.gru.SetInParent()), f"{MLP}.gru.size", ("0", "1", "4096")),
    "core with too many units": Rejection(
        changed(lambda mlp: setattr(mlp.lstm, "size", 4097)), f"{MLP}.lstm.size", ("4097", "4096")
    ),
    "no layers": Rejection(layer_sizes(), f"{MLP}.layer_sizes", ("0", "2")),
    "too many layers": Rejection(layer_sizes(4, 8, 2, *[1] * 100_000), f"{MLP}.layer_sizes", ("100003", "1001")),
    "other inputs": Rejection(layer_sizes(5, 8, 2), f"{MLP}.layer_sizes[0]", ("5", "4")),
    "other outputs": Rejection(layer_sizes(4, 8, 3), f"{MLP}.layer_sizes[2]", ("3", "2")),
    "layer without units": Rejection(layer_sizes(4, 0, 2), f"{MLP}.layer_sizes[1]", ("0",)),
}
PARAMETER_CASES = {
    "missing norm": Rejection(
        changed(lambda mlp: mlp.layer_norm.SetInParent()), f"{MLP}.parameters", ("'0/norm/weight'",)
    ),
    "missing shared value": Rejection(
        changed(lambda mlp: mlp.shared_value.SetInParent()), f"{MLP}.parameters", ("'value/weight'",)
    ),
    "missing separate value": Rejection(
        changed(lambda mlp: mlp.separate_value.SetInParent()), f"{MLP}.parameters", ("'value/0/weight'",)
    ),
    "missing core": Rejection(
        changed(lambda mlp: setattr(mlp.lstm, "size", 8)), f"{MLP}.parameters", ("'core/weight_ih'",)
    ),
    "missing layers": Rejection(
        layer_sizes(4, *[1] * 999, 2), f"{MLP}.parameters", ("'2/weight'", "['0/weight', ", "1992")
    ),
    "missing weight": Rejection(
        changed(lambda mlp: mlp.parameters.tensors.pop(0)), f"{MLP}.parameters", ("'0/weight'",)
    ),
    "unknown name": Rejection(added("x"), f"{MLP}.parameters", ("'x'",)),
    "name twice": Rejection(added("0/bias"), f"{MLP}.parameters['0/bias']", ("'0/bias'",)),
    "shape of other layers": Rejection(
        layer_sizes(4, 9, 2), f"{MLP}.parameters['0/weight'].shape", ("(8, 4)", "(9, 4)")
    ),
    "transposed": Rejection(weight(ZEROS.T), f"{MLP}.parameters['0/weight'].shape", ("(4, 8)", "(8, 4)")),
    "other type": Rejection(
        weight(ZEROS.astype(np.float64)), f"{MLP}.parameters['0/weight'].data_type", ("float64", "float32")
    ),
    "NaN": Rejection(weight(WITH_NAN), f"{MLP}.parameters['0/weight'][3, 1]", ("nan",)),
    "infinity": Rejection(weight(np.full_like(ZEROS, np.inf)), f"{MLP}.parameters['0/weight'][0, 0]", ("inf",)),
    "too few bytes": Rejection(
        weight(tensor_pb2.Tensor(data_type=FLOAT32, shape=[8, 4], data=b"1")),
        f"{MLP}.parameters['0/weight'].data",
        ("'0/weight'", "1", "128"),
    ),
    "no type": Rejection(
        weight(tensor_pb2.Tensor(shape=[8, 4])), f"{MLP}.parameters['0/weight'].data_type", ("DataType",)
    ),
    "compressed": Rejection(
        weight(tensor_pb2.Tensor(compression=1)),
        f"{MLP}.parameters['0/weight'].compression",
        ("COMPRESSION_UNSPECIFIED",),
    ),
    "negative sizes": Rejection(
        weight(tensor_pb2.Tensor(data_type=FLOAT32, shape=[-8, -4], data=b"\0" * 128)),
        f"{MLP}.parameters['0/weight'].shape",
        ("'0/weight'", "(-8, -4)"),
    ),
    "huge sizes": Rejection(
        weight(tensor_pb2.Tensor(data_type=FLOAT32, shape=[1 << 62, 1 << 62], data=b"1")),
        f"{MLP}.parameters['0/weight'].shape",
        ("'0/weight'", f"({1 << 62}, {1 << 62})"),
    ),
    "too many sizes": Rejection(
        weight(tensor_pb2.Tensor(data_type=FLOAT32, shape=[1 << 62] * 20_000)),
        f"{MLP}.parameters['0/weight'].shape",
        ("'0/weight'", "20000", "32"),
    ),
}


@rejections({**UPDATE_CASES, **SETTING_CASES, **PARAMETER_CASES})
def test_agent_update_is_rejected(unchanged_stub: SamplerServiceStub, rejection: Rejection) -> None:
    error = rejection_of(unchanged_stub.UpdateAgent, rejection.request)
    check_status(error, rejection.reason, field=rejection.field, quotes=rejection.quotes)


@pytest.mark.parametrize("values", [[256, 257], [-256, 1], [2**32, 0]])
def test_constant_action_is_never_cast(stub: SamplerServiceStub, sampler: rollserve.Sampler, values: list[int]) -> None:
    sampler.update_env("sample_envs:Switches")
    error = rejection_of(stub.UpdateAgent, constant(on=values, force=1.0))
    field = f"{CONSTANT}['on']"
    check_status(error, Reason.INVALID_VALUE, field=field, quotes=(str(values[0]), "MultiBinary(2)"))
    error = rejection_of(stub.UpdateAgent, constant(on=[0, 1], force=1e300))
    check_status(error, Reason.INVALID_VALUE, field=f"{CONSTANT}['force']", quotes="1e+300")
    stub.UpdateAgent(constant(on=[0, 1], force=0.1))


def test_parameters_are_rejected_by_an_agent_without_any(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.RandomAgent())
    error = rejection_of(stub.UpdateAgent, parameters())
    check_status(error, Reason.INVALID_VALUE, field="all_workers.parameters", quotes="random")
