"""Writes recordings for the conformance kit that do not exist yet, and its ONNX model, if that is missing.

`PYTHONPATH=tests/helpers python tests/compatibility/make_recordings.py` does it from the repository's root.

What has been recorded stays as it is, because servers in use send it. A new kind of message is a new recording.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lz4.block
import numpy as np
import onnx
import zstandard
from onnx_models import model, node

from rollserve_conformance.description import describe_batch
from rollserve_conformance.reading import read_stream
from rollserve_conformance.recordings import FOLDER
from rollserve_wire.v1 import episode_batch_pb2, tensor_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__: list[str] = []

_MODEL = FOLDER / "policy.onnx"
_SEED = (1 << 64) - 1
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_UNKNOWN = b"\x80\x7d\x01"
"""Field 2000, a varint: no message of this version has it."""

_Columns = Mapping[str, np.ndarray]


def _tensor(array: np.ndarray, compression: str = "") -> tensor_pb2.Tensor:
    data_type = tensor_pb2.DataType.Value(f"DATA_TYPE_{array.dtype.name.upper()}")
    tensor = tensor_pb2.Tensor(data_type=data_type, shape=array.shape, data=array.tobytes())
    if compression == "lz4":
        tensor.data, tensor.compression = lz4.block.compress(tensor.data, store_size=False), tensor_pb2.COMPRESSION_LZ4
    elif compression == "zstd":
        tensor.data, tensor.compression = zstandard.compress(tensor.data), tensor_pb2.COMPRESSION_ZSTD
    return tensor


def _named(columns: _Columns, compression: str = "") -> list[tensor_pb2.NamedTensor]:
    return [tensor_pb2.NamedTensor(name=name, tensor=_tensor(each, compression)) for name, each in columns.items()]


def _batch(
    segments: Sequence[tuple[int, int, int, str]],
    *,
    observations: _Columns | None = None,
    last_observations: _Columns | None = None,
    compression: str = "",
    frames: tuple[str, int, np.ndarray] | None = None,
    **columns: _Columns,
) -> pb.ObtainSamplesResponse:
    """Return a message with segments: (episode index, first step, length, `terminated`, `truncated`, `both` or ``)."""
    indices, first_steps, lengths, ends = zip(*segments, strict=True)
    num_steps, num_segments = sum(lengths), len(segments)
    generator = np.random.default_rng([num_steps, *indices, *first_steps])
    if observations is None and frames is None:
        observations = {"": generator.random((num_steps, 2)).astype(np.float32)}
        last_observations = {"": generator.random((num_segments, 2)).astype(np.float32)}
    others: dict[str, Any] = {name: _named(each, compression) for name, each in columns.items()}
    batch = episode_batch_pb2.EpisodeBatch(
        episode_indices=indices,
        first_steps=first_steps,
        lengths=lengths,
        terminated=[end in ("terminated", "both") for end in ends],
        truncated=[end in ("truncated", "both") for end in ends],
        policy_versions=[3] * num_segments,
        environment_seeds=[1000 + index for index in indices],
        observations=_named(observations or {}, compression),
        last_observations=_named(last_observations or {}, compression),
        actions=_named({"": generator.integers(0, 2, num_steps)}, compression),
        rewards=_tensor(generator.integers(-8, 8, num_steps) / 4, compression),
        **others,
    )
    if frames is not None:
        name, count, array = frames
        tensor = _tensor(array, compression)
        batch.frame_stacks.add(name=name, frame_count=count, frames=tensor)
    return pb.ObtainSamplesResponse(batch=batch)


def _beginning(**fields: Any) -> pb.ObtainSamplesResponse:
    values = {
        "seed": _SEED,
        "policy_version": 3,
        "environment_version": 2,
        "sampler_run": "recorded",
        "worker_count": 2,
    }
    values |= {"reproducibility": episode_batch_pb2.REPRODUCIBILITY_EPISODE}
    return pb.ObtainSamplesResponse(beginning=episode_batch_pb2.Beginning(**{**values, **fields}))


def _account(batches: Sequence[pb.ObtainSamplesResponse], **fields: Any) -> pb.ObtainSamplesResponse:
    num_steps = sum(sum(each.batch.lengths) for each in batches)
    num_episodes = sum(sum(map(max, each.batch.terminated, each.batch.truncated)) for each in batches)
    values = {"step_count": num_steps, "episode_count": num_episodes, "simulated_step_count": num_steps, "seed": _SEED}
    values |= {"policy_version": 3, "environment_version": 2}
    return pb.ObtainSamplesResponse(account=episode_batch_pb2.Account(**{**values, **fields}))


def _stream(*batches: pb.ObtainSamplesResponse, **account: Any) -> list[bytes]:
    messages = [_beginning(), *batches, _account(batches, **account)]
    return [message.SerializeToString() for message in messages]


def _dtypes() -> list[bytes]:
    def columns(num_rows: int) -> _Columns:
        generator = np.random.default_rng(num_rows)
        result: dict[str, np.ndarray] = {}
        for dtype in _DTYPES:
            data = generator.bytes(num_rows * 2 * np.dtype(dtype).itemsize)
            values = np.frombuffer(data, np.uint8) % 2 if dtype == "bool" else np.frombuffer(data, np.uint8)
            result[dtype] = np.ascontiguousarray(values).view(dtype).reshape(num_rows, 2)
        floats = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(np.float64).tiny / 4], np.float64)
        result["special"] = np.tile(floats, (num_rows, 1))
        result["empty"] = np.zeros((num_rows, 0), np.float32)
        result["scalar"] = np.arange(num_rows, dtype=np.int64) - (1 << 62)
        return result

    return _stream(
        _batch([(0, 0, 2, "terminated"), (1, 0, 3, "both")], observations=columns(5), last_observations=columns(2))
    )


def _parts() -> list[bytes]:
    def states(*rows: float) -> dict[str, Any]:
        return {"initial_states": {"hidden": np.array([[row, -row] for row in rows], np.float32)}}

    def resets(*rows: int) -> dict[str, Any]:
        return {"episode_infos": {"level": np.array(rows, np.int64)}}

    return _stream(
        _batch([(4, 0, 2, "terminated"), (5, 0, 3, "")], **states(0, 1), **resets(7, 8)),
        _batch([(5, 3, 4, "")], **states(2), **resets(8)),
        _batch([(5, 7, 1, "truncated"), (6, 0, 2, "terminated")], **states(3, 4), **resets(8, 9)),
        _batch([(7, 0, 1, "truncated")], **states(5), **resets(1)),
        first_episode_index=4,
    )


def _gaps() -> list[bytes]:
    """Columns that come and go, and whose type changes from message to message."""
    first: _Columns = {
        "count": np.array([1, 2, 3], np.int32),
        "success": np.array([True, False, False]),
        "_success": np.array([True, False, True]),
        "nested/force": np.array([[1, 2], [0, 0], [5, 6]], np.float32),
        "_nested/force": np.array([True, False, True]),
        "big": np.array([1, 2, (1 << 63) - 1], np.int64),
    }
    second: _Columns = {
        "count": np.array([0.5, 1.5], np.float64),
        "nested/force": np.array([[7, 8], [9, 10]], np.float32),
        "big": np.array([(1 << 64) - 1, 3], np.uint64),
        "late": np.array([4, 5], np.uint8),
    }
    third: _Columns = {
        "late": np.array([300], np.int16),
        "nested/force": np.array([[1, 2, 3]], np.float32),  # another shape: left out
    }
    return _stream(
        _batch([(0, 0, 3, "terminated")], environment_infos=first, episode_infos={"seed": np.array([1], np.int64)}),
        _batch([(1, 0, 2, "terminated")], environment_infos=second),
        _batch([(2, 0, 1, "truncated")], environment_infos=third, episode_infos={"seed": np.array([2], np.int64)}),
    )


def _integers() -> list[bytes]:
    """Integers beside uint64 and floats of other messages; an episode that continues counts its infos once."""
    max_exact = 1 << 53
    first: _Columns = {
        "hash": np.array([1, (1 << 63) - 1, 5], np.int64),
        "negative": np.array([0, -1, 3], np.int8),
        "score": np.array([max_exact + 1, 0, 1], np.int64),
        "_score": np.array([True, False, True]),
        "exact": np.array([max_exact, -max_exact, 7], np.int64),
        "three": np.array([-3, 4, max_exact], np.int64),
    }
    second: _Columns = {
        "hash": np.array([(1 << 64) - 1, 0, 1 << 63], np.uint64),
        "negative": np.array([1, 2, 3], np.uint64),
        "score": np.array([0.5, 1, 2], np.float32),
        "exact": np.array([0.5, np.nan, np.inf], np.float32),
        "three": np.array([9, 10, max_exact], np.uint64),
    }
    third: _Columns = {"three": np.array([0.5], np.float16), "negative": np.array([1], np.uint8)}
    resets: list[_Columns] = [
        {"id": np.array([0, 1 - (1 << 63)], np.int64), "key": np.array([0, 1], np.int8)},
        {"id": np.array([1.0, 0.5], np.float64), "key": np.array([1, 1 << 63], np.uint64)},
    ]
    return _stream(
        _batch([(0, 0, 2, "terminated"), (1, 0, 1, "")], environment_infos=first, episode_infos=resets[0]),
        _batch([(1, 1, 2, "truncated"), (2, 0, 1, "terminated")], environment_infos=second, episode_infos=resets[1]),
        _batch([(3, 0, 1, "terminated")], environment_infos=third),
        dropped_infos={"score": 2},
    )


def _non_finite() -> list[bytes]:
    observations = {"": np.array([0.5, np.nan, 1.5, -np.inf], np.float32)}
    last = {"": np.array([np.inf, 2.5], np.float32)}
    segments = [(0, 0, 2, "terminated"), (1, 0, 2, "truncated")]
    return _stream(_batch(segments, observations=observations, last_observations=last), non_finite_step_count=2)


def _joined() -> list[bytes]:
    batches = [_batch([(index, 0, 1 + index % 3, "terminated")]) for index in range(6)]
    messages = [_beginning(), *batches, _account(batches)]
    parts = [message.SerializeToString() for message in messages]
    groups = [parts[:3], parts[4:]]
    joined = [
        pb.ObtainSamplesResponse(joined=pb.JoinedResponses(responses=group)).SerializeToString() for group in groups
    ]
    return [joined[0], parts[3], joined[1]]


def _progress() -> list[bytes]:
    first, second = _batch([(0, 0, 4, "terminated")]), _batch([(1, 0, 2, "truncated")])
    signs = [
        episode_batch_pb2.Progress(),
        episode_batch_pb2.Progress(warning="no episode has ended in 1,000 steps"),
        episode_batch_pb2.Progress(simulated_step_count=12, waiting_for="worker 1: it is being started"),
    ]
    progress = [pb.ObtainSamplesResponse(progress=each) for each in signs]
    messages = [
        progress[0],
        progress[2],
        _beginning(),
        progress[1],
        first,
        progress[2],
        second,
        _account([first, second]),
    ]
    return [message.SerializeToString() for message in messages]


def _unknown() -> list[bytes]:
    """A later version's stream: further fields, members of enums, and kinds of content."""
    batch = _batch([(0, 0, 3, "terminated")]).batch.SerializeToString() + _UNKNOWN
    later = pb.ObtainSamplesResponse(batch=episode_batch_pb2.EpisodeBatch.FromString(batch))
    account = _account([later], retry_reasons={"solar_flare": 2})
    return [
        _beginning(reproducibility=99).SerializeToString() + _UNKNOWN,
        b"\xfa\x7c\x02\x08\x01",  # field 1999, a message: content of an unknown kind
        later.SerializeToString() + _UNKNOWN,
        account.SerializeToString() + _UNKNOWN,
    ]


def _frames(compression: str = "") -> list[bytes]:
    generator = np.random.default_rng(5)

    def stacked(num_frames: int) -> tuple[str, int, np.ndarray]:
        return "screen", 3, generator.integers(0, 4, (num_frames, 4, 5), np.uint8)

    def speed(num_rows: int) -> _Columns:
        return {"speed": generator.random((num_rows, 1)).astype(np.float32)}

    plain = {"screen": generator.integers(0, 4, (2, 3, 4, 5), np.uint8), **speed(2)}
    last = {"screen": generator.integers(0, 4, (1, 3, 4, 5), np.uint8), **speed(1)}
    return _stream(
        _batch(
            [(0, 0, 4, "terminated"), (1, 0, 2, "")],
            observations=speed(6),
            last_observations=speed(2),
            frames=stacked(6 + 2 * 3),
            compression=compression,
        ),
        _batch([(1, 2, 2, "truncated")], observations=plain, last_observations=last, compression=compression),
        _batch(
            [(2, 0, 1, "terminated")],
            observations=speed(1),
            last_observations=speed(1),
            frames=stacked(1 + 3),
            compression=compression,
        ),
    )


def _compressed(codec: str) -> list[bytes]:
    def columns(num_rows: int) -> _Columns:
        return {"": np.arange(num_rows * 64, dtype=np.int32).reshape(num_rows, 8, 8) // 7}

    def batch(segments: Sequence[tuple[int, int, int, str]], compression: str) -> pb.ObtainSamplesResponse:
        num_steps = sum(each[2] for each in segments)
        return _batch(
            segments,
            observations=columns(num_steps),
            last_observations=columns(len(segments)),
            compression=compression,
            environment_infos={"score": np.zeros(num_steps, np.float64)},
        )

    return _stream(batch([(0, 0, 5, "terminated"), (1, 0, 1, "")], codec), batch([(1, 1, 3, "truncated")], ""))


def _fragments() -> list[bytes]:
    """Return a call for fragments: ended episodes first, then continued ones, whose indices do not rise."""
    batches = [
        _batch([(3, 2, 2, "terminated"), (1, 9, 1, "truncated"), (5, 0, 4, "")]),
        _batch([(1 + 4, 4, 1, ""), (7, 0, 3, "")]),
    ]
    messages = [_beginning(row_count=4, row_step_count=12), *batches, _account(batches, row_step_count=12)]
    return [message.SerializeToString() for message in messages]


def _ends() -> list[bytes]:
    """Values, states and sums at the ends of segments; rewards and actions of the environment, where they differ."""

    def message(
        segments: Sequence[tuple[int, int, int, str]], before: Sequence[float] = (), *, has_raw: bool = False
    ) -> pb.ObtainSamplesResponse:
        ends = np.array([first_step + length for _, first_step, length, _ in segments], np.float32)
        starts = np.array([first_step for _, first_step, _, _ in segments], np.float32)
        response = _batch(
            segments,
            initial_states={"hidden": np.stack([starts, -starts], axis=1)},
            last_states={"hidden": np.stack([ends, -ends], axis=1)},
        )
        batch = response.batch
        batch.last_values.CopyFrom(_tensor(ends / 4))
        batch.returns_before.extend(before)
        if has_raw:
            num_steps = sum(batch.lengths)
            batch.raw_rewards.CopyFrom(_tensor(np.arange(num_steps) + 0.5))
            batch.environment_actions.extend(_named({"": 1 - np.arange(num_steps) % 2}))
        return response

    return _stream(
        message([(0, 0, 2, "terminated"), (1, 0, 3, "")]),
        message([(1, 3, 2, "")], [-7.25], has_raw=True),
        message([(1, 5, 1, "truncated"), (2, 0, 2, "")], [0.5, 0.0], has_raw=True),
        message([(2, 2, 1, "terminated"), (3, 0, 1, "both")], [1.25, 0.0]),
    )


def _ended_episodes() -> list[bytes]:
    first, second = _batch([(0, 0, 4, "terminated")]), _batch([(1, 0, 2, "truncated")])
    signs = [
        episode_batch_pb2.Progress(simulated_step_count=10),
        episode_batch_pb2.Progress(simulated_step_count=25, ended_episode_count=4),
        episode_batch_pb2.Progress(simulated_step_count=40, ended_episode_count=9),
    ]
    progress = [pb.ObtainSamplesResponse(progress=each) for each in signs]
    account = _account([first, second], simulated_step_count=40)
    messages = [_beginning(), progress[0], first, *progress[1:], second, account]
    return [message.SerializeToString() for message in messages]


_MAKERS: Mapping[str, tuple[Callable[[], list[bytes]], Sequence[str]]] = {
    "dtypes": (_dtypes, ()),
    "parts": (_parts, ()),
    "gaps": (_gaps, ()),
    "integers": (_integers, ()),
    "non-finite": (_non_finite, ()),
    "joined": (_joined, ("accept_joined",)),
    "progress": (_progress, ()),
    "unknown": (_unknown, ()),
    "frames": (_frames, ("accept_frame_stacks",)),
    "lz4": (lambda: _compressed("lz4"), ("accept_compression",)),
    "zstd": (lambda: _compressed("zstd"), ("accept_compression",)),
    "lz4-frames": (lambda: _frames("lz4"), ("accept_compression", "accept_frame_stacks")),
    "fragments": (_fragments, ()),
    "ends": (_ends, ("return_last_values", "return_last_states", "return_returns_before")),
    "ended-episodes": (_ended_episodes, ()),
}


def _policy() -> onnx.ModelProto:
    """Return a model with one layer, whose input and output have names of their own."""
    nodes = [node("MatMul", "obs weight", "scores"), node("Tanh", "scores", "squashed")]
    weight = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    shapes = {"scores": ["rows", 2], "squashed": ["rows", 2]}
    return model(nodes, {"obs": ["rows", 3]}, shapes, {"weight": weight}, opset=17)


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, (make, needs) in _MAKERS.items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            messages = make()
            content = {
                "needs": list(needs),
                "messages": [base64.b64encode(message).decode() for message in messages],
                "expected": describe_batch(read_stream(messages)),
            }
            path.write_text(f"{json.dumps(content, indent=1)}\n")
            sys.stdout.write(f"{path.name}\n")
    if not _MODEL.exists():
        _MODEL.write_bytes(_policy().SerializeToString())
        sys.stdout.write(f"{_MODEL.name}\n")


if __name__ == "__main__":
    main()
