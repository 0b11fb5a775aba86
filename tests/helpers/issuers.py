"""Issuers of signed tokens: their keys, tokens, and an HTTP server that shows the keys as OpenID Connect asks for."""

from __future__ import annotations

import datetime
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://issuer.lab", "rollserve"
RSA = rsa.generate_private_key(65537, 2048)
KEYS: dict[str, tuple[Any, Any]] = {
    "rsa": (RSA, jwt.algorithms.RSAAlgorithm),
    "ec": (ec.generate_private_key(ec.SECP256R1()), jwt.algorithms.ECAlgorithm),
    "ed": (ed25519.Ed25519PrivateKey.generate(), jwt.algorithms.OKPAlgorithm),
    "other": (rsa.generate_private_key(65537, 2048), jwt.algorithms.RSAAlgorithm),
}
ALGORITHMS = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA", "other": "RS256"}


def key_set(*names: str) -> str:
    keys = [{**KEYS[name][1].to_jwk(KEYS[name][0].public_key(), as_dict=True), "kid": name} for name in names]
    return json.dumps({"keys": keys})


def signed(key: str = "rsa", *, algorithm: str = "", kid: str | None = "", **changes: Any) -> str:
    """Return a token that is valid but for what is changed; None leaves a claim out."""
    expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": expiry, "scope": "openid status sample@default"}
    claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
    headers = {"kid": kid or key} if kid is not None else {}
    return jwt.encode(claims, KEYS[key][0], algorithm or ALGORITHMS[key], headers=headers)


class Issuer:
    """An HTTP server with the keys of an issuer. A context manager, which ends it.

    Attributes:
        url: URL of the issuer.
        keys: text of the key set.
        description: changes of what discovery says.
        answers: set while requests are answered; others wait.
        num_reads: number of times that the keys were read.
    """

    def __init__(self, *keys: str, tls: ssl.SSLContext | None = None) -> None:
        self.keys = key_set(*keys)
        self.description: dict[str, Any] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.num_reads = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.answers.wait(60)
                issuer._answer(self)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}/realm"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Issuer:
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self.close()

    def close(self) -> None:
        """Listen no more. May be called more than once."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        described = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.description}
        if request.path == "/moved":
            request.send_response(302)
            request.send_header("location", f"{self.url}/keys")
            request.end_headers()
            return
        self.num_reads += request.path == "/realm/keys"
        known = {"/realm/keys": self.keys, "/realm/.well-known/openid-configuration": json.dumps(described)}
        request.send_response(200 if request.path in known else 404)
        request.end_headers()
        request.wfile.write(known.get(request.path, "").encode())
