"""A server that speaks the protocol of OpenEnv, without its package, whose sessions are walks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openenv_walk import SCHEMA, Walk
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve


class Sessions:
    """The sessions of a server.

    Attributes:
        address: HOST:PORT.
        num_open: number of sessions that have not ended.
    """

    def __init__(self, max_sessions: int) -> None:
        """Allow a number of sessions at a time."""
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self.address = ""
        self.num_open = 0

    def run(self, socket: ServerConnection) -> None:
        with self._lock:
            self.num_open += 1
            is_full = self.num_open > self._max_sessions
        try:
            if is_full:
                socket.send(json.dumps({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}}))
                return
            walk = Walk()
            for text in socket:
                message = json.loads(text)
                if message["type"] == "close":
                    return
                try:
                    response = {"type": "observation", "data": _answer(walk, **message)}
                except Exception as error:
                    response = {"type": "error", "data": {"message": repr(error), "code": "EXECUTION_ERROR"}}
                socket.send(json.dumps(response))
        except ConnectionClosed:
            pass
        finally:
            with self._lock:
                self.num_open -= 1


def _answer(walk: Walk, type: str, data: Any) -> Any:  # noqa: A002  # the field's name
    if type == "reset":
        observation, reward, done = walk.reset(**data), None, False
    else:
        observation, reward, done = walk.step(**{"push": 0.25, "level": 3, **data})
    return {"observation": observation, "reward": reward, "done": done, "metadata": observation["metadata"]}


def _schema(connection: ServerConnection, request: Any) -> Any:
    return connection.respond(200, json.dumps({"action": SCHEMA})) if request.path == "/schema" else None


@contextmanager
def serving(max_sessions: int = 100) -> Iterator[Sessions]:
    """Serve sessions on a free port."""
    sessions = Sessions(max_sessions)
    with serve(sessions.run, "127.0.0.1", 0, process_request=_schema) as server:
        sessions.address = "{}:{}".format(*server.socket.getsockname())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield sessions
        finally:
            server.shutdown()
            thread.join()
