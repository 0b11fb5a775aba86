"""Bearer tokens: made, shown, changed and revoked, and refused before a request is read."""

from __future__ import annotations

import contextlib
import json
import pickle
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from certificates import Certificates, serving
from click.testing import Result
from commands import run_here, run_server_command
from cutting_proxy import cutting_proxy
from principals import Tokens
from spawned import in_spawned_process
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asking")


@pytest.fixture(scope="module")
def asking(tokens: Tokens, folder: Path) -> Iterator[LocalServer]:
    """A server that asks for tokens."""
    with serving(folder, *tokens.options, "--log-json") as running:
        yield running


def token_command(*arguments: str | Path) -> Result:
    return run_server_command("token", *arguments)


def test_command_line_makes_lists_and_revokes_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = token_command("create", "--file", path, "--name", "alice", "--scope", "status", "--expires", "1")
    text = made.stdout.strip()
    assert text.startswith("rst_")
    assert len(text) >= 47  # 256 bits
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text not in path.read_text()
    assert token_command("create", "--file", path, "--name", "bob", "--scope", "*@b").exit_code == 0
    first, second = token_command("list", "--file", path).stdout.splitlines()
    assert ("alice" in first, "status" in first, "expires" in first) == (True, True, True)
    assert token_command("revoke", "--file", path, second.split()[0]).exit_code == 0
    assert "bob" not in token_command("list", "--file", path).stdout
    for wrong in (
        ("create", "--file", path, "--name", "alice", "--scope", "everything"),
        ("create", "--file", path, "--name", "anonymous", "--scope", "status"),
        ("revoke", "--file", path, "carol"),
        ("create", "--file", tmp_path / "none" / "tokens.json", "--name", "alice", "--scope", "status"),
    ):
        refused = token_command(*wrong)
        assert refused.exit_code == 1
        assert isinstance(refused.exception, SystemExit)  # no other, which would be a traceback


def test_revoked_token_is_refused_with_the_next_call(asking: LocalServer, tokens: Tokens) -> None:
    with rollserve.connect(asking.address, token=tokens.create("mallory", "status")) as sampler:
        sampler.status()
        tokens.revoke("mallory")
        with raises(rollserve.AccessError, reason=Reason.TOKEN_INVALID) as caught:
            sampler.status()
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.request_id


def test_expired_token_is_refused_as_expired(asking: LocalServer, tokens: Tokens) -> None:
    with rollserve.connect(asking.address, token=tokens.create("late", "status", days=2 / 86400)) as sampler:
        time.sleep(2.1)
        with raises(rollserve.AccessError, reason=Reason.TOKEN_EXPIRED):
            sampler.status()


def test_unusable_file_leaves_the_previous_tokens(asking: LocalServer, tokens: Tokens, folder: Path) -> None:
    with rollserve.connect(asking.address, token=tokens.create("steady", "status")) as sampler:
        sampler.status()
        good, secret = tokens.path.read_text(), "rst_by-mistake"
        for text in (json.dumps({"tokens": [secret]}), "{", json.dumps({"tokens": [{"name": secret}]})):
            tokens.path.write_text(text)
            for _ in range(3):
                sampler.status()
        tokens.path.unlink()
        sampler.status()
        tokens.path.write_text(good)
        sampler.status()
    log = (folder / "log").read_text()
    assert log.count("new contents not used") == 4
    assert secret not in log


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "rst_x")],
        [("authorization", "Basic rst_x")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer a.b.c")],
        [("authorization", "Bearer rst_x"), ("authorization", "Bearer rst_x")],
    ],
    ids=str,
)
def test_malformed_authorization_is_refused(asking: LocalServer, metadata: list[tuple[str, str]]) -> None:
    with (
        grpc.insecure_channel(asking.address) as channel,
        raises(grpc.RpcError, reason=Reason.TOKEN_INVALID, field="authorization"),
    ):
        SamplerServiceStub(channel).GetSampler(pb.GetSamplerRequest(), metadata=metadata)


def test_scheme_is_read_in_any_case(asking: LocalServer, tokens: Tokens) -> None:
    metadata = [("authorization", f"bEARER {tokens.create('odd', 'status')}")]
    with grpc.insecure_channel(asking.address) as channel:
        SamplerServiceStub(channel).GetSampler(pb.GetSamplerRequest(), metadata=metadata)


def test_tokens_and_log_lines_do_not_meet(asking: LocalServer, tokens: Tokens, folder: Path) -> None:
    text = tokens.create("quiet", "status")
    with rollserve.connect(asking.address, token=text) as sampler:
        assert text not in repr(sampler)
        with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING, quotes=("agent:write", "'default'")) as caught:
            sampler.update_agent(rollserve.RandomAgent())
        assert text not in str(caught.value)
        with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING):
            sampler.obtain_samples(10)
    log = (folder / "log").read_text()
    assert text not in log
    assert text.removeprefix("rst_") not in log
    events = [json.loads(line) for line in log.splitlines() if caught.value.request_id in line]
    refused = [event for event in events if event["event"] == "call refused"]
    assert [event["principal"] for event in refused] == ["quiet"]


def test_request_without_a_token_is_not_read(asking: LocalServer) -> None:
    """The client would send 100 MB."""
    with cutting_proxy(asking.address, num_cuts=0, max_bytes=1, seed=0) as proxy:
        before = psutil.Process(asking.process.pid).memory_info().rss
        with grpc.insecure_channel(proxy.address, options=[("grpc.max_send_message_length", -1)]) as channel:
            call = channel.unary_unary("/rollserve.v1.SamplerService/UpdateAgent")
            with raises(grpc.RpcError, reason=Reason.TOKEN_MISSING):
                call(bytes(100 << 20))
        assert psutil.Process(asking.process.pid).memory_info().rss - before < 16 << 20


async def test_clients_of_asyncio_show_tokens(asking: LocalServer, tokens: Tokens) -> None:
    text = tokens.create("awaiting", "*")
    async with rollserve.aconnect(asking.address, token=text) as sampler:
        await sampler.update_agent(rollserve.RandomAgent())
        assert (await sampler.obtain_samples(50)).num_steps >= 50
        assert (await sampler.evaluate(2)).returns.shape == (2,)
    async with rollserve.aconnect(asking.address) as sampler:
        with raises(rollserve.AccessError, reason=Reason.TOKEN_MISSING):
            await sampler.status()


def test_token_file_is_read_for_each_call(asking: LocalServer, tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(tokens.create("first", "*") + "\n")
    with rollserve.connect(asking.address, token_file=path) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        tokens.revoke("first")
        with raises(rollserve.AccessError, reason=Reason.TOKEN_INVALID):
            sampler.status()
        path.write_text(tokens.create("second", "*"))
        assert sampler.obtain_samples(50).num_steps >= 50
        with pickle.loads(pickle.dumps(sampler)) as copy:
            copy.status()
        path.unlink()
        with raises(rollserve.InvalidArgumentError, field="token_file", quotes=str(path)):
            sampler.status()


def test_command_line_context_and_variables_name_the_token(
    asking: LocalServer, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = tmp_path / "token", tokens.create("named", "status")
    path.write_text(text)
    assert run_here("status", asking.address, "--token-file", path).returncode == 0
    other = tmp_path / "other"
    other.write_text(tokens.create("bob", "sample"))
    for arguments, reason in (((), Reason.TOKEN_MISSING), (("--token-file", other), Reason.SCOPE_MISSING)):
        shown = run_here("status", asking.address, *arguments)  # the server is up, whatever this client may see
        assert (shown.returncode, reason in shown.stderr) == (5, True), shown.stderr
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "rollserve").mkdir()
    (tmp_path / "rollserve" / "contexts.toml").write_text(
        f'[lab]\naddress = "{asking.address}"\ntoken_file = "../token"\n'
    )
    rollserve.connect("lab").status()
    with monkeypatch.context() as patch:
        patch.setenv("ROLLSERVE_TOKEN_FILE", str(path))
        rollserve.connect(asking.address).status()
    monkeypatch.setenv("ROLLSERVE_TOKEN", text)
    sampler = rollserve.connect(asking.address)
    sampler.status()
    assert text.encode() not in pickle.dumps(sampler)  # the variable counts where it is unpickled
    assert in_spawned_process(sampler.list_samplers)[0].sampler == "default"
    assert in_spawned_process(rollserve.connect(asking.address, token_file=path).list_samplers)
    copy = pickle.loads(pickle.dumps(sampler))
    monkeypatch.delenv("ROLLSERVE_TOKEN")
    with raises(rollserve.InvalidArgumentError, field="token", quotes="ROLLSERVE_TOKEN"):
        copy.status()


def test_client_refuses_tokens_that_it_cannot_send(certificates: Certificates) -> None:
    with raises(rollserve.InvalidArgumentError, field="token", quotes="server.lab") as caught:
        rollserve.connect("server.lab:50051", token="rst_secret")
    assert "rst_secret" not in str(caught.value)
    for local in ("localhost:1", "127.0.0.2:1", "[::1]:1", "ipv4:127.0.0.1:1", "dns:///localhost:1", "unix:/x"):
        rollserve.connect(local, token="rst_secret").close()
    for remote in ("127.0.0.1.example:1", "ipv4:10.0.0.1:1", "dns:///server.lab:1", "dns://127.0.0.1/server.lab:1"):
        with raises(rollserve.InvalidArgumentError, field="token"):
            rollserve.connect(remote, token="rst_secret")
    sampler = rollserve.connect("server.lab:50051", token="rst_secret", **certificates.ca)
    with raises(TypeError, field="token", quotes="token_file") as refused:
        pickle.dumps(sampler)
    assert "rst_secret" not in str(refused.value)
    for wrong in ("", "two words", "línea", "a\nb"):
        with raises(rollserve.InvalidArgumentError, field="token"):
            rollserve.connect("localhost:1", token=wrong)
    with raises(rollserve.InvalidArgumentError, field="token"):
        rollserve.connect("localhost:1", token="a", token_file="b")
    with raises(rollserve.InvalidArgumentError, field="token_file"):
        rollserve.connect("localhost:1", token_file="/nowhere")
    with raises(TypeError, field="token"):
        rollserve.connect("localhost:1", token=3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_server_refuses_settings_that_cannot_work(tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    light = ("--env", "CartPole-v1", "--backend", "in-process")
    for options, quote in (
        (("--token-hashes", str(tmp_path / "bad.json")), "token_hashes: expected"),
        (("--token-hashes", "/nowhere"), "token_hashes: expected"),
        (("--jwt-jwks", "keys.json"), "jwt_issuer"),
        (("--tls-principals", "names.yaml"), "--tls-client-ca"),
        (("--audit-log", "/nowhere/audit"), "/nowhere/audit"),
        ((*tokens.options, "--listen", "0.0.0.0:0"), "--insecure"),
    ):
        log = tmp_path / "log"
        with pytest.raises(RuntimeError), local_server(*light, *options, log=log):
            pass
        assert quote in log.read_text()
        assert "Traceback" not in log.read_text()


def test_principal_takes_turns_whatever_its_connections(tokens: Tokens, tmp_path: Path) -> None:
    """Turns never end here, so that taking them by connection would leave the second client waiting."""
    greedy, other = tokens.create("greedy", "*"), tokens.create("other", "*")
    request = pb.ObtainSamplesRequest(step_count=2**40, options=pb.SamplingOptions(blackhole=True))
    metadata = [("authorization", f"Bearer {greedy}")]
    options = (*tokens.options, "--max-calls", "2", "--turn-steps", str(10**12))
    with serving(tmp_path, *options, "--rows", "2") as server, contextlib.ExitStack() as stack:
        rollserve.connect(server.address, token=greedy).update_agent(rollserve.RandomAgent())
        for _ in range(2):
            own = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(server.address, options=own))
            stream = SamplerServiceStub(channel).ObtainSamples(request, metadata=metadata)
            stack.callback(stream.cancel)
            next(stream)  # it runs
        with rollserve.connect(server.address, token=other, timeout=15) as sampler:
            assert sampler.obtain_samples(100).num_steps >= 100
