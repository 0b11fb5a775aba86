"""The file of `--save-path`: servers that are killed, end, or cannot write it, and the next ones."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from raw_calls import soon
from ray_clusters import free_port
from support import equal, raises, server_environment

import rollserve
from rollserve_server.errors import InvalidValueError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.serving import check_settings
from rollserve_server.settings import Settings

OPTIONS = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2")
THREADS = ("--backend", "in-process")


@contextmanager
def serving(path: Path, *options: str) -> Iterator[tuple[LocalServer, rollserve.Sampler]]:
    """Run a server that saves its sampler to a path."""
    log = path.parent / f"{path.name}.log"
    running = local_server(*OPTIONS, *options, "--save-path", str(path), log=log, environment=server_environment())
    with running as server, rollserve.connect(server.address) as sampler:
        yield server, sampler


def scraped(address: str) -> dict[tuple[str, ...], float]:
    """Return the metrics of a server by their names and the values of their labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def prepare(sampler: rollserve.Sampler) -> None:
    """Set another environment and an agent, and make calls whose sequences go on."""
    sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 30})
    status = sampler.status()
    sampler.update_agent(rollserve.MlpAgent.initial(status.observation_space, status.action_space))
    go_on(sampler)


def go_on(sampler: rollserve.Sampler) -> list[rollserve.EpisodeBatch]:
    """Return the results of the next calls."""
    return [sampler.obtain_samples(100), sampler.obtain_fragments(8 * 17)]


def next_save(path: Path) -> bytes:
    """Return the content of the path once it has been written twice from now on."""
    for _ in range(2):
        before = path.stat().st_mtime_ns if path.exists() else 0
        assert soon(lambda before=before: path.exists() and path.stat().st_mtime_ns != before)  # type: ignore[misc]
    return path.read_bytes()


@pytest.mark.parametrize("options", [THREADS, pytest.param((), marks=pytest.mark.slow)], ids=["threads", "ray"])
def test_server_goes_on_from_the_last_save_of_a_killed_one(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "sampler.saved"
    with serving(path, *options, "--save-every", "0.2") as (server, sampler):
        prepare(sampler)
        saved = next_save(path)
        expected = go_on(sampler)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    path.write_bytes(saved)
    with serving(path, *options) as (_, sampler):
        status = sampler.status()
        assert (status.policy_version, status.env_version) == (1, 2)
        assert all(map(equal, go_on(sampler), expected))


def test_server_saves_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "sampler.saved"
    with serving(path, *THREADS) as (_, sampler):
        prepare(sampler)
        saved = sampler.save()
    assert [each.name for each in tmp_path.glob("*sampler*") if each.suffix != ".log"] == [path.name]
    with serving(path, *THREADS) as (_, sampler):
        first = go_on(sampler)
        sampler.restore(saved)
        assert all(map(equal, go_on(sampler), first))


def test_sampler_that_cannot_be_saved_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "sampler.saved"
    path.parent.mkdir()
    log, address = tmp_path / "server.log", f"127.0.0.1:{free_port()}"
    options = (*OPTIONS, *THREADS, "--save-path", str(path), "--save-every", "0.1", "--metrics-listen", address)
    with local_server(*options, log=log, environment=server_environment()) as server:
        with rollserve.connect(server.address) as sampler:
            prepare(sampler)
        assert soon(lambda: scraped(address)["rollserve_saves_total", "saved"] > 1)
        before = scraped(address)
        assert before["rollserve_saves_total", "failed"] == 0
        assert (
            0 < before["rollserve_folder_free_bytes", "save_path"] < before["rollserve_folder_size_bytes", "save_path"]
        )
        assert before["rollserve_folder_free_bytes", "tmp"] > 0
        path.parent.rename(tmp_path / "elsewhere")
        assert soon(lambda: scraped(address)["rollserve_saves_total", "failed"] > 1)
        assert ("rollserve_folder_free_bytes", "save_path") not in scraped(address)
        assert log.read_text().count("sampler not saved") > 1
        assert server.process.poll() is None


def test_server_does_not_start_with_a_path_that_it_cannot_write(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "sampler.saved"):
        settings = Settings.from_flat({"env": "CartPole-v1", "save_path": path})
        with raises(InvalidValueError, field="save_path", quotes=str(path)):
            check_settings(settings)


@pytest.mark.parametrize(
    "content",
    [b"rollserve saved\n", *(pytest.param(each, marks=pytest.mark.slow) for each in (b"", b"something else"))],
)
def test_server_does_not_start_with_a_file_that_it_cannot_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sampler.saved"
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="save_path: expected"), serving(path, *THREADS):
        pass
    assert path.read_bytes() == content
