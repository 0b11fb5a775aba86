"""Updates of environments that the server rejects, with the field at fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rejections import Rejection, check_status, rejection_of, rejections
from sample_envs.spaces import ODD_SPACES

import rollserve
from rollserve import Reason
from rollserve_wire.v1 import environment_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

ENV = "all_workers.environment"
KWARGS = f"{ENV}.kwargs_json"


def update(**fields: Any) -> pb.UpdateEnvRequest:
    """Return an update of all workers to an environment with these fields."""
    environment = environment_pb2.Environment(**fields)
    return pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate(environment=environment))


def cartpole(kwargs_json: str) -> pb.UpdateEnvRequest:
    return update(id="CartPole-v1", kwargs_json=kwargs_json)


def cheetah(kwargs_json: str) -> pb.UpdateEnvRequest:
    return update(id="HalfCheetah-v5", kwargs_json=kwargs_json)


def per_worker(*ids: str) -> pb.UpdateEnvRequest:
    updates = [update(id=env_id).all_workers for env_id in ids]
    return pb.UpdateEnvRequest(per_worker=pb.EnvironmentUpdatePerWorker(updates=updates))


def wrapped(name: str, kwargs_json: str = "") -> pb.UpdateEnvRequest:
    return update(id="CartPole-v1", wrappers=[environment_pb2.Wrapper(name=name, kwargs_json=kwargs_json)])


def nested(depth: int) -> pb.UpdateEnvRequest:
    """Return an update whose arguments have this many objects in each other."""
    return cartpole('{"a":' * (depth - 1) + "{}" + "}" * (depth - 1))


CASES = {
    "no update": Rejection(pb.UpdateEnvRequest(), "update", ("all_workers", "per_worker")),
    "empty update": Rejection(
        pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate()), "all_workers.update"
    ),
    "more updates than workers": Rejection(
        per_worker("CartPole-v1", "CartPole-v1", "CartPole-v1"), "per_worker.updates", ("3", "2")
    ),
    "other spaces on one worker": Rejection(
        per_worker("CartPole-v1", "Pendulum-v1"), "per_worker.updates[1]", ("observation_space",)
    ),
    "unknown id on one worker": Rejection(
        per_worker("CartPole-v1", "Nope-v0"),
        "per_worker.updates[1].environment.id",
        ("'Nope-v0'",),
        Reason.ENV_NOT_FOUND,
    ),
}
ID_CASES = {
    "no id": Rejection(update(), f"{ENV}.id", ("''",), Reason.ENV_NOT_FOUND),
    "unknown id": Rejection(update(id="Nope-v0"), f"{ENV}.id", ("'Nope-v0'",), Reason.ENV_NOT_FOUND),
    "misspelt id": Rejection(update(id="cartpol-v1"), f"{ENV}.id", ("'CartPole-v1'",), Reason.ENV_NOT_FOUND),
    "id without its namespace": Rejection(
        update(id="Breakout-v5"), f"{ENV}.id", ("'ALE/Breakout-v5'",), Reason.ENV_NOT_FOUND
    ),
    "misspelt class": Rejection(update(id="sample_envs:task"), f"{ENV}.id", ("'Tasks'",), Reason.ENV_NOT_FOUND),
    "unknown version": Rejection(update(id="CartPole-v99"), f"{ENV}.id", ("'CartPole-v99'",), Reason.ENV_NOT_FOUND),
    "module of the system": Rejection(
        update(id="os:system"), f"{ENV}.id", ("'os'", "--allow-module"), Reason.MODULE_NOT_ALLOWED
    ),
    "module with an allowed prefix": Rejection(
        update(id="sample_envsx:Ends"), f"{ENV}.id", ("'sample_envsx'",), Reason.MODULE_NOT_ALLOWED
    ),
    "submodule of an allowed package": Rejection(
        update(id="sample_envs.lengths:Ends"), f"{ENV}.id", ("'sample_envs.lengths'",), Reason.MODULE_NOT_ALLOWED
    ),
    "no such name": Rejection(
        update(id="sample_envs:Nope"), f"{ENV}.id", ("'sample_envs'", "'Nope'"), Reason.ENV_NOT_FOUND
    ),
    "number": Rejection(
        update(id="sample_envs:NOT_AN_ENVIRONMENT"),
        f"{ENV}.id",
        ("NOT_AN_ENVIRONMENT", "gymnasium.Env"),
        Reason.ENV_NOT_FOUND,
    ),
    "other class": Rejection(
        update(id="sample_envs:NotAnEnvironment"),
        f"{ENV}.id",
        ("NotAnEnvironment", "gymnasium.Env"),
        Reason.ENV_NOT_FOUND,
    ),
    "no observation space": Rejection(
        update(id="sample_envs:Spaceless"),
        f"{ENV}.id",
        ("observation_space", "gymnasium.Space"),
        Reason.ENV_REFUSED,
    ),
    "leaf that is no Unicode": Rejection(update(id="sample_envs:OddlyNamed"), f"{ENV}.id", ("'\\ud800'",)),
    **{
        f"{kind} as {values}": Rejection(
            update(id="sample_envs:Varying", kwargs_json=json.dumps({"kind": kind, "actions": values == "actions"})),
            f"{ENV}.id",
            (f"{values} in a {kind} space", "MultiBinary", "one shape"),
        )
        for kind in ("Text", "Sequence", "Graph", "OneOf")
        for values in ("observations", "actions")
        if (kind, values) != ("Text", "observations")
    },
    "native rows with texts": Rejection(
        update(id="sample_envs:TalkingRows-v0", vectorization=environment_pb2.VECTORIZATION_NATIVE),
        f"{ENV}.id",
        ("observations in a Text space",),
    ),
    "texts with zeros": Rejection(
        update(id="sample_envs:Talking", kwargs_json='{"characters": "a\\u0000"}'), f"{ENV}.id", ("'\\0'",)
    ),
    "texts within actions": Rejection(
        update(id="sample_envs:Varying", kwargs_json='{"kind": "Text", "actions": true, "nested": true}'),
        f"{ENV}.id",
        ("actions at 'say/1' in a Text space",),
    ),
    "version of 4000 digits": Rejection(
        update(id="x-v" + "1" * 4000), f"{ENV}.id", ("a registered id",), Reason.ENV_NOT_FOUND
    ),
    **{
        f"{kind} as {'actions' if actions else 'observations'}": Rejection(
            update(id="sample_envs:OddSpaces", kwargs_json=json.dumps({"kind": kind, "actions": actions})),
            f"{ENV}.id",
            ("at least one element", f"{'actions' if actions else 'observations'}{place}", f"of shape {shape}"),
        )
        for kind, place, shape in (("empty", "", "(0,)"), ("empty leaf", " at 'none'", "(2, 0)"))
        for actions in (False, True)
    },
    "unknown vectorization": Rejection(update(vectorization=99), f"{ENV}.vectorization", ("99",)),
}
KWARGS_CASES = {
    "list": Rejection(cartpole("[1]"), KWARGS, ("'[1]'",)),
    "no JSON": Rejection(cartpole("{"), KWARGS, ("'{'",)),
    "NaN": Rejection(cartpole('{"a": NaN}'), KWARGS, ("NaN",)),
    "infinity": Rejection(cartpole('{"a": -Infinity}'), KWARGS, ("-Infinity",)),
    "beyond float64": Rejection(cartpole('{"a": 1e999}'), KWARGS, ("float64",)),
    "name that is no Unicode": Rejection(cartpole('{"\\ud800": 1}'), KWARGS, ("'\\ud800'",)),
    "text that is no Unicode": Rejection(cartpole('{"a": ["\\udc80"]}'), KWARGS, ("'\\udc80'",)),
    "65 deep": Rejection(nested(65), KWARGS, ("64",)),
    "700 deep": Rejection(nested(700), KWARGS, ("64",)),
    "100000 deep": Rejection(nested(100_000), KWARGS, ("64",)),
    "64 deep": Rejection(nested(64), KWARGS, ("'a'",), Reason.ENV_REFUSED),
    "unknown name": Rejection(cartpole('{"nope": 1}'), KWARGS, ("CartPole-v1", "'nope'"), Reason.ENV_REFUSED),
    "id twice": Rejection(cartpole('{"id": "os:system"}'), KWARGS, ("'id'",), Reason.ENV_REFUSED),
    "environment raises": Rejection(
        update(id="sample_envs:Failing", kwargs_json='{"at": "construction"}'),
        KWARGS,
        ("RuntimeError: broken by design",),
        Reason.ENV_REFUSED,
    ),
    "environment raises odd characters": Rejection(
        update(id="sample_envs:Refusing", kwargs_json='{"text": "d800 1f600 25"}'),
        KWARGS,
        ("RuntimeError: \\ud800😀%",),
        Reason.ENV_REFUSED,
    ),
    "absolute path": Rejection(
        cheetah('{"xml_file": "/etc/hostname"}'), KWARGS, ("'/etc/hostname'", "--allow-path"), Reason.PATH_NOT_ALLOWED
    ),
    "path of a user": Rejection(cheetah('{"xml_file": "~/x.xml"}'), KWARGS, ("'~/x.xml'",), Reason.PATH_NOT_ALLOWED),
    "nested path upwards": Rejection(cheetah('{"a": [{"b": "../x"}]}'), KWARGS, ("'../x'",), Reason.PATH_NOT_ALLOWED),
    "path down and upwards": Rejection(
        cheetah('{"a": "b/../../x"}'), KWARGS, ("'b/../../x'",), Reason.PATH_NOT_ALLOWED
    ),
    "path as a URL": Rejection(cheetah('{"a": "file:x"}'), KWARGS, ("'file:x'",), Reason.PATH_NOT_ALLOWED),
    **{
        f"render mode {mode}": Rejection(
            cartpole(f'{{"render_mode": {mode}}}'), KWARGS, (mode.replace('"', "'"),), Reason.RENDER_MODE_NOT_ALLOWED
        )
        for mode in ('"human"', '"human_list"', '"rgb_array_list"', '["human"]', "1")
    },
}
RETURNED_CASES = {
    f"{odd} in {at}": Rejection(
        update(id="sample_envs:Returns", kwargs_json=json.dumps({"odd": odd, "at": at})),
        ENV,
        (f"sample_envs:Returns returned from {at}: ", text),
        Reason.ENV_REFUSED,
    )
    for at in ("reset", "step")
    for odd, text in {
        "no leaf": "observation 'a': expected float32 of shape (2,), got none in a dict with ['b']",
        "short tuple": "observation 'b/1': expected int64 of shape (), got none in a tuple of 1",
        "none": "observation 'a': expected float32 of shape (2,), got none in None",
        "array": "observation 'a': expected float32 of shape (2,), got none in float32 of shape (2,)",
        "shape": "observation 'a': expected float32 of shape (2,), got float32 of shape (1, 2)",
        "dtype": "observation 'a': expected float32 of shape (2,), got complex64 of shape (2,)",
        "ragged": "observation 'a': expected float32 of shape (2,), got a list of 2",
        "too large": "observation 'b/1': expected int64 of shape (), got a number beyond that",
        **({"1": "expected an observation and infos, in a tuple, got a tuple of 1"} if at == "reset" else {}),
    }.items()
}
OTHER_CASES = {
    "environment raises without arguments": Rejection(
        update(id="sample_envs:Refusing"), f"{ENV}.id", ("missing 1 required",), Reason.ENV_REFUSED
    ),
    "wrapper raises without arguments": Rejection(
        wrapped("TimeLimit"), f"{ENV}.wrappers[0].name", ("missing 1 required",), Reason.ENV_REFUSED
    ),
    "task that is no JSON": Rejection(
        update(task=environment_pb2.Task(method="set_task", argument_json="{")),
        f"{ENV}.task.argument_json",
        ("'{'",),
    ),
    "reset options in a list": Rejection(update(reset_options_json="[]"), f"{ENV}.reset_options_json", ("'[]'",)),
    "too many wrappers": Rejection(
        update(id="CartPole-v1", wrappers=[environment_pb2.Wrapper(name="RecordEpisodeStatistics")] * 65),
        f"{ENV}.wrappers",
        ("65", "64"),
    ),
    "unknown wrapper": Rejection(wrapped("Nope"), f"{ENV}.wrappers[0].name", ("'Nope'",), Reason.WRAPPER_NOT_FOUND),
    "misspelt wrapper": Rejection(
        wrapped("ClipActions"), f"{ENV}.wrappers[0].name", ("'ClipAction'",), Reason.WRAPPER_NOT_FOUND
    ),
    "old name of a wrapper": Rejection(
        wrapped("GrayScaleObservation"),
        f"{ENV}.wrappers[0].name",
        ("'GrayscaleObservation'",),
        Reason.WRAPPER_NOT_FOUND,
    ),
    "wrapper that is a module": Rejection(
        wrapped("vector"), f"{ENV}.wrappers[0].name", ("'vector'",), Reason.WRAPPER_NOT_FOUND
    ),
    "wrapper that writes files": Rejection(
        wrapped("RecordVideo", '{"video_folder": "x"}'),
        f"{ENV}.wrappers[0].name",
        ("'RecordVideo'",),
        Reason.WRAPPER_NOT_ALLOWED,
    ),
    "wrapper with a number": Rejection(wrapped("TimeLimit", "7"), f"{ENV}.wrappers[0].kwargs_json", ("'7'",)),
    "wrapper raises": Rejection(
        wrapped("TimeLimit", '{"nope": 7}'),
        f"{ENV}.wrappers[0].kwargs_json",
        ("TimeLimit", "'nope'"),
        Reason.ENV_REFUSED,
    ),
    "wrapper with a path": Rejection(
        wrapped("TimeLimit", '{"max_episode_steps": "/"}'),
        f"{ENV}.wrappers[0].kwargs_json",
        ("'/'",),
        Reason.PATH_NOT_ALLOWED,
    ),
}


@rejections({**CASES, **ID_CASES, **KWARGS_CASES, **RETURNED_CASES, **OTHER_CASES})
def test_environment_update_is_rejected(unchanged_stub: SamplerServiceStub, rejection: Rejection) -> None:
    error = rejection_of(unchanged_stub.UpdateEnv, rejection.request)
    check_status(error, rejection.reason, field=rejection.field, quotes=rejection.quotes)


@pytest.mark.parametrize(
    "text",
    ["😀" * 600, "%" * 900, "\x7f" * 2000, "x" * 4000],
    ids=["emoji", "percent signs", "control characters", "letters"],
)
def test_long_quotes_fit_into_headers(unchanged_stub: SamplerServiceStub, text: str) -> None:
    error = rejection_of(unchanged_stub.UpdateEnv, update(id=text))
    quotes = f"'{text[:10]}" if text.isprintable() else ()
    check_status(error, Reason.ENV_NOT_FOUND, field=f"{ENV}.id", quotes=quotes)
    assert error.details().endswith("…")


def test_texts_that_are_no_paths_are_accepted(sampler: rollserve.Sampler) -> None:
    sampler.update_env("ALE/Pong-v5", kwargs={"obs_type": "grayscale"})
    sampler.update_env("FrozenLake-v1", kwargs={"desc": ["SFFF", "FHFH", "FFFH", "HFFG"]})
    sampler.update_env("HalfCheetah-v5", kwargs={"xml_file": "half_cheetah.xml"})


@pytest.mark.parametrize("actions", [False, True], ids=["observations", "actions"])
@pytest.mark.parametrize("kind", [kind for kind in ODD_SPACES if not kind.startswith("empty")])
def test_spaces_that_gymnasium_cannot_sample_are_sampled(
    thread_sampler: rollserve.Sampler, kind: str, actions: bool
) -> None:
    thread_sampler.update_env("sample_envs:OddSpaces", kwargs={"kind": kind, "actions": actions})
    thread_sampler.update_agent(rollserve.RandomAgent())  # the environment checks its actions
    assert thread_sampler.obtain_samples(20, seed=1).num_steps >= 20
    assert thread_sampler.obtain_fragments(num_steps=24, seed=1).num_steps == 24
    assert thread_sampler.evaluate(2).returns.tolist() == [5.0, 5.0]
