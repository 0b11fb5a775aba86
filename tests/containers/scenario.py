"""The steps of a run: disturbances of the containers, and checks of what follows."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import socket
import ssl
import tarfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import rollserve
from containers.engine import ROOT, CommandError, Engine
from containers.images import BASE, prepare_base, prepare_grafana, prepare_prometheus, prepare_redis
from containers.load import Load, digest, new_agent, references

__all__ = ["Scenario"]

ADDRESS = "127.0.0.1:50051"
ADDRESSES = f"{ADDRESS},127.0.0.1:50052"
"""Of both gateways."""
MAX_BYTES = 1_600_000_000
MAX_CODE_BYTES = 20_000_000
MAX_HEALTHY_SECONDS = 10.0
_IMAGES = tuple(f"rollserve-{target}:{rollserve.__version__}" for target in ("server", "worker", "trainer"))
_OTHER_VERSION = "0.0.1"
_STREAM_STEPS = 400_000
_SAVE_SECONDS = 15.0
"""A time in which the sampler is saved for sure."""


class Scenario:
    """The steps of a run.

    Attributes:
        steps: the steps, by their names, in their order. Each returns what it has seen, and raises if that is wrong.
    """

    def __init__(self, engine: Engine, folder: Path, num_upgrades: int) -> None:
        """Prepare the steps.

        Args:
            engine: the container engine.
            folder: folder for logs and pictures.
            num_upgrades: number of upgrades and downgrades.
        """
        self._engine = engine
        self._folder = folder
        self._files: dict[str, Path] = {}
        self._expected: list[str] = []
        self._has_grafana = False
        self._gateways = ["standby", "gateway"]  # the one that serves is the last
        self.steps: dict[str, Callable[[], str]] = {
            "base image": lambda: prepare_base(engine),
            "build": self.build,
            "images": self.check_images,
            "one container until healthy": self.start_alone,
            "compose up until healthy": self.start,
            "limits of the containers": self.check_confinement,
            "clients without certificate or token": self.refuse_strangers,
            "undisturbed calls": self.sample_undisturbed,
            "trainer learns CartPole": self.train,
            "dataset and video": self.record,
            "nodes 2 to 4, calls run": lambda: self.scale(4),
            "nodes 4 to 2, calls run": lambda: self.scale(2),
            "worker's container killed": self.kill_worker,
            "gateway killed": self.kill_gateway,
            "gateway's process stopped": self.stop_gateway,
            "gateway restarted": self.restart_gateway,
            "worker cut off, and back": self.cut_off_worker,
            "certificate renewed": self.renew_certificate,
            "token replaced": self.replace_token,
            **self._upgrades(num_upgrades),
            "head killed": self.kill_head,
            "metrics and alerts": self.check_metrics,
            "picture": self.take_picture,
            "head killed, with Redis": self.kill_head_with_redis,
            "secrets in logs": self.check_logs,
            "backup restored": self.restore_backup,
            "down": self.stop,
        }

    # Images

    def build(self) -> str:
        """Build the three images."""
        self._engine.environment |= {
            "ROLLSERVE_COMMIT": self._engine.run("git", "rev-parse", "HEAD").strip(),
            "ROLLSERVE_EXTRAS": "atari,data,mujoco,video",
            "ROLLSERVE_DATA_DIR": "/data",
        }
        self._engine.compose("--profile", "example", "build", timeout=1200.0)
        sizes = {name: self._engine.inspect(name)["Size"] for name in (BASE, *_IMAGES)}
        (self._folder / "sizes.json").write_text(json.dumps(sizes))
        return ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items())

    def check_images(self) -> str:
        """Sizes, users, labels, and no compiler."""
        engine = self._engine
        for name in _IMAGES:
            described = engine.inspect(name)
            assert described["Size"] < MAX_BYTES, f"{name}: {described['Size']} bytes"
            assert described["Config"]["User"] == "10001", name
            labels = described["Config"]["Labels"]
            assert labels["org.opencontainers.image.version"] == rollserve.__version__, labels
            assert labels["org.opencontainers.image.revision"] == engine.environment["ROLLSERVE_COMMIT"], labels
            search = "for tool in cc gcc c++ clang ld as make; do command -v $tool; done; exit 0"
            found = engine.docker("run", "--rm", "--entrypoint", "sh", name, "-c", search).split()
            assert not found, f"{name}: {found}"
            layers = engine.docker(
                "history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", name
            ).splitlines()
            code, requirements = (int(each.split()[0]) for each in layers if "COPY /layer /" in each)
            assert code < MAX_CODE_BYTES < requirements, f"{name}: layers of {code} and {requirements} bytes"
        return (
            f"below {MAX_BYTES / 1e9:.1f} GB, user 10001, no compiler, labels of version and commit, "
            f"code in a layer below {MAX_CODE_BYTES / 1e6:.0f} MB"
        )

    def start_alone(self) -> str:
        """Start the server's image with a Ray of its own, as confined as can be."""
        options = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--init"]
        options += [
            "--tmpfs",
            "/tmp:size=512m,mode=1777",
            "--shm-size",
            "512m",
            "--memory",
            "4g",
            "--pids-limit",
            "2048",
        ]
        for name, value in (("ENV", "CartPole-v1"), ("INSECURE", "true"), ("OBJECT_STORE_BYTES", "268435456")):
            options += ["--env", f"ROLLSERVE_{name}={value}"]
        began = time.monotonic()
        container = self._engine.docker("run", "--detach", *options, _IMAGES[0], "--workers", "2").strip()
        try:
            self._wait_until_healthy(container)
            seconds = time.monotonic() - began
            address = self._engine.inspect(container)["NetworkSettings"]["IPAddress"]
            with rollserve.connect(f"{address}:50051") as sampler:
                assert _num_healthy(sampler.status()) == 2
        except BaseException:
            (self._folder / "alone.log").write_text(self._engine.docker("logs", container))
            raise
        finally:
            self._engine.docker("rm", "--force", "--volumes", container)
        seen = f"{seconds:.1f} s, {_busy()}"
        assert seconds < MAX_HEALTHY_SECONDS, seen
        return seen

    # The project

    def start(self) -> str:
        """Bring the project up, with monitoring."""
        engine = self._engine
        source = prepare_prometheus(engine)
        self._has_grafana = prepare_grafana(engine)
        began = time.monotonic()
        engine.compose("up", "--detach", "gateway", timeout=300.0)
        self._wait_until_healthy(engine.containers("gateway")[0])
        seconds = time.monotonic() - began
        monitoring = ["prometheus", *(["grafana"] if self._has_grafana else [])]
        engine.compose("--profile", "monitoring", "up", "--detach", "--no-recreate", *monitoring)
        self._fetch_client_files()
        for argument, name in (("ca", "ca"), ("cert", "client"), ("key", "client-key")):
            self._files[argument] = self._folder / "client" / f"{name}.pem"
        self._files["token_file"] = self._folder / "client" / "token"
        with self._connect() as sampler:
            assert _num_healthy(sampler.status()) == 2
        return f"{seconds:.1f} s, {_busy()}; Prometheus: {source}"

    def check_confinement(self) -> str:
        """Check limits, privileges and ports of all containers."""
        engine, ports = self._engine, []
        containers = [engine.inspect(name) for name in engine.containers()]
        for each in containers:
            name, host = each["Name"], each["HostConfig"]
            assert min(host["Memory"], host["PidsLimit"], host["NanoCpus"]) > 0, f"{name}: no limits"
            assert host["ReadonlyRootfs"], f"{name}: not read-only"
            assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False), name
            assert "no-new-privileges:true" in host["SecurityOpt"], name
            assert each["Config"]["User"] not in ("", "0", "root"), f"{name}: user {each['Config']['User']}"
            for port, places in each["NetworkSettings"]["Ports"].items():
                ports += [(port, place["HostIp"], place["HostPort"]) for place in places or ()]
        assert ports == [("50051/tcp", "127.0.0.1", "50051")], ports
        return f"{len(containers)} containers, one published port"

    def refuse_strangers(self) -> str:
        """Check that plaintext, and TLS without a client's certificate or token, get nothing."""
        without_token = {name: path for name, path in self._files.items() if name != "token_file"}
        for files in ({}, {"ca": self._files["ca"]}, without_token):
            try:
                with rollserve.connect(ADDRESS, timeout=5, **files) as sampler:
                    sampler.status()
            except rollserve.RollserveError:
                continue
            raise AssertionError(f"a client with {list(files) or 'nothing'} was served")
        # Ray asks for the cluster's token: a node without it does not get in.
        head = self._engine.containers("head")[0]
        query = "import ray; ray.init(address='head:6379', logging_level='ERROR')"
        environment = ["--env", "RAY_AUTH_TOKEN_PATH=/dev/null", "--env", "RAY_AUTH_TOKEN=wrong"]
        with contextlib.suppress(CommandError):
            self._engine.docker("exec", *environment, head, "python", "-c", query)
            raise AssertionError("Ray let a program without the token in")
        return "plaintext, TLS without certificate or without token, Ray without token: refused"

    def sample_undisturbed(self) -> str:
        """Set the agent, and record what calls return."""
        with self._connect() as sampler:
            sampler.update_agent(new_agent(sampler))
            self._expected = references(sampler)
            assert references(sampler) == self._expected
        return f"{len(self._expected)} seeds, each the same twice"

    def train(self) -> str:
        """Run the example's trainer to its end."""
        printed = self._engine.compose("--profile", "example", "run", "--rm", "-T", "trainer", timeout=600.0)
        with self._connect() as sampler:  # as it was before, for the calls of the other steps
            sampler.update_agent(new_agent(sampler))
        [result] = [line for line in printed.splitlines() if line.startswith("demo: ")]
        return result.removeprefix("demo: ")

    def record(self) -> str:
        """Record a dataset into the volume, read it, and render one of its episodes."""
        with self._connect() as sampler:
            recording = sampler.record("test/cartpole-v0", num_episodes=100, seed=7)
            with sampler.read("test/cartpole-v0") as stream:
                num_steps = sum(batch.num_steps for batch in stream)
            video = sampler.render(seed=7, index=0)
        assert num_steps == recording.num_steps, f"{num_steps} steps, of {recording.num_steps}"
        files = self._engine.compose("exec", "-T", "gateway", "ls", "/data/test/cartpole-v0/data")
        assert "main_data.hdf5" in files, files
        return f"{recording.num_episodes} episodes, {num_steps} steps; {len(video.data)} bytes of MP4"

    # Disturbances

    def scale(self, num_nodes: int) -> str:
        """Change the number of nodes, and of workers, while calls run."""
        with self._load() as load, self._connect() as sampler:
            began = time.monotonic()
            if num_nodes < 4:
                sampler.resize(num_nodes)
            scaling = ["--scale", f"worker={num_nodes}"]
            self._engine.compose("up", "--detach", "--no-recreate", *scaling, "worker")
            sampler.resize(num_nodes)
            self._wait_for_workers(sampler, num_nodes)
            seconds = time.monotonic() - began
            load.wait_for_calls(4)
        assert len(self._engine.containers("worker")) == num_nodes
        return f"{seconds:.1f} s until {num_nodes} workers are healthy; {_said(load)}"

    def kill_worker(self) -> str:
        """Kill all processes of a worker's container at once."""
        with self._load() as load, self._connect() as sampler:
            seconds = self._kill("worker", lambda: self._wait_for_workers(sampler, 2, after_loss=True))
            load.wait_for_calls(4)
        return f"{seconds:.1f} s until 2 workers are healthy; {_said(load)}"

    def kill_gateway(self) -> str:
        """Kill the gateway: the next one takes the sampler over, and streams go on."""
        with self._connect() as sampler:
            before = sampler.status()
            stream = sampler.stream_samples(_STREAM_STEPS, seed=5)
            parts = [next(stream)]
            seconds = self._kill("gateway", lambda: self._wait_until_served(sampler))
            parts += stream
            after = sampler.status()
            assert digest(*parts) == digest(sampler.obtain_samples(_STREAM_STEPS, seed=5))
        _check_is_same(before, after)
        return f"{seconds:.1f} s until it serves; same sampler, stream resumed with the same bytes"

    def stop_gateway(self) -> str:
        """Stop the gateway's process: its watchdog kills it, and the next one takes the sampler over."""
        with self._connect() as sampler:
            before = sampler.status()
            seconds = self._kill("gateway", lambda: self._wait_until_served(sampler), _stop_server)
            _check_is_same(before, sampler.status())
        return f"{seconds:.1f} s until it serves; same sampler"

    def restart_gateway(self) -> str:
        """Restart the gateway in order, as after a change of its settings."""
        with self._connect() as sampler:
            before = sampler.status()
            began = time.monotonic()
            self._engine.docker("restart", "--time", "30", self._engine.containers("gateway")[0])
            self._wait_until_served(sampler)
            seconds = time.monotonic() - began
            _check_is_same(before, sampler.status())
        with self._load() as load:
            load.wait_for_calls(4)
        return f"{seconds:.1f} s until it serves; same sampler"

    def cut_off_worker(self) -> str:
        """Disconnect a worker's container from the network, and connect it again."""
        container = self._engine.containers("worker")[0]
        network = self._engine.network("cluster")
        with self._load() as load, self._connect() as sampler:
            began = time.monotonic()
            self._engine.docker("network", "disconnect", network, container)
            _wait(lambda: _num_healthy(sampler.status()) < 2, "the loss is noticed")
            noticed = time.monotonic() - began
            load.wait_for_calls(2)
            self._engine.docker("network", "connect", network, container)
            began = time.monotonic()
            self._wait_for_workers(sampler, 2)
            back = time.monotonic() - began
            load.wait_for_calls(4)
        return f"noticed after {noticed:.1f} s; healthy {back:.1f} s after it was back; {_said(load)}"

    def renew_certificate(self) -> str:
        """Renew the certificates while a stream runs: it goes on, and new connections get the new one."""
        before = self._presented()
        with self._connect(max_message_bytes=1 << 18) as sampler:
            stream = sampler.stream_samples(_STREAM_STEPS, seed=6)
            parts = [next(stream)]
            self._engine.compose("run", "--rm", "-T", "secrets", "renew")
            _wait(lambda: self._presented() != before, "a new certificate is shown")
            with self._connect() as other:
                expected = digest(other.obtain_samples(_STREAM_STEPS, seed=6))
            parts += stream
            assert digest(*parts) == expected
        return "a running stream went on; new connections see the new certificate"

    def replace_token(self) -> str:
        """Replace the client's token while calls run, and revoke the old one."""
        engine, stranger = self._engine, self._folder / "old-token"
        stranger.write_text(self._files["token_file"].read_text())
        with self._load() as load:
            secrets = ("run", "--rm", "-T", "secrets")
            [old] = engine.compose(*secrets, "token", "list").splitlines()
            engine.compose(*secrets, "renew-token")
            load.wait_for_calls(2)  # with the old one still
            self._fetch_client_files()
            engine.compose(*secrets, "token", "revoke", old.split()[0])
            load.wait_for_calls(4)
        try:
            with rollserve.connect(ADDRESS, timeout=5, **{**self._files, "token_file": stranger}) as sampler:
                sampler.status()
        except rollserve.RollserveError:
            return f"the old one is refused; {_said(load)}"
        raise AssertionError("the old token was accepted")

    def upgrade(self, version: str, *, workers_first: bool) -> str:
        """Replace gateways and nodes by those of another version, one after the other, while calls run.

        Args:
            version: the version.
            workers_first: whether nodes are replaced before gateways.
        """
        engine = self._engine
        if version != rollserve.__version__:
            self._build_other_version()
        engine.environment["ROLLSERVE_VERSION"] = version
        up = ("--profile", "standby", "up", "--detach", "--no-deps")
        steps = [lambda: self._replace_gateways(up), lambda: self._replace_nodes(up)]
        with self._load(ADDRESSES) as load, self._connect(ADDRESSES) as sampler:
            before = sampler.status()
            for step in reversed(steps) if workers_first else steps:
                step()
            self._wait_for_workers(sampler, 2)
            after = sampler.status()
            assert after.server_version == version, f"the server has version {after.server_version}"
            _check_is_same(before, after)
            load.wait_for_calls(4)
        if version == rollserve.__version__:  # the other steps know one gateway
            for command in (["stop"], ["rm", "--force"]):
                engine.compose("--profile", "standby", *command, "standby")
        return f"version {version}, same sampler; {_said(load)}"

    def _upgrades(self, number: int) -> dict[str, Callable[[], str]]:
        steps: dict[str, Callable[[], str]] = {}
        for position in range(number):
            version = rollserve.__version__ if position % 2 else _OTHER_VERSION
            workers_first = position % 4 in (1, 2)
            name = f"{'downgrade' if position % 2 == 0 else 'upgrade'} {position + 1}, "
            name += "workers first" if workers_first else "gateway first"
            steps[name] = functools.partial(self.upgrade, version, workers_first=workers_first)
        return steps

    def _build_other_version(self) -> None:
        """Make images of another version: the same code, which says otherwise."""
        for name in _IMAGES[:2]:
            other = f"{name.rpartition(':')[0]}:{_OTHER_VERSION}"
            change = f"sed -i 's/^__version__ = .*/__version__ = \"{_OTHER_VERSION}\"/' $file"
            find = "file=$(python -c 'import rollserve_server; print(rollserve_server.__file__)')"
            (self._folder / "Dockerfile").write_text(f"FROM {name}\nUSER 0\nRUN {find} && {change}\nUSER 10001\n")
            self._engine.docker("build", "--tag", other, str(self._folder), "--file", str(self._folder / "Dockerfile"))

    def _replace_gateways(self, up: tuple[str, ...]) -> None:
        """Replace the gateway that stands by, or start one, and then the other, whose sampler it takes over."""
        for service in self._gateways:
            self._engine.compose(*up, service)
            self._wait_until_healthy(self._engine.containers(service)[0])
        self._gateways.reverse()  # the first one stands by now

    def _replace_nodes(self, up: tuple[str, ...]) -> None:
        """Add as many nodes as there are, and stop the old ones: their workers move."""
        old = self._engine.containers("worker")
        scaling = ["--no-recreate", "--scale", f"worker={2 * len(old)}"]
        self._engine.compose(*up, *scaling, "worker")
        for container in self._engine.containers("worker"):
            self._wait_until_healthy(container)
        for container in old:
            self._engine.docker("stop", "--time", "40", container)
            self._engine.docker("rm", container)

    def kill_head(self) -> str:
        """Kill Ray's head, and with it the cluster: all start again, and the sampler goes on as it was saved."""
        with self._load(may_fail=True) as load, self._connect() as sampler:
            before = sampler.status()
            time.sleep(_SAVE_SECONDS)
            age = sampler.status().counters.uptime_seconds
            seconds = self._kill("head", lambda: self._wait_for_new_sampler(sampler, age))
            load.wait_for_calls(4)
            after = sampler.status()
        assert after.policy_version >= before.policy_version, "the agent was lost"  # the load has sent it once more
        num_calls = before.counters.num_completed_calls, after.counters.num_completed_calls
        assert num_calls[1] > num_calls[0] > 0, f"calls were lost: {num_calls}"
        return f"{seconds:.1f} s until the sampler has its agent, counters and 2 workers; {_said(load)}"

    def kill_head_with_redis(self) -> str:
        """Kill Ray's head while Redis keeps its state: the cluster waits for it, and the sampler stays the same."""
        engine = self._engine
        source = prepare_redis(engine)
        engine.environment |= {"ROLLSERVE_REDIS": "redis:6379", "ROLLSERVE_HEAD_SECONDS": "60"}
        with self._connect() as sampler:
            age = sampler.status().counters.uptime_seconds
            engine.compose("--profile", "redis", "up", "--detach", "redis", "head", "worker", "gateway")
            self._wait_for_new_sampler(sampler, age)
        with self._load() as load, self._connect() as sampler:
            before = sampler.status()
            seconds = self._kill("head", lambda: self._wait_until_healthy(engine.containers("head")[0]))
            load.wait_for_calls(4)
            self._wait_for_workers(sampler, 2)
            _check_is_same(before, sampler.status())
        return f"{seconds:.1f} s until the head is healthy; same sampler, {_said(load)}; Redis: {source}"

    def restore_backup(self) -> str:
        """Back up while the gateway serves, and restore all volumes where there are none, as on another machine."""
        engine, run = self._engine, ("run", "--rm", "-T", "backup")
        with self._connect() as sampler:
            last = sampler.obtain_samples(100)
            before = sampler.status()
            time.sleep(_SAVE_SECONDS)
        archive = engine.compose_bytes(*run)
        self._down()
        engine.compose_bytes(*run, "restore", "/volumes", data=archive)
        began = time.monotonic()
        engine.compose("up", "--detach", "gateway")
        self._wait_until_healthy(engine.containers("gateway")[0])
        seconds = time.monotonic() - began
        with self._connect() as sampler:  # with the files of before
            after = sampler.status()
            assert after.policy_version == before.policy_version, "the agent was lost"
            assert after.counters.num_completed_calls == before.counters.num_completed_calls, after.counters
            assert references(sampler) == self._expected
            first = int(sampler.obtain_samples(100).episode_indices[0])
        assert first > int(last.episode_indices[-1]), f"episode {first} was delivered before"
        return (
            f"{len(archive) / 1e6:.1f} MB; {seconds:.1f} s until it serves: agent, counters, positions, client's files"
        )

    # What is seen

    def check_metrics(self) -> str:
        """Ask Prometheus for the metrics, and test its alerts."""
        with self._load() as load:
            load.wait_for_calls(10)
            self._cause_error()
            _wait(lambda: self._query('up{job="rollserve"}') == 1.0, "Prometheus reads the gateway")
            _wait(lambda: self._query("rate(rollserve_delivered_steps_total[1m])") > 0, "steps are counted")
            _wait(lambda: bool(self._results("rate(rollserve_rpc_errors_total[1m])")), "errors are counted")
        healthy = self._query('sum(rollserve_workers{health="healthy"})')
        assert healthy == 2, f"{healthy} healthy workers"
        dashboard = json.loads((ROOT / "deploy/grafana/dashboards/rollserve.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        for expression in expressions:
            query = expression.replace("$sampler", ".*").replace("$__rate_interval", "1m")
            assert self._results(query), f"no data: {query}"
        container = self._engine.containers("prometheus")[0]
        # The tests of alerts write to a temporary folder.
        rules = ("promtool", "test", "rules", "/etc/prometheus/alerts_test.yml")
        self._engine.docker("exec", "--env", "TMPDIR=/prometheus", container, *rules)
        self._engine.docker("exec", container, "promtool", "check", "config", "/etc/prometheus/prometheus.yml")
        alerts = self._results("ALERTS{alertstate='firing',alertname!~'.*Restarting'}")  # they were killed
        assert not alerts, alerts
        return f"data for {len(expressions)} queries of the dashboard; tests of the alerts; none firing"

    def take_picture(self) -> str:
        """Take a picture of the dashboard in Chromium, or of Prometheus where there is no Grafana."""
        port, service, path, height = 9090, "prometheus", _prometheus_path(), 700
        if self._has_grafana:
            port, service, path, height = 3000, "grafana", "/d/rollserve?kiosk&from=now-15m&to=now", 1800
        address = self._engine.address(self._engine.containers(service)[0], "monitoring")
        picture = self._folder / f"{service}.png"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size=1600,{height}"]
        options += ["--virtual-time-budget=20000", f"--user-data-dir={self._folder / 'chromium'}"]
        self._engine.run(
            "chromium", *options, f"--screenshot={picture}", f"http://{address}:{port}{path}", timeout=120.0
        )
        assert picture.stat().st_size > 20_000, f"{picture} is almost empty"
        missing = "" if self._has_grafana else "; Grafana's image cannot be had here"
        return f"{picture.name}{missing}"

    def check_logs(self) -> str:
        """Check that no log has a secret."""
        logs = self._engine.compose("logs", "--no-color")
        (self._folder / "containers.log").write_text(logs)
        show = "cat /secrets/*/token /secrets/*/sampler-secret /secrets/grafana/password"
        found = self._engine.compose("run", "--rm", "-T", "--entrypoint", "sh", "secrets", "-c", show).split()
        assert len(found) == 4
        assert not [secret for secret in found if secret in logs], "a secret is in the logs"
        assert "PRIVATE KEY" not in logs
        return f"{len(found)} secrets looked for in {len(logs.splitlines())} lines"

    def stop(self) -> str:
        """End the project: nothing may be left."""
        began = time.monotonic()
        self._down()
        seconds = time.monotonic() - began
        assert not self._engine.containers(all_states=True)
        assert self._engine.network("") not in self._engine.docker("volume", "ls", "--quiet")
        assert self._engine.network("") not in self._engine.docker("network", "ls", "--format", "{{.Name}}")
        return f"{seconds:.1f} s; no container, volume or network is left"

    # Helpers

    def _down(self) -> None:
        profiles = [part for name in ("monitoring", "example", "standby", "redis") for part in ("--profile", name)]
        self._engine.compose(*profiles, "down", "--volumes", "--timeout", "30")

    def _fetch_client_files(self) -> None:
        archive = self._engine.compose_bytes("run", "--rm", "-T", "secrets", "client")
        folder, new = self._folder / "client", self._folder / "client.new"
        folder.mkdir(exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(new, filter="data")
        for path in new.iterdir():  # in one step each, because clients read them
            path.replace(folder / path.name)

    def _connect(self, address: str = ADDRESS, **options: Any) -> rollserve.Sampler:
        return rollserve.connect(address, timeout=120, shared=True, **options, **self._files)

    def _load(self, address: str = ADDRESS, *, may_fail: bool = False) -> Load:
        return Load(lambda: self._connect(address), self._expected, may_fail=may_fail)

    def _kill(
        self,
        service: str,
        until: Callable[[], None],
        harm: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
    ) -> float:
        """Kill a container as a crash would, so that the engine restarts it; return the seconds until a condition.

        Args:
            service: the container's service.
            until: waits for the condition.
            harm: does something else to the container instead, given the id of its first process.
        """
        container = self._engine.containers(service)[0]
        before = self._engine.inspect(container)
        began = time.monotonic()
        harm(before["State"]["Pid"])
        until()
        seconds = time.monotonic() - began
        assert self._engine.inspect(container)["RestartCount"] > before["RestartCount"], f"{service} was not restarted"
        return seconds

    def _wait_until_healthy(self, container: str) -> None:
        def is_healthy() -> bool:
            state = self._engine.inspect(container)["State"]
            assert state["Running"], f"it ended with status {state['ExitCode']}"
            return state["Health"]["Status"] == "healthy"

        _wait(is_healthy, "the container is healthy", period=0.1)

    def _wait_until_served(self, sampler: rollserve.Sampler) -> None:
        _wait(lambda: _num_healthy(sampler.status()) == 2, "the gateway serves with 2 workers")

    def _wait_for_workers(self, sampler: rollserve.Sampler, number: int, *, after_loss: bool = False) -> None:
        if after_loss:
            _wait(lambda: _num_healthy(sampler.status()) < number, "the loss is noticed")
        _wait(lambda: _num_healthy(sampler.status()) == number, f"{number} workers are healthy")

    def _wait_for_new_sampler(self, sampler: rollserve.Sampler, age: float) -> None:
        def is_new() -> bool:
            status = sampler.status()
            return status.counters.uptime_seconds < age and _num_healthy(status) == 2

        _wait(is_new, "a new sampler has 2 workers")

    def _presented(self) -> bytes:
        """Return the certificate that the gateway shows."""
        context = ssl.create_default_context(cafile=str(self._files["ca"]))
        host, _, port = ADDRESS.rpartition(":")
        with (
            socket.create_connection((host, int(port))) as raw,
            context.wrap_socket(raw, server_hostname=host) as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True) or b""

    def _cause_error(self) -> None:
        with self._connect(sampler="missing") as sampler, contextlib.suppress(rollserve.RollserveError):
            sampler.status()
            raise AssertionError("a sampler was found that does not exist")

    def _results(self, query: str) -> list[dict[str, Any]]:
        """Ask Prometheus, which raises an error if the query is wrong."""
        address = self._engine.address(self._engine.containers("prometheus")[0], "monitoring")
        url = f"http://{address}:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            results: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return results

    def _query(self, query: str) -> float:
        results = self._results(query)
        return float(results[0]["value"][1]) if results else float("nan")


def _check_is_same(before: rollserve.SamplerStatus, after: rollserve.SamplerStatus) -> None:
    """Check that a later status is the same sampler's: a new one is younger, and has no agent."""
    assert after.counters.uptime_seconds > before.counters.uptime_seconds, "the sampler was lost"
    assert after.policy_version == before.policy_version, "the agent was lost"


def _num_healthy(status: rollserve.SamplerStatus) -> int:
    return sum(worker.healthy for worker in status.workers)


def _busy() -> str:
    """Tell how busy the machine is: durations depend on it."""
    return f"at a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _said(load: Load) -> str:
    errors = f", {load.num_errors} errors" if load.num_errors else ""
    return f"{load.num_calls} calls right{errors}, the longest in {load.longest_seconds:.1f} s"


def _stop_server(init: int) -> None:
    """Stop the server that a container's first process has started."""
    (server,) = (
        each
        for each in psutil.Process(init).children(recursive=True)
        if each.cmdline()[1:2] == ["/opt/rollserve/bin/rollserve-server"]
    )
    server.suspend()


def _wait(condition: Callable[[], bool], what: str, seconds: float = 180.0, period: float = 0.25) -> None:
    """Wait for a condition, which may fail to be seen while the server is away."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(rollserve.RollserveError, OSError):
            if condition():
                return
        assert time.monotonic() < deadline, f"expected within {seconds:.0f} s: {what}"
        time.sleep(period)


def _prometheus_path() -> str:
    """Return the path of Prometheus' own page with the steps of the workers."""
    query = "sum by (worker) (rate(rollserve_worker_steps_total[1m]))"
    return f"/graph?{urllib.parse.urlencode({'g0.expr': query, 'g0.tab': 0, 'g0.range_input': '15m'})}"
