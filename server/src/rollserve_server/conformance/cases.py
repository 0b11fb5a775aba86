"""The cases: what the adapter does, what the server does meanwhile, and what has to come of it."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollserve_server.conformance.operations import array
from rollserve_server.conformance.recordings import recording

__all__ = ["CASES", "Case"]

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        name: unique, for the command line.
        about: what the case is about, as one phrase.
        operations: what the adapter performs.
        connect: how it connects, beside the address; the values `@NAME` stand for `ConformanceServer.others`.
        secure: whether the server has TLS and asks for tokens.
        scripts: answers in place of the server's; see `Recorder`.
        faults: what the server does wrong; see `FaultyServer`.
        recorded: recordings that operations receive, by the operation's position.
        expected: values that results must have, by the operation's position, beside what the server sent.
        client_errors: errors that the client makes itself: values that they must have, by the operation's position.
        stops: whether the client ends the last RPC itself.
        resumes: whether the client has to resume a stream, at least once.
        seconds: time limit for the answer.
    """

    name: str
    about: str
    operations: Sequence[Json]
    connect: Json = field(default_factory=dict)
    secure: bool = False
    scripts: Sequence[Json] = ()
    faults: Sequence[Json] = ()
    recorded: Mapping[int, str] = field(default_factory=dict)
    expected: Mapping[int, Json] = field(default_factory=dict)
    client_errors: Mapping[int, Json] = field(default_factory=dict)
    stops: bool = False
    resumes: bool = False
    seconds: float = 60.0


def _env(**kwargs: Any) -> Json:
    return {"do": "update_env", "id": "Conformance-v0", "kwargs": kwargs}


_RANDOM: Json = {"do": "update_agent", "agent": {"kind": "random"}}


def _samples(num_steps: int = 60, seed: int = 7, **options: Any) -> Json:
    return {"do": "obtain_samples", "num_steps": num_steps, "options": {"seed": str(seed), **options}}


def _sampling(name: str, about: str, *, options: Json | None = None, num_steps: int = 60, **kwargs: Any) -> Case:
    """Return a case that samples once in an environment with these arguments."""
    return Case(name, about, [_env(**kwargs), _RANDOM, _samples(num_steps, **(options or {}))])


def _mlp(seed: int, sizes: Sequence[int] = (3, 4, 2), **changes: Any) -> Json:
    generator = np.random.default_rng(seed)
    parameters = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        parameters[f"{layer}/weight"] = array(generator.normal(size=(outputs, inputs)), "float32")
        parameters[f"{layer}/bias"] = array(generator.normal(size=outputs), "float32")
    agent = {"kind": "mlp", "layer_sizes": list(sizes), "activation": "tanh", "head": "categorical"}
    return {**agent, "parameters": parameters, **changes}


def _onnx() -> Json:
    """Return a model with one layer, whose input and output have names of their own."""
    from onnx import TensorProto, helper  # it takes a moment

    weight = helper.make_tensor("weight", TensorProto.FLOAT, [3, 2], np.linspace(-1, 1, 6).tolist())
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "weight"], ["scores"]), helper.make_node("Tanh", ["scores"], ["squashed"])],
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["rows", 3])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 2]),
            helper.make_tensor_value_info("squashed", TensorProto.FLOAT, ["rows", 2]),
        ],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return {
        "kind": "onnx",
        "model": base64.b64encode(model.SerializeToString()).decode(),
        "head": "categorical",
        "inputs": {"observation": "obs"},
        "outputs": {"logits": "scores"},
        "infos": ["squashed"],
    }


def _recorded(name: str, about: str, **connect: Any) -> Case:
    """Return a case in which the server sends a recorded stream."""
    return Case(f"recorded-{name}", about, [_samples(1)], connect, recorded={0: name})


def _values() -> list[Case]:
    stack = {"name": "FrameStackObservation", "kwargs": {"stack_size": 4}}
    stacked = {**_env(observations="frame"), "wrappers": [stack]}
    return [
        _sampling("plain-box", "whole episodes of a Box, Discrete actions"),
        _sampling("dtypes", "a Dict with a leaf of each dtype that environments have", observations="dtypes"),
        _sampling("nested", "leaves of Dict and Tuple spaces within a Dict", observations="nested"),
        _sampling("discrete-observations", "observations that are one number", observations="discrete"),
        *(
            _sampling(f"actions-{kind.replace('_', '-')}", f"actions of a space of kind {kind}", actions=kind)
            for kind in ("box", "multi_discrete", "multi_binary", "dict")
        ),
        *(
            _sampling(f"ends-{end}", f"episodes whose end is {text}", end=end)
            for end, text in (("terminated", "terminated"), ("truncated", "truncated"), ("both", "both at once"))
        ),
        _sampling("infos-none", "no infos at all"),
        _sampling("infos-full", "infos of several types and shapes, and of the reset", infos="full"),
        _sampling("infos-gaps", "infos that some steps lack, with their masks", infos="gaps"),
        _sampling("one-step-episodes", "episodes of one step", max_length=1),
        Case("frames-once", "stacks of frames", [stacked, _RANDOM, _samples(200)]),
        Case("frames-plain", "stacks of frames as they are", [stacked, _RANDOM, _samples(200, plain_frames=True)]),
        *(
            Case(
                f"compressed-{codec}",
                f"stacks of frames in columns that are compressed by {codec}",
                [stacked, _RANDOM, _samples(400), _samples(400, plain_frames=True)],
                {"compression": [codec]},
            )
            for codec in ("lz4", "zstd")
        ),
        Case(
            "large-episode",
            "an episode of 200 MB, in messages under gRPC's limit",
            [_env(observations="large", max_length=200, exact_length=True), _RANDOM, _samples(1)],
            seconds=300,
        ),
        _recorded("dtypes", "recorded: each dtype, NaN and infinities, columns without elements"),
        _recorded("parts", "recorded: an episode in three messages, with states, flags and infos of its parts"),
        _recorded("gaps", "recorded: infos that messages lack, and whose type and shape change"),
        _recorded("joined", "recorded: several messages in one"),
        _recorded("progress", "recorded: progress before and between batches"),
        _recorded("unknown", "recorded: unknown fields, enum values and kinds of content"),
        _recorded("frames", "recorded: each frame once in some messages, not in others"),
        _recorded("lz4", "recorded: columns compressed by lz4 in one message, plain in the next", compression=["lz4"]),
        _recorded(
            "zstd", "recorded: columns compressed by zstd in one message, plain in the next", compression=["zstd"]
        ),
        _recorded("lz4-frames", "recorded: each frame once, compressed by lz4", compression=["lz4"]),
        _recorded("fragments", "recorded: fragments, whose episode indices do not rise"),
    ]


def _calls() -> list[Case]:
    texts = {"label": 'Grüße, 世界 "quoted" \\ \n end'}
    box = [_env(), _RANDOM]
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 5, "options": {"seed": "3"}}
    fragments = {"do": "obtain_fragments", "num_steps": 32, "options": {"seed": "5"}}
    parameters = _mlp(2)["parameters"]
    return [
        Case("exact-episodes", "an exact number of episodes of each worker", [*box, exact]),
        Case(
            "fragments",
            "fragments, and their continuation",
            [*box, fragments, {**fragments, "row_step_count": 8}],
        ),
        Case(
            "fragments-soft-horizon",
            "fragments with a soft horizon",
            [
                *box,
                {**fragments, "soft_horizon": True, "options": {"seed": "5", "max_episode_length": 3}},
            ],
        ),
        Case("seed-of-64-bits", "a seed that needs all 64 bits", [*box, _samples(seed=(1 << 64) - 1)]),
        Case(
            "sampling-options",
            "options of a sampling call",
            [
                _env(),
                {"do": "update_agent", "agent": _mlp(0)},
                _samples(first_episode_index=12, max_episode_length=4),
                _samples(policy_version=1, environment_version=2, expected_num_workers=2, min_policy_version=1),
                _samples(skip_failed_episodes=True, return_states=True),
            ],
        ),
        Case(
            "exploration",
            "how freely an agent acts",
            [
                _env(),
                {"do": "update_agent", "agent": _mlp(0)},
                _samples(deterministic=True),
                _samples(temperatures=[0.5, 2.0]),
            ],
        ),
        Case(
            "own-sequence",
            "calls without a seed continue the sampler's own sequence",
            [*box, {"do": "obtain_samples", "num_steps": 30}, {"do": "obtain_samples", "num_steps": 30}],
        ),
        Case(
            "agents",
            "agents of all kinds, and parameters alone",
            [
                _env(),
                {"do": "update_agent", "agent": {"kind": "random"}},
                {"do": "update_agent", "agent": {"kind": "constant", "action": {"": array(1, "int64")}}},
                _samples(20),
                {"do": "update_agent", "agent": _mlp(1)},
                _samples(20),
                {"do": "update_agent", "parameters": parameters},
                {"do": "update_agent", "parameters": parameters, "skip_if_identical": True},
                _samples(20),
                {"do": "update_agent", "agent": _onnx()},
                _samples(20),
            ],
            expected={1: {"policy_version": 1}, 6: {"policy_version": 4}, 7: {"policy_version": 4}},
        ),
        Case(
            "gaussian-agent",
            "an agent with a head for continuous actions",
            [
                _env(actions="box"),
                {
                    "do": "update_agent",
                    "agent": _mlp(
                        3,
                        head="diagonal_gaussian",
                        parameters={**_mlp(3)["parameters"], "log_std": array([-0.5, 0.25], "float32")},
                    ),
                },
                _samples(30),
            ],
        ),
        Case(
            "agent-with-call",
            "a call that brings the agent along",
            [
                _env(),
                _samples(30, agent=_mlp(4)),
                _samples(30, parameters=parameters),
                {"do": "status"},
            ],
            expected={3: {"policy_version": 2}},
        ),
        Case(
            "environments",
            "environments with arguments, wrappers, rows, reset options, and a change",
            [
                {
                    **_env(**texts, scale=0.1, max_length=5),
                    "wrappers": [{"name": "TimeLimit", "kwargs": {"max_episode_steps": 3}}],
                    "reset_options": {"length": 4},
                    "vectorization": "rows",
                    "num_rows": 3,
                },
                _RANDOM,
                _samples(20),
                {"do": "change_env", "kwargs": {"scale": 2.5}},
                _samples(20),
            ],
            expected={0: {"environment_version": 2}, 3: {"environment_version": 3}},
        ),
        Case("evaluation", "an evaluation", [_env(), _RANDOM, {"do": "evaluate", "num_episodes": 9}]),
        Case(
            "evaluation-options",
            "options of an evaluation",
            [
                _env(),
                {"do": "update_agent", "agent": _mlp(0)},
                {
                    "do": "evaluate",
                    "num_episodes": 4,
                    "options": {"seed": "11", "first_episode_index": 3, "max_episode_length": 2, "deterministic": True},
                },
            ],
        ),
        Case(
            "status",
            "the state of the sampler, without an agent and with one",
            [{"do": "status"}, *box, {"do": "status"}],
        ),
        Case("stream", "a stream, message by message", [*box, _stream(500)]),
        Case(
            "stream-stopped",
            "a stream that the client leaves",
            [
                _env(observations="large", max_length=50, exact_length=True),
                _RANDOM,
                {**_stream(5000), "stop_after": 2},
            ],
            stops=True,
        ),
    ]


def _stream(num_steps: int) -> Json:
    return {"do": "stream_samples", "num_steps": num_steps, "options": {"seed": "7"}}


_REASONS = {
    "INVALID_ARGUMENT": "INVALID_VALUE ENV_REFUSED AGENT_REFUSED",
    "NOT_FOUND": "SAMPLER_NOT_FOUND ENV_NOT_FOUND WRAPPER_NOT_FOUND AGENT_NOT_FOUND MODULE_NOT_FOUND PACKAGE_NOT_FOUND "
    "SERVICE_NOT_FOUND PROFILE_NOT_FOUND LEASE_EXPIRED SAMPLER_DELETED",
    "PERMISSION_DENIED": "MODULE_NOT_ALLOWED WRAPPER_NOT_ALLOWED METHOD_NOT_ALLOWED PATH_NOT_ALLOWED "
    "RENDER_MODE_NOT_ALLOWED PICKLE_NOT_ALLOWED PROFILE_REQUIRED SCOPE_MISSING",
    "FAILED_PRECONDITION": "NO_AGENT AGENT_MISFIT AGENT_FAILED POLICY_VERSION ENVIRONMENT_VERSION SAMPLER_RUN "
    "ROW_STEP_COUNT WORKER_COUNT WORKERS_DIFFER UNEXPECTED_VERSION",
    "RESOURCE_EXHAUSTED": "MODEL_TOO_LARGE MESSAGE_TOO_SMALL FRAGMENTS_TOO_LARGE TOO_MANY_WORKERS TOO_MANY_CALLS "
    "TOO_MANY_REQUEST_BYTES TOO_MANY_STALLED_CALLS REQUEST_TOO_LARGE ENVIRONMENTS_TOO_LARGE OBJECT_STORE_FULL "
    "NO_EPISODE_ENDED CALL_TOO_LARGE TOO_MANY_SAMPLERS QUOTA_EXCEEDED",
    "UNAVAILABLE": "WORKER_LOST WORKER_LOST_AGAIN WORKER_HUNG TOO_FEW_WORKERS CLIENT_STALLED SERVER_STOPPING "
    "SAMPLER_TAKEN JOURNAL_LOST CALL_TOO_LONG WORKER_OUT_OF_MEMORY",
    "UNAUTHENTICATED": "TOKEN_MISSING TOKEN_INVALID TOKEN_EXPIRED",
    "ALREADY_EXISTS": "SAMPLER_EXISTS",
    "INTERNAL": "ENV_FAILED INTERNAL",
}
"""All reasons that servers send, by their status."""


def _abort(status: str, reason: str, details: str = "options.seed: expected 1, got 2") -> Json:
    """Return a step of a script that fails as servers do."""
    trailing = {"rollserve-reason": reason, "rollserve-request-id": "00112233aabbccdd"} if reason else {}
    return {"abort": {"status": status, "details": details, "trailing": trailing}}


def _errors() -> list[Case]:
    status = {"do": "status"}
    pairs = [(code, reason) for code, reasons in _REASONS.items() for reason in reasons.split()]
    batch = [{"send": base64.b64encode(message).decode()} for message in recording("parts").messages]

    def failing(rpc: str, status: str, reason: str) -> Json:
        return {"rpc": rpc, "steps": [_abort(status, reason)]}

    return [
        Case(
            "reasons-of-calls",
            "errors of every reason",
            [status] * len(pairs),
            scripts=[failing("GetSampler", *pair) for pair in pairs],
        ),
        Case(
            "reasons-of-streams",
            "streams that fail before their beginning, for every reason",
            [_samples(1)] * len(pairs),
            scripts=[failing("ObtainSamples", *pair) for pair in pairs],
        ),
        Case(
            "unknown-reasons",
            "reasons and statuses of a later version",
            [status, status, status],
            scripts=[
                failing("GetSampler", "FAILED_PRECONDITION", "MOON_IN_THE_WRONG_HOUSE"),
                failing("GetSampler", "DATA_LOSS", "INTERNAL"),
                failing("GetSampler", "OUT_OF_RANGE", "SOMETHING_ELSE"),
            ],
            expected={0: {"error": {"reason": "MOON_IN_THE_WRONG_HOUSE"}}, 1: {"error": {"kind": "server"}}},
        ),
        Case(
            "error-of-a-field",
            "an error of the server, with the field, the request's id, and a message beyond ASCII",
            [_env(label="größer", end="nowhere"), {**_env(), "num_rows": 1 << 30}],
            expected={
                0: {"error": {"reason": "ENV_REFUSED", "kind": "invalid_argument"}},
                1: {"error": {"kind": "invalid_argument"}},
            },
        ),
        Case(
            "no-agent",
            "a call that comes too early, and the same call in time",
            [_samples(10), _env(), _RANDOM, _samples(10)],
            expected={0: {"error": {"reason": "NO_AGENT"}}},
        ),
        Case(
            "error-within-a-stream",
            "a stream that fails after some messages, for a reason that is final",
            [_samples(1)],
            scripts=[
                {"rpc": "ObtainSamples", "steps": [*batch[:2], _abort("INTERNAL", "ENV_FAILED", "environment: no")]}
            ],
            expected={0: {"error": {"reason": "ENV_FAILED"}}},
        ),
        Case(
            "no-account",
            "a stream that ends without its account",
            [_samples(1)],
            scripts=[{"rpc": "ObtainSamples", "steps": batch[:-1]}],
            client_errors={0: {}},
        ),
        Case(
            "deadline-of-a-call",
            "a call that takes longer than the client waits",
            [status, status],
            {"timeout_seconds": 1},
            faults=[{"fault": "delay", "seconds": 3.0, "rpc": "GetSampler"}],
            client_errors={0: {"kind": "deadline"}},
        ),
        Case(
            "deadline-of-a-stream",
            "a stream without progress for longer than the client waits",
            [_samples(1)],
            {"timeout_seconds": 1},
            scripts=[{"rpc": "ObtainSamples", "steps": [*batch[:2], {"wait": 30}]}],
            client_errors={0: {"kind": "deadline"}},
        ),
    ]


def _resumptions() -> list[Case]:
    def breaking(after: int, times: int = 1) -> list[Json]:
        return [{"fault": "break-stream", "after_messages": after, "times": times}]

    large = _env(observations="large", max_length=30)
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 2, "options": {"seed": "3"}}
    fragments = {"do": "obtain_fragments", "num_steps": 48, "options": {"seed": "5"}}
    not_reproducible = [
        *({"send": base64.b64encode(message).decode()} for message in recording("unknown").messages[:1]),
        *({"send": base64.b64encode(message).decode()} for message in recording("parts").messages[1:2]),
        _abort("UNAVAILABLE", "", "connection lost"),
    ]
    return [
        Case(name, about, [env, _RANDOM, operation], faults=faults, resumes=True)
        for name, about, env, operation, faults in (
            ("resume-at-start", "a stream that breaks before its first batch", _env(), _samples(), breaking(0)),
            ("resume-at-end", "a stream that breaks before its account", _env(), _samples(), breaking(1000)),
            ("resume-samples", "a stream that breaks within an episode", large, _samples(40), breaking(3)),
            ("resume-twice", "a stream that breaks again and again", large, _samples(60), breaking(2, 3)),
            ("resume-exact-episodes", "exact episodes whose stream breaks", large, exact, breaking(4)),
            ("resume-fragments", "fragments whose stream breaks", large, fragments, breaking(5)),
        )
    ] + [
        Case(
            "resume-refused",
            "a broken stream that cannot be taken up again, because its class is not EPISODE or BLOCK",
            [_samples(1)],
            scripts=[{"rpc": "ObtainSamples", "steps": not_reproducible}],
            expected={0: {"error": {"kind": "unavailable"}}},
        )
    ]


def _access() -> list[Case]:
    everything = [_env(), _RANDOM, _samples(20), {"do": "status"}]
    status = {"do": "status"}
    return [
        Case("tls-and-token", "TLS by an authority, and a token", everything, secure=True),
        Case(
            "tls-other-authority",
            "a server whose certificate another authority has signed",
            [status],
            {"ca": "@other_ca"},
            secure=True,
            client_errors={0: {"reason": "TLS_FAILED"}},
        ),
        Case("token-missing", "no token", [status], {"token": None}, secure=True, expected=_denied("TOKEN_MISSING")),
        Case(
            "token-invalid",
            "a wrong token",
            [status],
            {"token": "rst_wrong"},
            secure=True,
            expected=_denied("TOKEN_INVALID"),
        ),
        Case(
            "token-expired",
            "a token that has expired",
            [status],
            {"token": "@expired_token"},
            secure=True,
            expected=_denied("TOKEN_EXPIRED"),
        ),
        Case(
            "scope-missing",
            "a token that permits less",
            [_RANDOM],
            {"token": "@limited_token"},
            secure=True,
            expected=_denied("SCOPE_MISSING"),
        ),
    ]


def _denied(reason: str) -> Mapping[int, Json]:
    return {0: {"error": {"kind": "access", "reason": reason}}}


CASES: Mapping[str, Case] = {
    case.name: case for make in (_values, _calls, _errors, _resumptions, _access) for case in make()
}
"""All cases by name, in the order in which they run. The number of a case is its position, from 1."""
