"""Several samplers on one server: created, listed, limited and deleted by clients, each apart from the others."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from ray_clusters import free_port
from support import equal, raises, server_environment

import rollserve
from rollserve import Quota
from rollserve.cli import main
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import samplers_pb2
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--vectorization", "rows", "--rows", "2")
LIMITS = ("--max-samplers", "3", "--max-workers", "6", "--max-sampler-workers", "3", "--max-sampler-rows", "8")
LIMITS += ("--max-sampler-lease-seconds", "100", "--max-sampler-calls", "2", "--max-sampler-bytes", "1000000")
LIMITS += ("--sampler-observation-bytes", str(1 << 22))
SPEC = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 50})


class Server:
    """A server that permits samplers, and the address of its metrics."""

    def __init__(self, local: LocalServer, metrics_address: str) -> None:
        self.local = local
        self.metrics_address = metrics_address

    def connect(self, sampler: str = "") -> rollserve.Sampler:
        return rollserve.connect(self.local.address, sampler=sampler)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    metrics = f"127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("samplers") / "server.log"
    options = (*LIGHT, *LIMITS, "--metrics-listen", metrics, "--shared-memory-bytes", str(96 << 20))
    with local_server(*options, "--allow-module", "sample_envs", log=log, environment=server_environment()) as local:
        yield Server(local, metrics)
    assert "Traceback" not in log.read_text()


@pytest.fixture
def server(running: Server) -> Server:
    running.local.reset()
    return running


def names(sampler: rollserve.Sampler) -> list[str]:
    return [each.sampler for each in sampler.list_samplers()]


def test_created_sampler_delivers_what_a_lone_server_does(server: Server) -> None:
    agent = rollserve.RandomAgent()
    with local_server(*LIGHT, "--seed", "5") as lone, rollserve.connect(lone.address) as sampler:
        sampler.update_agent(agent)
        expected = [sampler.obtain_samples(200), sampler.obtain_samples(100, seed=3)]
    with server.connect() as default, server.connect("a") as one, server.connect("b") as other:
        created = one.create_sampler("CartPole-v1", num_workers=2, seed=5)
        assert created.env_version == 1
        assert repr(created.observation_space) == repr(default.status().observation_space)
        other.create_sampler("CartPole-v1", num_workers=1, seed=5)
        for sampler in (one, other, default):
            sampler.update_agent(agent)
        results: dict[rollserve.Sampler, list[rollserve.EpisodeBatch]] = {}

        def sample(sampler: rollserve.Sampler) -> None:
            results[sampler] = [sampler.obtain_samples(200), sampler.obtain_samples(100, seed=3)]

        threads = [threading.Thread(target=sample, args=(sampler,)) for sampler in (one, other)]
        with default.stream_samples(10**8) as endless:  # beside them
            next(endless)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for sampler in (one, other):
            assert all(map(equal, results[sampler], expected))


def test_samplers_have_agents_environments_and_status_of_their_own(server: Server) -> None:
    with server.connect() as default, server.connect("a") as sampler:
        sampler.create_sampler(SPEC, lease_seconds=60, quota=Quota(num_workers=3, num_rows=6, steps_per_second=1e6))
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.PreconditionError, reason="NO_AGENT"):
            default.obtain_samples(10)
        status = sampler.status()
        assert (status.sampler, status.owner, status.lease_seconds) == ("a", "anonymous", 60)
        assert status.quota == Quota(3, 6, 1000000, 2, 1e6)
        assert status.envs == (SPEC,)
        assert default.status().lease_seconds is None
        assert default.status().owner == ""
        first, second = default.list_samplers()
        assert (first.sampler, first.num_workers, first.lease_left_seconds) == ("default", 2, None)
        assert (second.sampler, second.num_workers, second.policy_version) == ("a", 1, 1)
        assert second.env_ids == ("CartPole-v1",)
        assert 50 < (second.lease_left_seconds or 0) <= 60


def test_deleted_sampler_ends_its_calls_and_frees_its_place(server: Server) -> None:
    with server.connect() as default, server.connect("a") as sampler, server.connect("a") as deleter:
        sampler.create_sampler(SPEC)
        sampler.update_agent(rollserve.RandomAgent())
        default.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(10**8) as stream, default.stream_samples(3000, seed=1) as beside:
            next(stream)
            deleter.delete_sampler()
            with raises(rollserve.InvalidArgumentError, field="sampler", reason="SAMPLER_DELETED", quotes="'a'"):
                for _ in stream:
                    pass
            assert beside.join().num_steps >= 3000
        with raises(rollserve.InvalidArgumentError, field="sampler", reason="SAMPLER_DELETED"):
            sampler.status()
        assert names(default) == ["default"]
        sampler.create_sampler(SPEC)
        assert sampler.status().policy_version == 0


def test_deleted_sampler_ends_streams_of_its_records(server: Server) -> None:
    with server.connect("a") as sampler, server.connect("a") as deleter:
        sampler.create_sampler(SPEC)
        with sampler.stream_metrics() as records:
            assert len(next(records)) == 0
            deleter.delete_sampler()
            with raises(rollserve.InvalidArgumentError, field="sampler", reason="SAMPLER_DELETED", quotes="'a'"):
                for _ in records:
                    pass


def test_observations_that_take_too_much_memory_in_all_workers_are_refused(server: Server) -> None:
    def big(kib: int) -> rollserve.EnvSpec:
        return rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": kib << 10})

    def refused(field: str, num_bytes: int) -> contextlib.AbstractContextManager[object]:
        quotes = ("--sampler-observation-bytes", str(1 << 22), str(num_bytes))
        return raises(rollserve.LimitError, field=field, reason="ENVIRONMENTS_TOO_LARGE", quotes=quotes)

    with server.connect() as default, server.connect("a") as sampler:
        with refused("environment", 16 * 2 * (132 << 10)):
            sampler.create_sampler(big(132), num_workers=2)
        assert names(default) == ["default"]
        sampler.create_sampler(big(128), num_workers=2, quota=Quota(num_workers=3))
        with refused("all_workers.environment", 16 * 2 * (132 << 10)):
            sampler.update_env(big(132))
        with refused("worker_count", 16 * 3 * (128 << 10)):
            sampler.resize(3)
        status = sampler.status()
        assert (status.env_version, status.envs, status.num_workers) == (1, (big(128),), 2)


def test_default_sampler_cannot_be_deleted(server: Server) -> None:
    with server.connect() as sampler, raises(rollserve.InvalidArgumentError, field="sampler", reason="INVALID_VALUE"):
        sampler.delete_sampler()


@pytest.mark.parametrize("name", ["", "A", "a b", "ä", "a" * 64, "a/b", "../a", "a\n"])
def test_bad_names_are_refused(server: Server, name: str) -> None:
    with grpc.insecure_channel(server.local.address) as channel:
        request = samplers_pb2.CreateSamplerRequest(sampler=name, worker_count=1)
        request.environment.id = "CartPole-v1"
        with raises(grpc.RpcError, field="sampler", reason="INVALID_VALUE"):
            SamplerServiceStub(channel).CreateSampler(request)


def test_creation_of_a_present_name_is_refused_unless_equal(server: Server) -> None:
    with server.connect("a") as sampler, server.connect("default") as default:
        sampler.create_sampler(SPEC, seed=1)
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.InvalidArgumentError, field="sampler", reason="SAMPLER_EXISTS") as caught:
            sampler.create_sampler(SPEC, seed=1)
        assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
        with raises(rollserve.InvalidArgumentError, field="sampler", reason="SAMPLER_EXISTS"):
            sampler.create_sampler(SPEC, seed=2, exist_ok=True)
        with raises(rollserve.InvalidArgumentError, field="sampler", reason="SAMPLER_EXISTS"):
            default.create_sampler(SPEC)
        assert sampler.create_sampler(SPEC, seed=1, exist_ok=True).env_version == 1
        assert sampler.status().policy_version == 1


def test_equal_creations_at_the_same_time_make_one_sampler(server: Server) -> None:
    def create() -> None:
        with server.connect("a") as sampler:
            sampler.create_sampler(SPEC, exist_ok=True)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with server.connect("a") as sampler:
        assert names(sampler) == ["default", "a"]
        assert sampler.status().num_workers == 1


def test_failed_creation_leaves_nothing(server: Server) -> None:
    with server.connect("new") as sampler:
        with raises(rollserve.InvalidArgumentError, field="environment.id", reason="ENV_NOT_FOUND"):
            sampler.create_sampler("Nothing-v1")
        with raises(rollserve.InvalidArgumentError, field="environment.id", reason="MODULE_NOT_ALLOWED"):
            sampler.create_sampler("os:path")
        with raises(rollserve.InvalidArgumentError, reason="SAMPLER_NOT_FOUND"):
            sampler.status()
        sampler.create_sampler(SPEC, num_workers=3)


def test_number_of_samplers_is_bounded(server: Server) -> None:
    for name in ("a", "b"):
        with server.connect(name) as sampler:
            sampler.create_sampler(SPEC)
    with server.connect("c") as sampler, raises(rollserve.LimitError, reason="TOO_MANY_SAMPLERS", quotes="3 samplers"):
        sampler.create_sampler(SPEC)


def test_workers_of_all_samplers_are_bounded(server: Server) -> None:
    with server.connect() as default, server.connect("a") as one, server.connect("b") as other:
        one.create_sampler(SPEC, num_workers=2, quota=Quota(num_workers=3))
        with raises(rollserve.LimitError, field="worker_count", reason="TOO_MANY_WORKERS", quotes="at most 2"):
            other.create_sampler(SPEC, num_workers=3)
        other.create_sampler(SPEC, num_workers=2)
        with raises(rollserve.LimitError, field="worker_count", reason="TOO_MANY_WORKERS", quotes="at most 2"):
            default.resize(3)
        with raises(rollserve.LimitError, field="worker_count", reason="TOO_MANY_WORKERS"):
            one.resize(3)
        other.delete_sampler()
        assert one.resize(3) == 2
        with raises(rollserve.LimitError, field="worker_count", reason="QUOTA_EXCEEDED", quotes="at most 3"):
            one.resize(4)


def test_restored_samplers_keep_to_the_bounds_of_workers(server: Server) -> None:
    """A saved sampler gets no more workers than a new one or a resized one would."""
    with server.connect() as default, server.connect("a") as one, server.connect("b") as other:
        default.resize(4)
        four = default.save()
        default.resize(3)
        three = default.save()
        default.resize(2)
        one.create_sampler(SPEC, num_workers=2, quota=Quota(num_workers=2))
        with raises(rollserve.LimitError, field="worker_count", reason="QUOTA_EXCEEDED", quotes="at most 2"):
            one.restore(three)
        other.create_sampler(SPEC, num_workers=1, quota=Quota(num_workers=3))
        version = default.update_agent(rollserve.RandomAgent())
        with raises(rollserve.LimitError, field="worker_count", reason="TOO_MANY_WORKERS", quotes="at most 3"):
            default.restore(four)
        assert (default.status().num_workers, default.status().policy_version) == (2, version)
        default.restore(three)
        with raises(rollserve.LimitError, field="worker_count", reason="TOO_MANY_WORKERS", quotes="at most 1"):
            other.restore(three)
        assert [each.num_workers for each in default.list_samplers()] == [3, 2, 1]
        server.local.reset()
        assert default.status().num_workers == 2


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        (Quota(num_workers=4), "quota.worker_count"),
        (Quota(num_rows=9), "quota.row_count"),
        (Quota(result_bytes=1000001), "quota.result_bytes"),
        (Quota(num_calls=3), "quota.call_count"),
    ],
)
def test_quotas_above_the_operators_are_refused(server: Server, quota: Quota, field: str) -> None:
    with server.connect("a") as sampler, raises(rollserve.LimitError, field=field, reason="QUOTA_EXCEEDED"):
        sampler.create_sampler(SPEC, quota=quota)


@pytest.mark.parametrize("seconds", [0, 101])
def test_leases_above_the_operators_are_refused(server: Server, seconds: float) -> None:
    with server.connect("a") as sampler, raises(rollserve.LimitError, field="lease", reason="QUOTA_EXCEEDED"):
        sampler.create_sampler(SPEC, lease_seconds=seconds)


def test_quota_of_rows_holds_for_updates_evaluations_and_resizes(server: Server) -> None:
    many = rollserve.EnvSpec("CartPole-v1", num_rows=4)
    with server.connect("a") as sampler:
        with raises(rollserve.LimitError, field="environment", reason="QUOTA_EXCEEDED", quotes="6 rows"):
            sampler.create_sampler(many, num_workers=2, quota=Quota(num_rows=6))
        sampler.create_sampler("CartPole-v1", num_workers=2, quota=Quota(num_workers=3, num_rows=6))
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.LimitError, reason="QUOTA_EXCEEDED"):
            sampler.update_env(many)
        with raises(rollserve.LimitError, reason="QUOTA_EXCEEDED"):
            sampler.evaluate(1, env=many)
        sampler.update_env(rollserve.EnvSpec("CartPole-v1", num_rows=3))
        with raises(rollserve.LimitError, field="worker_count", reason="QUOTA_EXCEEDED"):
            sampler.resize(3)
        assert sampler.status().env_version == 2


def test_quota_of_calls_makes_further_ones_queue(server: Server) -> None:
    with server.connect("a") as sampler:
        sampler.create_sampler(SPEC, quota=Quota(num_calls=1))
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(10**8) as stream:
            next(stream)
            with raises(rollserve.DeadlineError):
                sampler.obtain_samples(10, deadline=1.0)
        assert sampler.obtain_samples(10).num_steps >= 10


def test_quota_of_bytes_bounds_what_is_on_its_way(server: Server) -> None:
    with server.connect("a") as sampler, server.connect("b") as other:
        for each, quota in ((sampler, Quota(result_bytes=20_000)), (other, Quota())):
            each.create_sampler(SPEC, seed=1, quota=quota)
            each.update_agent(rollserve.RandomAgent())
        assert equal(sampler.obtain_samples(5000), other.obtain_samples(5000))


def test_quota_of_steps_slows_calls_down_and_changes_no_result(server: Server) -> None:
    with server.connect("a") as sampler, server.connect("b") as other:
        sampler.create_sampler(SPEC, num_workers=2, seed=1, quota=Quota(steps_per_second=1000))
        other.create_sampler(SPEC, num_workers=2, seed=1)
        for each in (sampler, other):
            each.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(100)
        other.obtain_samples(100)
        before, began = sampler.status().counters.num_simulated_steps, time.monotonic()
        slow = sampler.obtain_samples(3000)
        seconds = time.monotonic() - began
        num_steps = sampler.status().counters.num_simulated_steps - before
        assert num_steps / seconds < 1200
        assert equal(slow, other.obtain_samples(3000))


def test_lease_expires_without_calls_and_is_kept_by_them(server: Server) -> None:
    with server.connect() as default, server.connect("a") as sampler:
        sampler.create_sampler(SPEC, lease_seconds=1)
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(10**8) as stream:  # a client that reads nothing has an open call, too
            next(stream)
            time.sleep(2)
            assert names(default) == ["default", "a"]
        for _ in range(3):
            time.sleep(0.5)
            sampler.status()
        deadline = time.monotonic() + 10
        while names(default) != ["default"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with raises(rollserve.InvalidArgumentError, field="sampler", reason="LEASE_EXPIRED", quotes="1 s"):
            sampler.obtain_samples(10)


def test_metrics_have_a_label_for_the_sampler_while_it_exists(server: Server) -> None:
    def metrics() -> str:
        with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as response:
            return str(response.read().decode())

    with server.connect("a") as sampler:
        sampler.create_sampler(SPEC)
        sampler.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(100)
        text = metrics()
        assert 'rollserve_workers{health="healthy",sampler="a"} 1.0' in text
        assert 'rollserve_call_steps_total{fate="delivered",rpc="ObtainSamples",sampler="a"}' in text
        sampler.delete_sampler()
        assert 'sampler="a"' not in metrics()


def test_shared_memory_serves_each_sampler(server: Server) -> None:
    address = server.local.address
    with rollserve.connect(address, sampler="a", shared_memory=True) as sampler:
        sampler.create_sampler("sample_envs:Big", kwargs={"observation_bytes": 100_000, "length": 30})
        sampler.update_agent(rollserve.RandomAgent())
        account = sampler.obtain_samples(100).account
        assert account.shared_message_bytes > 0
        sampler.delete_sampler()


async def test_async_client_creates_lists_and_deletes(server: Server) -> None:
    async with rollserve.aconnect(server.local.address, sampler="a") as sampler:
        assert (await sampler.create_sampler(SPEC)).env_version == 1
        assert [each.sampler for each in await sampler.list_samplers()] == ["default", "a"]
        await sampler.delete_sampler()
        assert [each.sampler for each in await sampler.list_samplers()] == ["default"]


def test_command_line_creates_lists_and_deletes(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    address = server.local.address
    named = (address, "--sampler", "a")
    assert main(["create", *named, "--env", "CartPole-v1", "--workers", "2", "--lease-seconds", "60"]) == 0
    assert main(["samplers", address]) == 0
    assert "a        anonymous  2        0       60 s        CartPole-v1" in capsys.readouterr().out.splitlines()
    assert main(["status", *named]) == 0
    assert "owner anonymous, lease 60 s, at most 2 workers" in capsys.readouterr().out
    assert main(["create", *named, "--env", "CartPole-v1"]) == 1
    assert "SAMPLER_EXISTS" in capsys.readouterr().err
    assert main(["delete", *named]) == 0
    assert main(["status", *named]) == 1
    assert main(["create", *named, "--env", "classic/rps-v2", "--multi-agent", "aec"]) == 0
    assert "observations Dict(player_0: " in capsys.readouterr().out
    assert main(["delete", *named]) == 0


def test_clients_create_no_samplers_unless_the_operator_permits_it(thread_server: LocalServer) -> None:
    with (
        rollserve.connect(thread_server.address, sampler="a") as sampler,
        raises(rollserve.LimitError, field="sampler", reason="TOO_MANY_SAMPLERS", quotes="--max-samplers"),
    ):
        sampler.create_sampler(SPEC)
