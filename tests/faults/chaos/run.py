"""A run of chaos: start everything, inject faults, let the server heal, stop it, and check all results."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.chaos.calls import KINDS
from faults.chaos.catalogue import ENVS, agent
from faults.chaos.checks import Verdict, check_story
from faults.chaos.environments import FOLDER
from faults.chaos.events import EventLog
from faults.chaos.fleet import Fleet
from faults.chaos.injection import Injector
from faults.chaos.references import running_references
from faults.chaos.schedule import DEFAULT_KINDS, schedule
from faults.chaos.service import HOSTILE, Cluster, Service, notes_of
from faults.chaos.settling import Growth, growth_until_settled
from faults.chaos.shares import Shares, answers_of, measure_shares
from faults.chaos.story import Story, read_story
from faults.chaos.tenant import Tenant
from faults.chaos.updates import Updates

import rollserve

__all__ = ["DEFAULT_ENVS", "Options", "Outcome", "run"]

DEFAULT_ENVS = (
    "cart",
    "short",
    "blocks",
    "slow",
    "dies",
    "raises",
    "hangs",
    "hosted",
    "hosted raises",
    "screens",
    "stacks",
)
_UPDATES = {
    "ok",
    "DEADLINE_EXCEEDED",
    "NO_AGENT",  # parameters were the first update that a new sampler got
    "SAMPLER_RUN",  # a call that had brought an agent could not go on in a new sampler
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
        calls: kinds of calls that clients make.
        num_workers: number of workers at the start.
        num_clients: number of clients at a time.
        pause_seconds: mean pause of a client between two calls.
        server_options: further options of the server.
        on_cluster: whether workers run on a Ray cluster, where they outlive the server.
        num_share_pairs: pairs of windows in which shares of the throughput are measured, on a machine that does nothing
            else; 0 for none.
        share_seconds: duration of such a window.
    """

    folder: Path
    seed: int = 0
    seconds: float = 600.0
    kinds: Sequence[str] = DEFAULT_KINDS
    envs: Sequence[str] = DEFAULT_ENVS
    calls: Sequence[str] = tuple(KINDS)
    num_workers: int = 2
    num_clients: int = 3
    pause_seconds: float = 0.1
    server_options: Sequence[str] = ()
    on_cluster: bool = False
    num_share_pairs: int = 6
    share_seconds: float = 8.0


@dataclass(frozen=True)
class Outcome:
    """Events of a run, and everything that is wrong.

    Attributes:
        story: what happened.
        verdict: comparison with references.
        growths: growth of processes.
        answers: how often each attack of the hostile tenant got each answer.
        shares: throughput beside the hostile tenant and without it, if it was measured.
        wrong: a sentence for each problem.
    """

    story: Story
    verdict: Verdict
    growths: Sequence[Growth]
    answers: Mapping[str, Counter[str]]
    shares: Shares | None
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
        fleet, growths, shares, wrong = _disturb(options, service, log)
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
    for path in service.logs:
        text = path.read_text(errors="replace")
        wrong += [f"{what!r} is in {path}" for what in ("Traceback", "was never retrieved") if what in text]
    if not verdict.num_compared_calls:
        wrong.append("nothing was compared")
    answers, improper = answers_of(sorted(options.folder.glob(f"{HOSTILE}.jsonl")))
    wrong += improper
    if shares is not None:
        wrong += shares.problems()
    return Outcome(story, verdict, growths, answers, shares, wrong)


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


def _disturb(options: Options, service: Service, log: EventLog) -> tuple[Fleet, list[Growth], Shares | None, list[str]]:
    """Run the server and its clients under faults; returns clients, growth of processes, shares, and problems."""
    with contextlib.ExitStack() as stack:
        service.start()
        stack.callback(service.stop)
        updates = Updates(service, log, options.envs)
        stack.callback(updates.close)
        updates.begin(0.0)
        _call_all(service)
        before = service.usages()
        config = {
            "seed": options.seed,
            "pause_seconds": options.pause_seconds,
            "in_full": True,
            "calls": list(options.calls),
        }
        fleet = Fleet(service, options.folder, log, options.num_clients, config)
        stack.callback(fleet.kill_all)
        tenant = Tenant(service, options.folder, HOSTILE, options.seed, with_hangs=True)
        stack.callback(tenant.end)
        injector = Injector(service, fleet, updates, log)
        stack.callback(injector.close)
        injector.run(schedule(options.seed, options.seconds, options.kinds), options.seconds)
        fleet.wait()
        injector.close()
        tenant.end()
        wrong = list(_problems_after_healing(service, options.num_workers))
        shares = None
        if options.num_share_pairs and not wrong:
            try:
                shares = measure_shares(
                    service,
                    options.folder,
                    seed=options.seed,
                    num_workers=options.num_workers,
                    num_pairs=options.num_share_pairs,
                    seconds=options.share_seconds,
                )
            except RuntimeError as error:  # the data that was delivered is compared all the same
                wrong.append(f"throughput beside the hostile tenant is not measured: {error}")
        return fleet, growth_until_settled(service.usages, before), shares, wrong


def _call_all(service: Service) -> None:
    """Make a call of each kind."""
    with service.connect(shared_memory=True) as sampler:
        status = sampler.status()
        sampler.obtain_samples(2000)
        sampler.obtain_samples(2000, compression="zstd", prefetch=True)
        sampler.obtain_exact_episodes(3)
        sampler.obtain_fragments(2 * status.workers[0].num_rows * status.num_workers)
        sampler.evaluate(8)


def _problems_after_healing(service: Service, num_workers: int) -> Iterator[str]:
    """Yield what is wrong with the sampler after the faults."""
    with service.connect() as sampler:
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
            _call_all(service)
        except rollserve.RollserveError as error:
            yield f"a call fails after the faults: {error}"
        in_use = [version.policy_version for version in sampler.agent_versions() if version.in_use]
        if in_use:
            yield f"agent versions are in use although no call runs: {in_use}"
