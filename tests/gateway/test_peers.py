"""Peers that connections and RPCs are charged to, and places for RPCs when all are taken."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator

import pytest
from certificates import serving
from principals import Tokens
from prometheus_client.parser import text_string_to_metric_families
from raw_calls import SERVICE, UnfinishedRequest, soon
from ray_clusters import free_port

from rollserve_server.gateway.peers import charged_host, charged_peer
from rollserve_wire.v1.episode_records_pb2 import GetMetricsRequest


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::/64"),
        ("unix:/run/socket", ""),
    ],
)
def test_connections_are_charged_to_their_address(peer: str, host: str) -> None:
    assert charged_peer(peer) == host


def test_sockets_are_charged_as_their_connections() -> None:
    assert [charged_host(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%2")] == [
        "10.0.0.1",
        "10.0.0.1",
        "fe80::/64",
    ]


class Rpcs:
    """RPCs that clients hold open on a server, each over a connection of its own."""

    def __init__(self, address: str, metrics: str, tokens: dict[str, str]) -> None:
        self._address, self._metrics, self._tokens = address, metrics, tokens
        self._requests: list[UnfinishedRequest] = []
        self._ended_before = self._numbers()[1]

    def open(self, principal: str, host: int, *, is_sent: bool = True) -> UnfinishedRequest:
        """Open an RPC from 127.0.0.HOST: for records without an end, or for an update that never arrives."""
        name, data = (
            ("GetMetrics", GetMetricsRequest(follow=True).SerializeToString()) if is_sent else ("UpdateAgent", b"")
        )
        options = {"source": f"127.0.0.{host}", "token": self._tokens[principal]}
        request = UnfinishedRequest(self._address, f"{SERVICE}/{name}", len(data) or 1000, **options)
        self._requests.append(request)
        request.send(data)
        return request

    def become(self, num_open: int, **num_ended: int) -> bool:
        """Whether so many RPCs are soon open, and so many have ended with an error, by reason."""
        return soon(lambda: self._numbers() == (num_open, self._ended_before + Counter(num_ended)), 10)

    def close(self) -> None:
        """End all RPCs."""
        for request in self._requests:
            request.close()
        assert soon(lambda: self._numbers()[0] == 0)

    def _numbers(self) -> tuple[int, Counter[str]]:
        with urllib.request.urlopen(f"http://{self._metrics}/metrics") as response:
            text = response.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        ended: Counter[str] = Counter()
        for sample in samples:
            if sample.name == "rollserve_rpc_errors_total":
                ended[sample.labels["reason"]] += int(sample.value)
        return sum(int(sample.value) for sample in samples if sample.name == "rollserve_open_rpcs"), ended


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The addresses of a server and of its metrics, and tokens of principals."""
    folder, metrics = tmp_path_factory.mktemp("limited"), f"127.0.0.1:{free_port()}"
    tokens = Tokens(folder / "tokens.json")
    texts = {name: tokens.create(name, "*") for name in ("alice", "bob", "carol", "dave")}
    limits = ("--max-rpcs", "5", "--max-peer-rpcs", "3", "--metrics-listen", metrics)
    with serving(folder, *tokens.options, *limits) as server:
        yield server.address, metrics, texts


@pytest.fixture
def rpcs(limited: tuple[str, str, dict[str, str]]) -> Iterator[Rpcs]:
    with contextlib.closing(Rpcs(*limited)) as rpcs:
        yield rpcs


def test_room_is_made_of_the_client_with_most_unsent_requests(rpcs: Rpcs) -> None:
    rpcs.open("alice", 1)
    assert rpcs.become(1)
    first = rpcs.open("alice", 2, is_sent=False)
    assert rpcs.become(2)
    second = rpcs.open("alice", 1, is_sent=False)
    rpcs.open("bob", 2, is_sent=False)
    rpcs.open("bob", 1)
    assert rpcs.become(5)
    rpcs.open("carol", 3)
    assert rpcs.become(5, CLIENT_STALLED=1)
    assert first.is_over_soon()
    # No other client has more places than this one would have, and its own requests are not late.
    rpcs.open("bob", 3)
    assert rpcs.become(5, CLIENT_STALLED=1, TOO_MANY_CALLS=1)
    assert not second.is_over_soon()


def test_room_is_made_of_requests_that_are_late(rpcs: Rpcs) -> None:
    late = rpcs.open("alice", 1, is_sent=False)
    for host in (1, 2, 3):
        rpcs.open("bob", host)
    assert rpcs.become(4)
    time.sleep(5)  # after which a request is late
    rpcs.open("carol", 2, is_sent=False)
    assert rpcs.become(5)
    rpcs.open("dave", 3)
    assert rpcs.become(5, CLIENT_STALLED=1)
    assert late.is_over_soon()


def test_peer_takes_no_places_over_its_limit(rpcs: Rpcs) -> None:
    for principal in ("alice", "bob", "dave"):  # nobody has more than another, and may be ended until it is read
        rpcs.open(principal, 1)
    assert rpcs.become(3)
    rpcs.open("carol", 1)
    assert rpcs.become(3, TOO_MANY_CALLS=1)
    rpcs.open("carol", 2)
    assert rpcs.become(4, TOO_MANY_CALLS=1)


def test_principal_takes_no_places_over_the_limit_of_a_peer(rpcs: Rpcs) -> None:
    for host in (1, 2, 3):
        rpcs.open("alice", host)
    assert rpcs.become(3)
    rpcs.open("alice", 4)
    assert rpcs.become(3, TOO_MANY_CALLS=1)
    rpcs.open("bob", 4)
    assert rpcs.become(4, TOO_MANY_CALLS=1)
