"""Cases about calls and their requests: options, agents, environments, evaluations, streams, breaks, warnings."""

from __future__ import annotations

import base64

from rollserve_conformance.cases.case import RANDOM, Case, Json, abort, breaking, env, fragments, mlp, samples
from rollserve_conformance.operations import array
from rollserve_conformance.recordings import FOLDER, recording, sending
from rollserve_wire.v1.episode_batch_pb2 import Account, Progress
from rollserve_wire.v1.evaluation_pb2 import Evaluation, Summary
from rollserve_wire.v1.sampler_service_pb2 import EvaluateResponse

__all__ = ["call_cases", "resumption_cases", "warning_cases"]


def _onnx() -> Json:
    """Return a model with one layer, whose input and output have names of their own."""
    return {
        "kind": "onnx",
        "model": base64.b64encode((FOLDER / "policy.onnx").read_bytes()).decode(),
        "head": "categorical",
        "inputs": {"observation": "obs"},
        "outputs": {"logits": "scores"},
        "infos": ["squashed"],
    }


def _stream(num_steps: int) -> Json:
    return {"do": "stream_samples", "num_steps": num_steps, "options": {"seed": "7"}}


def call_cases() -> list[Case]:
    """Return the cases about calls and their requests."""
    texts = {"label": 'Grüße, 世界 "quoted" \\ \n end'}
    box = [env(), RANDOM]
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 5, "options": {"seed": "3"}}
    parameters = mlp(2)["parameters"]
    return [
        Case("exact-episodes", "an exact number of episodes of each worker", [*box, exact]),
        Case(
            "fragments",
            "fragments, and their continuation",
            [*box, fragments(), fragments(row_step_count=8)],
        ),
        Case(
            "fragments-soft-horizon",
            "fragments with a soft horizon",
            [
                *box,
                {**fragments(max_episode_length=3), "soft_horizon": True},
            ],
        ),
        Case("seed-of-64-bits", "a seed that needs all 64 bits", [*box, samples(seed=(1 << 64) - 1)]),
        Case(
            "sampling-options",
            "options of a sampling call",
            [
                env(),
                {"do": "update_agent", "agent": mlp(0)},
                samples(first_episode_index=12, max_episode_length=4),
                samples(policy_version=1, environment_version=2, expected_num_workers=2, min_policy_version=1),
                samples(skip_failed_episodes=True, return_states=True),
            ],
        ),
        Case(
            "exploration",
            "how freely an agent acts",
            [
                env(),
                {"do": "update_agent", "agent": mlp(0)},
                samples(deterministic=True),
                samples(temperatures=[0.5, 2.0]),
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
                env(),
                {"do": "update_agent", "agent": {"kind": "random"}},
                {"do": "update_agent", "agent": {"kind": "constant", "action": {"": array(1, "int64")}}},
                samples(20),
                {"do": "update_agent", "agent": mlp(1)},
                samples(20),
                {"do": "update_agent", "parameters": parameters},
                {"do": "update_agent", "parameters": parameters, "skip_if_identical": True},
                samples(20),
                {"do": "update_agent", "agent": _onnx()},
                samples(20),
            ],
            expected={1: {"policy_version": 1}, 6: {"policy_version": 4}, 7: {"policy_version": 4}},
        ),
        Case(
            "gaussian-agent",
            "an agent with a head for continuous actions",
            [
                env(actions="box"),
                {
                    "do": "update_agent",
                    "agent": mlp(
                        3,
                        head="diagonal_gaussian",
                        parameters={**mlp(3)["parameters"], "log_std": array([-0.5, 0.25], "float32")},
                    ),
                },
                samples(30),
            ],
        ),
        Case(
            "agent-with-call",
            "a call that brings the agent along",
            [
                env(),
                samples(30, agent=mlp(4)),
                samples(30, parameters=parameters),
                {"do": "status"},
            ],
            expected={3: {"policy_version": 2}},
        ),
        Case(
            "environments",
            "environments with arguments, wrappers, rows, reset options, and a change",
            [
                {
                    **env(**texts, scale=0.1, max_length=5),
                    "wrappers": [{"name": "TimeLimit", "kwargs": {"max_episode_steps": 3}}],
                    "reset_options": {"length": 4},
                    "vectorization": "rows",
                    "num_rows": 3,
                },
                RANDOM,
                samples(20),
                {"do": "change_env", "kwargs": {"scale": 2.5}},
                samples(20),
            ],
            expected={0: {"environment_version": 2}, 3: {"environment_version": 3}},
        ),
        Case("evaluation", "an evaluation", [env(), RANDOM, {"do": "evaluate", "num_episodes": 9}]),
        Case(
            "evaluation-options",
            "options of an evaluation",
            [
                env(),
                {"do": "update_agent", "agent": mlp(0)},
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
                env(observations="large", max_length=50, exact_length=True),
                RANDOM,
                {**_stream(5000), "stop_after": 2},
            ],
            stops=True,
        ),
    ]


def warning_cases() -> list[Case]:
    """Return the case about warnings: the recording of progress has one, and so has the evaluation."""
    text = "no episode has ended in 1,000 steps"
    evaluation = Evaluation(
        returns=[1.5],
        lengths=[2],
        terminated=[True],
        truncated=[False],
        return_summary=Summary(mean=1.5),
        length_summary=Summary(mean=2.0),
        account=Account(),
    )
    responses = EvaluateResponse(progress=Progress(warning=text)), EvaluateResponse(evaluation=evaluation)
    steps = sending(response.SerializeToString() for response in responses)
    return [
        Case(
            "warnings",
            "warnings of the server, in whole calls, streams and evaluations",
            [samples(1), _stream(1), {"do": "evaluate", "num_episodes": 1}, {"do": "warnings"}],
            scripts=[{"rpc": "Evaluate", "steps": steps}],
            recorded={0: "progress", 1: "progress"},
            expected={3: {"warnings": [text, text, text]}},
        )
    ]


def resumption_cases() -> list[Case]:
    """Return the cases about streams that are taken up again."""
    large = env(observations="large", max_length=30)
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 2, "options": {"seed": "3"}}
    not_reproducible = [
        *sending((recording("unknown").messages[0], recording("parts").messages[1])),
        abort("UNAVAILABLE", "", "connection lost"),
    ]
    return [
        Case(name, about, [env, RANDOM, operation], faults=faults, resumes=True)
        for name, about, env, operation, faults in (
            ("resume-at-start", "a stream that breaks before its first batch", env(), samples(), breaking(0)),
            ("resume-at-end", "a stream that breaks before its account", env(), samples(), breaking(1000)),
            ("resume-samples", "a stream that breaks within an episode", large, samples(40), breaking(3)),
            ("resume-twice", "a stream that breaks again and again", large, samples(60), breaking(2, 3)),
            ("resume-exact-episodes", "exact episodes whose stream breaks", large, exact, breaking(4)),
            ("resume-fragments", "fragments whose stream breaks", large, fragments(48), breaking(5)),
        )
    ] + [
        Case(
            "resume-refused",
            "a broken stream that cannot be taken up again, because its class is not EPISODE or BLOCK",
            [samples(1)],
            scripts=[{"rpc": "ObtainSamples", "steps": not_reproducible}],
            expected={0: {"error": {"kind": "unavailable"}}},
        )
    ]
