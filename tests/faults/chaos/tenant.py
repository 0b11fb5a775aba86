"""The hostile tenant: a client process that tries, until it is killed, to take more than its share of a server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio
from faults.chaos.attacks import ATTACKS, UNAVAILABLE, Attack
from faults.chaos.events import EventLog
from faults.chaos.processes import end_with_parent
from faults.chaos.service import HOSTILE, Service, python_path

import rollserve
from rollserve.agents import agent_to_proto
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2

__all__ = ["Tenant", "is_refusal", "main"]

_NUM_ENDLESS = 16
_NUM_UNSENT = 200
_NUM_IDLE = 300
_NUM_CHANNELS = 4
_NUM_STEPS = 1 << 50
_STRANGER = "127.0.0.2"  # another address of this machine, as far as the server can tell
_FIRST_BYTES = (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
_SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"]
_PAUSE_SECONDS = 0.02
_AGAIN_SECONDS = 0.3
_HANG_EVERY_SECONDS = 60.0
_TIMEOUT = 90.0  # longer than a reset may take in a probe
_LEASE_SECONDS = 30
_NICE = 19
_READY_SECONDS = 300.0  # on a busy machine, where it goes last


class Tenant:
    """The process of the tenant.

    Attributes:
        log: its log, with an event for each answer.
    """

    def __init__(self, service: Service, folder: Path, name: str, seed: int, *, with_hangs: bool) -> None:
        """Start the process.

        Args:
            service: server to attack.
            folder: folder for logs.
            name: name of the log.
            seed: seed of all random choices.
            with_hangs: whether to hang native code, too, which takes a core for a minute after the process has ended.
        """
        self.log = folder / f"{name}.jsonl"
        self._service = service
        EventLog(self.log).close()
        tokens = [service.token_file(each, HOSTILE).read_text() for each in (HOSTILE, f"{HOSTILE}-silent")]
        config = {"address": service.address, "seed": f"{seed} {name}", "log": str(self.log), "tokens": tokens}
        config["with_hangs"] = with_hangs
        with (folder / f"{name}.txt").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faults.chaos.tenant", json.dumps(config)],
                env={**os.environ, **python_path()},
                stdout=output,
                stderr=output,
            )

    def wait_until_ready(self) -> None:
        """Wait until the tenant attacks with all that it has.

        Raises:
            RuntimeError: it did not get ready.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while '"ready"' not in self.log.read_text():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the hostile tenant did not get ready: see {self.log}")
            time.sleep(0.1)

    def end(self) -> None:
        """End the process, and what the server still does for it."""
        self._process.kill()
        self._process.wait()
        with self._service.connect(sampler=HOSTILE) as sampler, contextlib.suppress(rollserve.RollserveError):
            sampler.delete_sampler()


def is_refusal(attack: str, answer: str) -> bool:
    """Whether an answer is proper for an attack."""
    if answer in UNAVAILABLE:
        return True
    known = next((each for each in ATTACKS if each.name == attack), None)
    return answer in rollserve.Reason.__members__ if known is None else answer in known.answers


class _Attacker:
    """Attacks of the tenant, which go on until the process is killed."""

    def __init__(self, address: str, tokens: Sequence[str], source: random.Random, log: EventLog) -> None:
        """Take two tokens: the second one's principal, which sends nothing, would else hold up the first one."""
        self._address = address
        self._authorization, self._silent = (("authorization", f"Bearer {token}") for token in tokens)
        self._source = source
        self._log = log
        self._is_ready = False
        own = [("grpc.use_local_subchannel_pool", 1)]
        self._channels, self._silent_channels = (
            [grpc.aio.insecure_channel(address, options=own) for _ in range(_NUM_CHANNELS)] for _ in range(2)
        )

    async def run(self, *, with_hangs: bool) -> None:
        """Attack."""
        tasks: list[Awaitable[None]] = [self._own_sampler(), self._idle_connections()]
        tasks += [self._again(self._endless_call, number) for number in range(_NUM_ENDLESS)]
        tasks += [self._again(self._unsent_request, number) for number in range(_NUM_UNSENT)]
        tasks += [self._requests(attack) for attack in ATTACKS if with_hangs or not attack.hangs]
        await asyncio.gather(*tasks)

    async def _own_sampler(self) -> None:
        """Create a sampler, again after each restart of the server, and sample from it endlessly."""
        env = env_spec_to_proto(rollserve.EnvSpec("CartPole-v1"))
        create = samplers_pb2.CreateSamplerRequest(sampler=HOSTILE, environment=env, worker_count=1, exist_ok=True)
        create.lease.FromSeconds(_LEASE_SECONDS)
        agent = pb.AgentUpdate(agent=agent_to_proto(rollserve.RandomAgent()))
        update = pb.UpdateAgentRequest(sampler=HOSTILE, all_workers=agent)
        options = pb.SamplingOptions(blackhole=True)
        endless = pb.ObtainSamplesRequest(sampler=HOSTILE, step_count=_NUM_STEPS, options=options)
        while True:
            for name, request in (("CreateSampler", create), ("UpdateAgent", update), ("ObtainSamples", endless)):
                with contextlib.suppress(grpc.RpcError):
                    if name == "ObtainSamples" and not self._is_ready:
                        self._is_ready = True
                        self._log.write("ready")
                    await self._answered(name, request.SerializeToString(), HOSTILE, None)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _again(self, attack: Callable[[int], Awaitable[None]], number: int) -> None:
        while True:
            await attack(number)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _endless_call(self, number: int) -> None:
        """Keep a call of 2^50 steps on the sampler of the others, in its own sequence or with a seed."""
        options = pb.SamplingOptions(blackhole=True)
        if number % 2:
            options.seed = number
        request = pb.ObtainSamplesRequest(step_count=_NUM_STEPS, options=options)
        await self._told("endless call", self._answered("ObtainSamples", request.SerializeToString(), "default", None))

    async def _unsent_request(self, number: int) -> None:
        """Open an RPC and send no request."""
        method = ("UpdateAgent", "UpdateEnv", "Evaluate", "GetSampler")[number % 4]
        channel = self._silent_channels[number % _NUM_CHANNELS]
        metadata = [self._silent, ("rollserve-sampler", HOSTILE)]

        async def call() -> None:
            opened = channel.stream_stream(f"/{_SERVICE.full_name}/{method}")(metadata=metadata)
            await opened.read()
            raise grpc.aio.AioRpcError(
                await opened.code(), await opened.initial_metadata(), await opened.trailing_metadata()
            )

        await self._told("unsent request", call())

    async def _idle_connections(self) -> None:
        """Hold connections on which nothing is sent, or only the beginning of HTTP/2."""
        host, _, port = self._address.rpartition(":")
        held: list[socket.socket] = []
        for number in itertools.count():
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(OSError):
                connected = socket.create_connection((host, int(port)), timeout=1, source_address=(_STRANGER, 0))
                connected.sendall(_FIRST_BYTES[number % 2])
                held.append(connected)
            if len(held) > _NUM_IDLE:
                held.pop(0).close()

    async def _requests(self, attack: Attack) -> None:
        source = random.Random(f"{self._source.random()} {attack.name}")
        while True:
            await asyncio.sleep(_HANG_EVERY_SECONDS * source.random() if attack.hangs else 0)
            name, data = attack.draw(source)
            answering = self._answered(name, data, attack.sampler, _TIMEOUT, has_token=attack.has_token)
            await self._told(attack.name, answering)
            await asyncio.sleep(_PAUSE_SECONDS * len(ATTACKS))

    async def _answered(
        self, name: str, data: bytes, sampler: str, seconds: float | None = _TIMEOUT, *, has_token: bool = True
    ) -> None:
        """Send a request, and wait for the end of the answer; raise the error of a refused one."""
        channel = self._source.choice(self._channels)
        is_stream = _SERVICE.methods_by_name[name].server_streaming
        method = channel.unary_stream if is_stream else channel.unary_unary
        metadata = self._metadata(sampler, has_token=has_token)
        call = method(f"/{_SERVICE.full_name}/{name}")(data, metadata=metadata, timeout=seconds)
        if is_stream:
            async for _ in call:
                pass
        else:
            await call

    def _metadata(self, sampler: str, *, has_token: bool = True) -> Sequence[tuple[str, str]]:
        named = ("rollserve-sampler", sampler)
        return [self._authorization, named] if has_token else [named]

    async def _told(self, attack: str, answering: Awaitable[None]) -> None:
        """Log the answer to an attack."""
        answer = "ok"
        try:
            await answering
        except grpc.aio.AioRpcError as error:
            reason = dict(error.trailing_metadata() or ()).get("rollserve-reason", "")
            answer = str(reason) or error.code().name
        self._log.write("answer", attack=attack, answer=answer)


def main(text: str) -> None:
    """Attack until the process is killed.

    The JSON text has the keys `address`, `seed`, `log`, `tokens` and `with_hangs`.
    """
    end_with_parent()
    os.nice(_NICE)  # the tenant stands for another machine, whose processor is no concern of the server's
    config = json.loads(text)
    source, log = random.Random(config["seed"]), EventLog(Path(config["log"]))

    async def attack() -> None:
        await _Attacker(config["address"], config["tokens"], source, log).run(with_hangs=config["with_hangs"])

    asyncio.run(attack())


if __name__ == "__main__":
    main(sys.argv[1])
