"""Environments of servers of OpenEnv, over a WebSocket."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple
from urllib.request import urlopen

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rollserve_env_host.environments import Box, Dict_, Discrete, Environment, limits_of

__all__ = ["OpenEnvEnvironment"]


class OpenEnvEnvironment(Environment):
    """A session of a server."""

    def __init__(
        self,
        address: str,
        actions: Optional[Mapping[str, Mapping[str, Any]]] = None,
        observations: Optional[Sequence[str]] = None,
    ) -> None:
        """Connect to a server, and begin an episode, whose observation shows the shapes of all.

        Args:
            address: `openenv://HOST:PORT`, or `openenv+tls://HOST:PORT` with TLS.
            actions: what the schema of actions lacks, by name: `{"action_id": {"minimum": 0, "maximum": 5}}`. Fields
                that are neither required nor named here keep their defaults.
            observations: names of the observations; by default, all that are numbers.

        Raises:
            OSError: there is no such server.
            ValueError: the server refuses a session, an action has no space, or there is no such observation.
        """
        scheme, _, place = address.partition("://")
        security = "s" if scheme.endswith("+tls") else ""
        with urlopen("http{}://{}/schema".format(security, place)) as answer:  # noqa: S310  # as the operator allows
            schema = json.load(answer)["action"]
        self._kinds, actions = {}, actions or {}
        spaces: Dict[str, Any] = {}
        for name in sorted({*schema.get("required", ()), *actions}):
            field = {**schema["properties"].get(name, {}), **actions.get(name, {})}
            spaces[name], self._kinds[name] = _action_space(name, field), field["type"]
        self.action_space = Dict_(spaces)
        self._socket = connect("ws{}://{}/ws".format(security, place), max_size=None)
        try:
            first, _ = self.reset(0, None)
            self.observation_space = Dict_(_observation_spaces(first, observations))
        except BaseException:
            self._socket.close()
            raise
        self.max_episode_steps, self.is_nondeterministic = 0, False

    def reset(self, seed: int, options: Optional[Mapping[str, Any]]) -> Tuple[Any, Mapping[str, Any]]:
        data = self._asked("reset", {**(options or {}), "seed": seed % (1 << 32)})
        return data["observation"], data.get("metadata") or {}

    def step(self, action: Any) -> Tuple[Any, float, bool, bool, Mapping[str, Any]]:
        plain = {name: np.asarray(value).tolist() for name, value in action.items()}
        plain = {name: bool(value) if self._kinds[name] == "boolean" else value for name, value in plain.items()}
        data = self._asked("step", plain)
        return data["observation"], data["reward"] or 0.0, data["done"], False, data.get("metadata") or {}

    def close(self) -> None:
        self._socket.send(json.dumps({"type": "close"}))
        self._socket.close()

    def _asked(self, kind: str, data: Mapping[str, Any]) -> Any:
        with contextlib.suppress(ConnectionClosed):  # whose last message says why
            self._socket.send(json.dumps({"type": kind, "data": data}))
        response = json.loads(self._socket.recv())
        if response["type"] != "observation":
            raise ValueError("{}: expected an observation, got {}".format(kind, json.dumps(response)))
        return response["data"]


def _action_space(name: str, schema: Mapping[str, Any]) -> Any:
    """Return the space of a field of actions, by its JSON Schema."""
    kind, low, high = schema.get("type"), schema.get("minimum", -np.inf), schema.get("maximum", np.inf)
    if kind == "boolean":
        return Discrete(2, 0)
    if kind == "integer" and low > -np.inf and high < np.inf:
        return Discrete(high - low + 1, low)
    if kind == "number":
        return Box(low, high, (), np.float64)
    items, length = schema.get("items", {}), schema.get("maxItems")
    if kind == "array" and length is not None and length == schema.get("minItems") and items.get("type") == "number":
        return Box(items.get("minimum", -np.inf), items.get("maximum", np.inf), (length,), np.float64)
    expected = "a boolean, number, integer with minimum and maximum, or array of minItems = maxItems numbers"
    raise ValueError("{}: expected {}, which the argument `actions` may say, got {}".format(name, expected, schema))


def _observation_spaces(first: Mapping[str, Any], names: Optional[Sequence[str]]) -> Dict[str, Any]:
    """Return the spaces of observations, by the first one."""
    spaces = {}
    for name in sorted(first if names is None else names):
        try:
            value = np.asarray(first.get(name))
        except ValueError:  # lists of several lengths
            value = np.asarray(None)
        if value.dtype.kind in "bif":
            spaces[name] = Box(*limits_of(value.dtype), value.shape, value.dtype)
        elif names is not None:
            raise ValueError("observations: expected names of numbers of one shape, got {!r}".format(name))
    return spaces
