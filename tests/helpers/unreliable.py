"""Backends whose workers die or lose results at random, and workers that are slow on demand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shuffled_workers import ShuffledBackend

import rollserve
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import Pool, WorkerHandle
from rollserve_server.settings import WorkerSettings


class MortalBackend(ShuffledBackend):
    """Shuffled workers that die at random; with `with_machines`, their unread results are lost, too."""

    def __init__(self, seed: int, num_deaths: int, *, with_machines: bool = False) -> None:
        super().__init__(seed)
        self.source = random.Random(seed)
        self.num_deaths = num_deaths
        self.with_machines = with_machines

    def create_worker(self, worker_index: int, config: WorkerSettings) -> WorkerHandle:
        handle: Any = super().create_worker(worker_index, config)
        work, call = handle.work, handle.call
        error = WorkerLostError(f"worker {worker_index} is lost: by chance", worker_index)
        is_dead = False

        async def answer(report: asyncio.Future[Any]) -> Any:
            nonlocal is_dead
            value = await report
            if not is_dead and self.num_deaths and self.source.random() < 0.03:
                self.num_deaths -= 1
                is_dead = True
            if is_dead:
                raise error
            return value

        def mortal_work(order: Any) -> Any:
            report, payload = work(order)
            get = payload.get

            async def get_remaining() -> Any:
                value = await get()
                if is_dead and self.with_machines:
                    raise error
                return value

            payload.get = get_remaining
            return asyncio.ensure_future(answer(report)), payload

        async def mortal_call(*arguments: Any) -> Any:
            if is_dead:
                raise error
            return await call(*arguments)

        handle.work, handle.call = mortal_work, mortal_call
        return handle  # type: ignore[no-any-return]


class ForgetfulBackend(ShuffledBackend):
    """Shuffled workers, some of whose results are lost while the workers live on."""

    def __init__(self, seed: int, num_losses: int) -> None:
        super().__init__(seed)
        self.source = random.Random(seed)
        self.num_losses = num_losses

    def create_worker(self, worker_index: int, config: WorkerSettings) -> WorkerHandle:
        handle: Any = super().create_worker(worker_index, config)
        work = handle.work
        error = WorkerLostError(f"worker {worker_index} lost a result", worker_index)

        def forgetful_work(order: Any) -> Any:
            report, payload = work(order)
            get = payload.get

            async def maybe_get() -> Any:
                if self.num_losses and self.source.random() < 0.2:
                    self.num_losses -= 1
                    raise error
                return await get()

            payload.get = maybe_get
            return report, payload

        handle.work = forgetful_work
        return handle  # type: ignore[no-any-return]


class Places:
    """A file that names the slow workers, for `sample_envs:SlowInPlaces`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def env(self, **kwargs: Any) -> rollserve.EnvSpec:
        return rollserve.EnvSpec("sample_envs:SlowInPlaces", {"path": str(self._path), **kwargs})

    @contextlib.contextmanager
    def slow(self, pool: Pool, *workers: int) -> Iterator[None]:
        """Make workers of the pool slow within the block, on either backend."""
        identities = [pool.status().workers[worker].identity for worker in workers]
        names = [
            f"worker-{worker}" if identity.process_id == os.getpid() else str(identity.process_id)
            for worker, identity in zip(workers, identities, strict=True)
        ]
        self._path.write_text(" ".join(names))
        try:
            yield
        finally:
            self._path.write_text("")
