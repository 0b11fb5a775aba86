"""Settings that are read again while the server runs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from certificates import LIGHT, serving
from commands import run_here
from principals import Tokens
from raw_calls import soon
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.errors import InvalidValueError
from rollserve_server.local import LocalServer
from rollserve_server.settings import Reload, Settings


class Served:
    """A server with a configuration file.

    Attributes:
        server: the server.
        folder: has the server's files.
        log: the server's log.
    """

    def __init__(self, server: LocalServer, folder: Path) -> None:
        self.server, self.folder, self.log = server, folder, folder / "log"

    def write(self, **settings: object) -> None:
        """Write the configuration file."""
        (self.folder / "config").write_text(json.dumps({**common(self.folder), **settings}))

    def audited(self) -> Mapping[str, Any]:
        """Return the last line of the audit log."""
        last: Mapping[str, Any] = json.loads((self.folder / "audit").read_text().splitlines()[-1])
        return last


def common(folder: Path) -> Mapping[str, object]:
    return {"audit_log": str(folder / "audit"), "log_level": "INFO"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a flag and a file; tests write the file, and reload it."""
    folder = tmp_path_factory.mktemp("reloading")
    (folder / "config").write_text(json.dumps(common(folder)))
    with serving(
        folder, "--config", str(folder / "config"), "--max-waiting-calls", "7", "--max-samplers", "2"
    ) as server:
        yield Served(server, folder)


def names(changes: object) -> list[str]:
    assert isinstance(changes, tuple)
    return sorted(each.name for each in changes)


def test_reload_uses_new_values_and_names_what_needs_a_restart(served: Served) -> None:
    profiles = {"pole": {"env": "CartPole-v1", "arguments": {"properties": {"sutton_barto_reward": {}}}}}
    served.write(
        profiles=profiles, max_call_steps=100, max_waiting_calls=8, log_level="DEBUG", rows=3, metrics_listen="[::]:1"
    )
    with rollserve.connect(served.server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        assert sampler.obtain_samples(200).num_steps >= 200
        reload = sampler.reload_settings()
        assert names(reload.changed) == ["log_level", "max_call_steps", "profiles"]
        assert names(reload.needs_restart) == ["metrics_listen", "rows"]
        assert not any(each.before or each.after for each in reload.changed), "anybody may ask this server"
        changes = served.audited()
        assert changes["settings"]["max_call_steps"] == {"before": "0", "after": "100"}
        assert changes["needs_restart"]["rows"] == {"before": "16", "after": "3"}
        with raises(rollserve.LimitError, field="step_count", quotes="--max-call-steps"):
            sampler.obtain_samples(200)
        sampler.update_env("profile:pole", kwargs={"sutton_barto_reward": True})
        assert names(sampler.reload_settings().changed) == []
        served.write()
        assert names(sampler.reload_settings().changed) == ["log_level", "max_call_steps", "profiles"]
        assert sampler.obtain_samples(200).num_steps >= 200
        with raises(rollserve.RollserveError, reason=Reason.PROFILE_NOT_FOUND):
            sampler.update_env("profile:pole")


def test_reload_reaches_samplers_that_clients_have_created(served: Served) -> None:
    served.write()
    with rollserve.connect(served.server.address, sampler="other") as other:
        other.reload_settings()
        other.create_sampler("CartPole-v1")
        other.update_agent(rollserve.RandomAgent())
        served.write(max_call_steps=100, max_sampler_rows=1)
        other.reload_settings()
        with raises(rollserve.LimitError, quotes="--max-call-steps"):
            other.obtain_samples(200)
        other.delete_sampler()
        with raises(rollserve.LimitError, quotes="--max-sampler-rows"):
            other.create_sampler("CartPole-v1", quota=rollserve.Quota(num_rows=2))


@pytest.mark.parametrize(
    ("settings", "quotes"),
    [
        ({"max_rpcs": 5, "max_calls": 0}, "max_calls"),
        ({"max_rpcs": 5, "max_cals": 1}, "max_cals"),
        ({"max_rpcs": 5, "token_hashes": "missing"}, "token_hashes"),
        ({"max_rpcs": 5, "profiles": {"a": {"env": "Missing-v0"}}}, "profiles.a"),
        ({"max_rpcs": 5, "audit_log": "/missing/audit"}, "audit_log"),
    ],
)
def test_invalid_file_changes_nothing(served: Served, settings: dict[str, object], quotes: str) -> None:
    with rollserve.connect(served.server.address) as sampler:
        served.write()
        sampler.reload_settings()
        served.write(**settings)
        with raises(rollserve.RollserveError, quotes=quotes):
            sampler.reload_settings()
        served.write()
        assert names(sampler.reload_settings().changed) == []


def test_hang_up_reloads_and_is_audited(served: Served) -> None:
    with rollserve.connect(served.server.address) as sampler:
        served.write()
        sampler.reload_settings()
        served.write(max_rpcs=1)
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(2**40):
            served.server.process.send_signal(signal.SIGHUP)
            assert soon(lambda: served.audited().get("signal") == "SIGHUP")
            assert served.audited()["settings"] == {"max_rpcs": {"before": "1000", "after": "1"}}
            assert "settings reloaded" in served.log.read_text()
            with raises(rollserve.LimitError, reason=Reason.TOO_MANY_CALLS):
                sampler.status()
        assert soon(lambda: served.audited()["status"] == "CANCELLED")
    served.write(max_rpcs=0)
    served.server.process.send_signal(signal.SIGHUP)
    assert soon(lambda: "settings not reloaded error='max_rpcs" in served.log.read_text())
    served.write()
    shown = run_here("admin", "reload", served.server.address)
    assert (shown.stdout, shown.returncode) == ("changed: max_rpcs\n", 0)
    assert run_here("admin", "reload", served.server.address).stdout == "nothing has changed\n"


def test_reload_asks_for_tokens_from_now_on(served: Served) -> None:
    tokens = Tokens(served.folder / "tokens.json")
    admin, user = tokens.create("admin", "server:admin"), tokens.create("user", "*@default")
    served.write(token_hashes=str(tokens.path), audit_log=str(served.folder / "other"))
    with rollserve.connect(served.server.address) as sampler:
        assert names(sampler.reload_settings().changed) == ["audit_log", "token_hashes"]
        with raises(rollserve.AccessError, reason=Reason.TOKEN_MISSING):
            sampler.status()
    with rollserve.connect(served.server.address, token=user) as sampler:
        sampler.status()
        with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING, quotes="server:admin"):
            sampler.reload_settings()
    served.write()
    with rollserve.connect(served.server.address, token=admin) as sampler:
        change, _ = sampler.reload_settings().changed
        assert (change.name, change.before) == ("token_hashes", str(tokens.path))
    assert [json.loads(line)["rpc"] for line in (served.folder / "other").read_text().splitlines()] == [
        "ReloadSettings",
        "GetSampler",
        "GetSampler",
        "ReloadSettings",
    ]


def test_setting_that_needs_one_of_the_start_is_refused() -> None:
    tls = {"tls_cert": "a", "tls_key": "b"}
    used = Settings.from_flat({"env": "CartPole-v1", **tls})
    new = Settings.from_flat({"env": "CartPole-v1", **tls, "tls_client_ca": "c", "tls_principals": "d"})
    with raises(InvalidValueError, quotes="a restart is needed for tls_client_ca"):
        Reload.of(used, new)


def test_server_ends_with_its_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    log = tmp_path / "log"
    command = ["setsid", "--ctty", sys.executable, "-m", "rollserve_server", *LIGHT, "--listen", "127.0.0.1:0"]
    with log.open("w") as file, subprocess.Popen(command, stdin=terminal, stderr=file) as process:
        os.close(terminal)
        assert soon(lambda: " serving " in log.read_text())
        process.send_signal(signal.SIGHUP)
        assert soon(lambda: "settings reloaded" in log.read_text())
        os.close(controller)
        assert process.wait(60) == 0
    assert "ended" in log.read_text()
