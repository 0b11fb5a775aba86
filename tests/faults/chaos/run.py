"""A run of chaos: start everything, inject faults, let the server heal, stop it, and check all results."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.chaos.catalogue import ENVS, agent
from faults.chaos.checks import Verdict, check_story
from faults.chaos.environments import FOLDER
from faults.chaos.events import EventLog
from faults.chaos.fleet import Fleet
from faults.chaos.injection import Injector
from faults.chaos.references import running_references
from faults.chaos.schedule import DEFAULT_KINDS, schedule
from faults.chaos.service import Cluster, Service, notes_of
from faults.chaos.settling import Growth, growth_until_settled
from faults.chaos.story import Story, read_story
from faults.chaos.updates import Updates

import rollserve

__all__ = ["DEFAULT_ENVS", "Options", "Outcome", "run"]

DEFAULT_ENVS = ("cart", "short", "blocks", "slow", "dies", "raises", "hangs", "screens", "stacks")
_UPDATES = {
    "ok",
    "DEADLINE_EXCEEDED",
    "NO_AGENT",  # parameters were the first update that a new sampler got
    "SERVER_STOPPING",
    "UNAVAILABLE",
    "WORKER_HUNG",
    "WORKER_LOST",
    "WORKER_LOST_AGAIN",
}
"""Outcomes of updates that faults explain."""
_HEALING_SECONDS = 60.0


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Attributes:
        folder: folder for logs.
        seed: seed of all random choices.
        seconds: duration of the faults.
        kinds: kinds of faults.
        envs: names of environments in the catalogue.
        num_workers: number of workers at the start.
        num_clients: number of clients at a time.
        pause_seconds: mean pause of a client between two calls.
        server_options: further options of the server.
        on_cluster: whether workers run on a Ray cluster, where they outlive the server.
    """

    folder: Path
    seed: int = 0
    seconds: float = 600.0
    kinds: Sequence[str] = DEFAULT_KINDS
    envs: Sequence[str] = DEFAULT_ENVS
    num_workers: int = 2
    num_clients: int = 3
    pause_seconds: float = 0.1
    server_options: Sequence[str] = ()
    on_cluster: bool = False


@dataclass(frozen=True)
class Outcome:
    """Events of a run, and everything that is wrong."""

    story: Story
    verdict: Verdict
    growths: Sequence[Growth]
    wrong: Sequence[str]


def run(options: Options) -> Outcome:
    """Run chaos, and check its results.

    Raises:
        RuntimeError: the server does not start.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        log = EventLog(options.folder / "events.jsonl")
        stack.callback(log.close)
        log.write("run", seed=options.seed, seconds=options.seconds, kinds=list(options.kinds), envs=list(options.envs))
        service = Service(
            options.folder,
            log,
            seed=options.seed,
            num_workers=options.num_workers,
            options=options.server_options,
            cluster=stack.enter_context(_cluster(options.folder)) if options.on_cluster else None,
        )
        fleet, growths, wrong = _disturb(options, service, log)
    story = read_story(options.folder / "events.jsonl", fleet.logs)
    with running_references(options.folder) as references:
        verdict = check_story(story, references)
    service.check_left_behind()
    wrong += [*service.problems, *fleet.problems, *verdict.wrong]
    wrong += [problem for growth in growths for problem in growth.problems()]
    wrong += [
        f"update of {event['kind']}: {event['outcome']}: {event.get('text')}"
        for event in story.main
        if event["event"] == "updated" and event["outcome"] not in _UPDATES
    ]
    wrong += [f"a traceback is in {path}" for path in service.logs if "Traceback" in path.read_text(errors="replace")]
    if not verdict.num_compared_calls:
        wrong.append("nothing was compared")
    return Outcome(story, verdict, growths, wrong)


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Cluster]:
    """Run a Ray cluster during the block, whose environments note their faults."""
    from ray_clusters import ray_cluster

    os.environ[FOLDER] = str(notes_of(folder))
    try:
        with ray_cluster() as cluster:
            yield cluster
    finally:
        del os.environ[FOLDER]


def _disturb(options: Options, service: Service, log: EventLog) -> tuple[Fleet, list[Growth], list[str]]:
    """Run the server and its clients under faults; returns the clients, the growth of processes, and problems."""
    with contextlib.ExitStack() as stack:
        service.start()
        stack.callback(service.stop)
        updates = Updates(service.address, log, options.envs)
        stack.callback(updates.close)
        updates.begin(0.0)
        _call_all(service.address)
        before = service.usages()
        config = {
            "address": service.address,
            "seed": options.seed,
            "pause_seconds": options.pause_seconds,
            "in_full": True,
        }
        fleet = Fleet(options.folder, log, options.num_clients, config)
        stack.callback(fleet.kill_all)
        injector = Injector(service, fleet, updates, log)
        stack.callback(injector.close)
        injector.run(schedule(options.seed, options.seconds, options.kinds), options.seconds)
        fleet.wait()
        injector.close()
        wrong = list(_problems_after_healing(service.address, options.num_workers))
        return fleet, growth_until_settled(service.usages, before), wrong


def _call_all(address: str) -> None:
    """Make a call of each kind."""
    with rollserve.connect(address, shared_memory=True) as sampler:
        status = sampler.status()
        sampler.obtain_samples(2000)
        sampler.obtain_samples(2000, compression="zstd", prefetch=True)
        sampler.obtain_exact_episodes(3)
        sampler.obtain_fragments(2 * status.workers[0].num_rows * status.num_workers)
        sampler.evaluate(8)


def _problems_after_healing(address: str, num_workers: int) -> Iterator[str]:
    """Yield what is wrong with the sampler after the faults."""
    with rollserve.connect(address) as sampler:
        deadline = time.monotonic() + _HEALING_SECONDS
        while not all(worker.healthy for worker in sampler.status().workers):
            if time.monotonic() > deadline:
                yield f"not all workers are healthy after {_HEALING_SECONDS:g} s"
                return
            time.sleep(0.5)
        try:
            sampler.resize(num_workers)
            sampler.update_env(ENVS["cart"].spec)
            sampler.update_agent(agent("mlp 1"))
            _call_all(address)
        except rollserve.RollserveError as error:
            yield f"a call fails after the faults: {error}"
        in_use = [version.policy_version for version in sampler.agent_versions() if version.in_use]
        if in_use:
            yield f"agent versions are in use although no call runs: {in_use}"
