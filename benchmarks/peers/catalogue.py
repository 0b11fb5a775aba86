"""Which peers there are, and what each is measured with: what made it fastest of what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["MALLOC_RETAINS", "PEERS", "WORKLOADS", "Entry", "Kind", "Peer", "entries_of"]

WORKLOADS = {
    "w1": "CartPole-v1, MLP 4-64-64-2, categorical",
    "w2": "HalfCheetah-v5, MLP 17-64-64-6, Gaussian",
    "w3": "ALE/Pong-v5, 84x84x4 uint8, random actions",
    "w4": "566 MB of random bytes, 1 MiB a step",
}
"""What is measured, by name."""

Kind = Literal["library", "loop", "transport"]
"""Whether a peer collects by itself, or its environments are stepped by a plain loop in the trainer's process."""

MALLOC_RETAINS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
}
"""Environment variables with which glibc keeps large blocks rather than giving them back."""


@dataclass(frozen=True)
class Peer:
    """One that is compared to.

    Attributes:
        title: what it is called.
        kind: what it does of the whole.
        own_environment: whether it needs a virtual environment of its own.
    """

    title: str
    kind: Kind
    own_environment: bool = True


PEERS = {
    "rllib": Peer("RLlib", "library"),
    "torchrl": Peer("TorchRL", "library"),
    "stable_baselines3": Peer("Stable-Baselines3", "library"),
    "tianshou": Peer("Tianshou", "library"),
    "pufferlib": Peer("PufferLib", "library"),
    "gymnasium": Peer("gymnasium", "loop", own_environment=False),
    "envpool": Peer("EnvPool", "loop", own_environment=False),
    "arrow_flight": Peer("Arrow Flight", "transport"),
}
"""By name, which is that of the module in `runs` and of the file in `requirements`."""


@dataclass(frozen=True)
class Entry:
    """One way to measure a peer.

    Attributes:
        peer: its name.
        title: which way, in a few words.
        settings: what its module takes.
        variables: of the environment of its processes.
    """

    peer: str
    title: str
    settings: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def entries_of(workload: str, num_workers: int, num_bulk_steps: int) -> list[Entry]:
    """All ways to measure a workload with so many processes, or threads, that sample."""
    match workload:
        case "w1":
            return _cartpole(num_workers)
        case "w2":
            return _cheetah(num_workers)
        case "w3":
            return [
                _gymnasium("sync", 8),
                _gymnasium("async", 8),
                *_envpool(16, num_workers),
            ]
        case _:
            return _flight(num_bulk_steps)


def _cartpole(num_workers: int) -> list[Entry]:
    return [
        _rllib("vector_entry_point", num_workers, 256),
        _torchrl("sync", num_workers, 256),
        _torchrl("async", num_workers, 256),
        _stable_baselines3("dummy", 256),
        _tianshou("dummy", 64),
        _pufferlib("serial", 1, 64),
        _gymnasium("native", 512),
        _gymnasium("sync", 64),
        _gymnasium("async", 32),
        *_envpool(256, num_workers),
    ]


def _cheetah(num_workers: int) -> list[Entry]:
    return [
        _rllib("sync", num_workers, 32),
        _torchrl("sync", num_workers, 32),
        _torchrl("async", num_workers, 32),
        _stable_baselines3("dummy", 16),
        _stable_baselines3("subproc", 8),
        _tianshou("shmem", 8),
        _pufferlib("multiprocessing", num_workers, 16 * num_workers),
        _gymnasium("sync", 8),
        _gymnasium("async", 8),
        *_envpool(64, num_workers),
    ]


def _rllib(rows: str, num_workers: int, num_rows: int) -> Entry:
    settings = {"call": "async", "rows": rows, "num_workers": num_workers, "num_rows": num_rows}
    kind = " native" if rows == "vector_entry_point" else ""
    title = f"EnvRunnerGroup, asynchronous, {num_workers} x {num_rows}{kind} rows"
    return Entry("rllib", title, {**settings, "num_fragment_steps": 32})


def _torchrl(collector: str, num_workers: int, num_rows: int) -> Entry:
    settings = {"collector": collector, "rows": "gymnasium", "num_workers": num_workers, "num_rows": num_rows}
    title = f"Multi{collector.title()}Collector, {num_workers} x {num_rows} rows of SyncVectorEnv"
    return Entry("torchrl", title, {**settings, "num_fragment_steps": 64})


def _stable_baselines3(vectorization: str, num_rows: int) -> Entry:
    title = f"PPO.collect_rollouts, {num_rows} rows of {vectorization.title()}VecEnv"
    settings = {"vectorization": vectorization, "num_rows": num_rows, "num_fragment_steps": 64}
    return Entry("stable_baselines3", title, settings)


def _tianshou(vectorization: str, num_rows: int) -> Entry:
    title = f"Collector, {num_rows} rows of {vectorization.title()}VectorEnv"
    return Entry("tianshou", title, {"vectorization": vectorization, "num_rows": num_rows, "num_fragment_steps": 64})


def _pufferlib(backend: str, num_workers: int, num_rows: int) -> Entry:
    settings = {"backend": backend, "num_workers": num_workers, "num_rows": num_rows}
    return Entry("pufferlib", f"{backend.title()}, {num_workers} x {num_rows // num_workers} rows", settings)


def _gymnasium(vectorization: str, num_rows: int) -> Entry:
    titles = {"native": "native vector env", "sync": "SyncVectorEnv", "async": "AsyncVectorEnv"}
    settings = {"vectorization": vectorization, "num_rows": num_rows}
    return Entry("gymnasium", f"{titles[vectorization]}, {num_rows} rows, plain loop", settings)


def _envpool(num_rows: int, num_threads: int) -> list[Entry]:
    return [
        Entry(
            "envpool",
            f"{way}, {num_rows} rows, {num_threads} threads, plain loop",
            {"num_rows": num_rows, "batch_size": batch_size, "num_threads": num_threads},
        )
        for way, batch_size in (("synchronous", num_rows), ("asynchronous", num_rows // 2))
    ]


def _flight(num_steps: int) -> list[Entry]:
    settings = {"num_steps": num_steps, "batch_bytes": 2 << 20}
    return [
        Entry("arrow_flight", f"DoGet, 2 MB batches {kept}{retains}", {**settings, "keep": keep}, variables)
        for keep, kept in (("copy", "into one array"), ("views", "as they are"))
        for retains, variables in (("", {}), (", MALLOC_ set", MALLOC_RETAINS))
    ]
