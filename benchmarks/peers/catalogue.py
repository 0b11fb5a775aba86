"""Workloads, peers, and the settings of each peer: of all settings tried, the fastest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.shared.processes import REPOSITORY

__all__ = [
    "MALLOC_RETAINS",
    "NUM_DRIVEN_ROWS",
    "NUM_ITERATION_STEPS",
    "PEERS",
    "WORKLOADS",
    "Kind",
    "Peer",
    "Variant",
    "driven_variants",
    "variants_of",
]

WORKLOADS = {
    "w1": "CartPole-v1, MLP 4-64-64-2, categorical",
    "w2": "HalfCheetah-v5, MLP 17-64-64-6, Gaussian",
    "w3": "ALE/Pong-v5, 84x84x4 uint8, random actions",
    "w4": "566 MB of random bytes, 1 MiB a step",
    "w8": "MPE's simple_spread, three agents, MLP 18-64-64-5, categorical; environment steps",
    "w10-cartpole-rows": "update + 2,048 steps of CartPole-v1, rows one by one, MLP 4-64-64-2, categorical",
    "w10-cartpole-native": "update + 2,048 steps of CartPole-v1, native rows, MLP 4-64-64-2, categorical",
    "w10-cheetah-rows": "update + 2,048 steps of HalfCheetah-v5, rows one by one, MLP 17-64-64-6, Gaussian",
    "w11-cartpole": "rollouts of Stable-Baselines3's PPO, CartPole-v1, 4 rows of each worker, MLP 4-64-64-2",
    "w11-cheetah": "rollouts of Stable-Baselines3's PPO, HalfCheetah-v5, 4 rows of each worker, MLP 17-64-64-6",
}
"""Titles of the workloads by name. In w11, Rollserve's environments are a VecEnv of Stable-Baselines3."""

NUM_DRIVEN_ROWS = 4
"""Number of rows of each worker in w11."""

NUM_ITERATION_STEPS = 2048
"""Number of steps of a call in w10."""

Kind = Literal["library", "loop", "transport"]
"""Part of the work that a peer does: collecting, stepping environments for a loop, or moving ready data."""

MALLOC_RETAINS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
}
"""Environment variables that make glibc keep large blocks instead of returning them to the system."""


@dataclass(frozen=True)
class Peer:
    """A library that Rollserve is compared with.

    Attributes:
        title: the library's name.
        kind: part of the work that it does.
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
"""Peers by name. The module in `runs` and the file in `requirements` have the same name."""


@dataclass(frozen=True)
class Variant:
    """A way to measure a peer.

    Attributes:
        peer: name of the peer.
        title: the way in a few words.
        settings: arguments of `collecting` in the peer's module.
        variables: environment variables of the peer's processes.
        num_processes: number of processes that each collect by themselves at the same time. Nothing is moved between
            them.
    """

    peer: str
    title: str
    settings: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)
    num_processes: int = 1


def variants_of(workload: str, num_workers: int, num_bulk_steps: int) -> list[Variant]:
    """Return all ways to measure the peers in a workload.

    Args:
        workload: name of the workload.
        num_workers: number of processes or threads that sample.
        num_bulk_steps: number of steps of 1 MiB in w4.
    """
    match workload:
        case "w1":
            return _cartpole(num_workers)
        case "w2":
            return _cheetah(num_workers)
        case "w3":
            return [
                _gymnasium("sync", 8),
                _gymnasium("sync", 8, num_processes=num_workers),
                _gymnasium("async", 8),
                _gymnasium("native", 16, num_threads=num_workers),
                *_envpool(16, num_workers),
            ]
        case "w4":
            return _arrow_flight(num_bulk_steps)
        case "w8":
            return [_rllib("multi_agent", num_workers, count) for count in (1, 16)]
        case "w10-cartpole-rows":
            return _iterations(num_workers, 32, [8, 64])
        case "w10-cartpole-native":
            return [_gymnasium("native", 32 * num_workers), _gymnasium("native", 32, num_processes=num_workers)]
        case "w11-cartpole" | "w11-cheetah":
            return [_stable_baselines3(each, NUM_DRIVEN_ROWS * num_workers) for each in ("subproc", "dummy")]
        case _:
            return _iterations(num_workers, 8, [8, 16])


def driven_variants(workload: str, num_workers: int) -> list[Variant]:
    """Return all ways to measure a peer whose environments are Rollserve's rows."""
    if not workload.startswith("w11-"):
        return []
    settings = {"vectorization": "rollserve", "num_rows": NUM_DRIVEN_ROWS * num_workers, "num_fragment_steps": 64}
    title = f"PPO.collect_rollouts of Stable-Baselines3, {settings['num_rows']} rows of sb3_vec_env"
    client = {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "client" / "src")))}
    return [Variant("stable_baselines3", title, settings, client)]


def _cartpole(num_workers: int) -> list[Variant]:
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


def _cheetah(num_workers: int) -> list[Variant]:
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


def _iterations(num_workers: int, num_rows: int, stable_baselines3_rows: Sequence[int]) -> list[Variant]:
    """Return the variants of a workload with `num_rows` rows of each worker, stepped one by one."""
    num_row_steps = NUM_ITERATION_STEPS // num_rows
    return [
        *(_stable_baselines3("dummy", count, NUM_ITERATION_STEPS // count) for count in stable_baselines3_rows),
        _torchrl("single", 1, num_rows * num_workers, num_row_steps // num_workers, updates=True),
        _torchrl("sync", num_workers, num_rows, num_row_steps // num_workers, updates=True),
        _torchrl("async", num_workers, num_rows, num_row_steps, updates=True),
        _gymnasium("sync", num_rows * num_workers),
        _gymnasium("sync", num_rows, num_processes=num_workers),
    ]


def _rllib(rows: str, num_workers: int, num_rows: int) -> Variant:
    settings = {"call": "async", "rows": rows, "num_workers": num_workers, "num_rows": num_rows}
    native = {"vector_entry_point": " native", "multi_agent": " multi-agent"}.get(rows, "")
    title = f"EnvRunnerGroup, asynchronous, {num_workers} x {num_rows}{native} rows"
    return Variant("rllib", title, {**settings, "num_fragment_steps": 32})


def _torchrl(
    collector: str, num_workers: int, num_rows: int, num_fragment_steps: int = 64, *, updates: bool = False
) -> Variant:
    settings = {"collector": collector, "rows": "gymnasium", "num_workers": num_workers, "num_rows": num_rows}
    settings |= {"num_fragment_steps": num_fragment_steps, "updates": updates}
    title = f"Multi{collector.title()}Collector, {num_workers} x {num_rows} rows of SyncVectorEnv"
    if collector == "single":
        title = f"Collector, {num_rows} rows of SyncVectorEnv"
    return Variant("torchrl", title, settings)


def _stable_baselines3(vectorization: str, num_rows: int, num_fragment_steps: int = 64) -> Variant:
    title = f"PPO.collect_rollouts, {num_rows} rows of {vectorization.title()}VecEnv"
    settings = {"vectorization": vectorization, "num_rows": num_rows, "num_fragment_steps": num_fragment_steps}
    return Variant("stable_baselines3", title, settings)


def _tianshou(vectorization: str, num_rows: int) -> Variant:
    title = f"Collector, {num_rows} rows of {vectorization.title()}VectorEnv"
    return Variant("tianshou", title, {"vectorization": vectorization, "num_rows": num_rows, "num_fragment_steps": 64})


def _pufferlib(backend: str, num_workers: int, num_rows: int) -> Variant:
    settings = {"backend": backend, "num_workers": num_workers, "num_rows": num_rows}
    return Variant("pufferlib", f"{backend.title()}, {num_workers} x {num_rows // num_workers} rows", settings)


def _gymnasium(vectorization: str, num_rows: int, *, num_processes: int = 1, num_threads: int | None = None) -> Variant:
    """Return a plain loop. `num_threads` is an argument of ALE's native vector environment alone."""
    titles = {"native": "native vector env", "sync": "SyncVectorEnv", "async": "AsyncVectorEnv"}
    settings: dict[str, Any] = {"vectorization": vectorization, "num_rows": num_rows}
    processes = f"{num_processes} processes x " if num_processes > 1 else ""
    threads = ""
    if num_threads is not None:
        settings["num_threads"] = num_threads
        threads = f", {num_threads} threads"
    title = f"{titles[vectorization]}, {processes}{num_rows} rows{threads}, plain loop"
    return Variant("gymnasium", title, settings, num_processes=num_processes)


def _envpool(num_rows: int, num_threads: int) -> list[Variant]:
    return [
        Variant(
            "envpool",
            f"{mode}, {num_rows} rows, {num_threads} threads, plain loop",
            {"num_rows": num_rows, "batch_size": batch_size, "num_threads": num_threads},
        )
        for mode, batch_size in (("synchronous", num_rows), ("asynchronous", num_rows // 2))
    ]


def _arrow_flight(num_steps: int) -> list[Variant]:
    settings = {"num_steps": num_steps, "batch_bytes": 2 << 20}
    return [
        Variant("arrow_flight", f"DoGet, 2 MB batches {kept}{retains}", {**settings, "keep": keep}, variables)
        for keep, kept in (("copy", "into one array"), ("views", "as they are"))
        for retains, variables in (("", {}), (", MALLOC_ set", MALLOC_RETAINS))
    ]
