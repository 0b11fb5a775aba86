"""The watchdog: it kills a server whose event loop hangs, and no server that was suspended with its watchdog."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from certificates import LIGHT
from support import server_environment

import rollserve
from rollserve_server.children import WATCHDOG
from rollserve_server.local import local_server


def watchdog_of(pid: int) -> psutil.Process:
    (found,) = (each for each in psutil.Process(pid).children() if WATCHDOG in each.cmdline())
    return found


@pytest.mark.slow  # 10 s
def test_hanging_loop_is_killed_with_its_stacks_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = (*LIGHT, "--watchdog-seconds", "4", "--log-json")
    with local_server(*options, log=log, environment=server_environment(), module="pausing_server") as server:
        with pytest.raises(RuntimeError, match="ended"):
            server.request(f"stand_still 0 {tmp_path / 'never'}")
        assert server.process.wait(60) == -signal.SIGKILL
    text = log.read_text()
    assert all(map(json.loads, text.splitlines()))
    assert "the event loop has not run for 4 s" in text
    assert "in _stand_still" in text, "the stacks show where it hung"


@pytest.mark.slow  # 20 s
def test_suspended_server_lives_and_stopped_server_is_killed(tmp_path: Path) -> None:
    options = (*LIGHT, "--watchdog-seconds", "4")
    with local_server(*options, log=tmp_path / "log", environment=server_environment()) as server:
        both = [psutil.Process(server.process.pid), watchdog_of(server.process.pid)]
        for seconds, processes in ((1, both[:1]), (8, both)):
            for process in processes:
                process.suspend()
            time.sleep(seconds)
            for process in processes:
                process.resume()
            time.sleep(2)
            with rollserve.connect(server.address) as sampler:
                assert sampler.status().workers[0].healthy
        both[0].suspend()
        assert server.process.wait(60) == -signal.SIGKILL
        both[1].wait(10)
    assert "the event loop has not run for 4 s" in (tmp_path / "log").read_text()


def test_server_that_ends_leaves_no_watchdog(tmp_path: Path) -> None:
    with local_server(*LIGHT, log=tmp_path / "log", environment=server_environment()) as server:
        watchdog = watchdog_of(server.process.pid)
        watchdog.suspend()
        assert server.stop() == 0
        assert not watchdog.is_running()
