"""Cases about errors and access: every reason, fields, deadlines, streams that end too early, TLS, tokens."""

from __future__ import annotations

from rollserve_conformance.cases.case import RANDOM, Case, Json, abort, env, samples
from rollserve_conformance.recordings import recording, sending

__all__ = ["access_cases", "error_cases"]


_REASONS = {
    "INVALID_ARGUMENT": "INVALID_VALUE ENV_REFUSED AGENT_REFUSED ENV_NOT_RENDERABLE",
    "NOT_FOUND": "SAMPLER_NOT_FOUND ENV_NOT_FOUND WRAPPER_NOT_FOUND AGENT_NOT_FOUND MODULE_NOT_FOUND PACKAGE_NOT_FOUND "
    "SERVICE_NOT_FOUND PROFILE_NOT_FOUND DATASET_NOT_FOUND LEASE_EXPIRED SAMPLER_DELETED SESSION_NOT_FOUND",
    "PERMISSION_DENIED": "MODULE_NOT_ALLOWED WRAPPER_NOT_ALLOWED METHOD_NOT_ALLOWED PATH_NOT_ALLOWED HOST_NOT_ALLOWED "
    "RENDER_MODE_NOT_ALLOWED PICKLE_NOT_ALLOWED PROFILE_REQUIRED SCOPE_MISSING",
    "FAILED_PRECONDITION": "NO_AGENT AGENT_MISFIT AGENT_FAILED POLICY_VERSION ENVIRONMENT_VERSION SAMPLER_RUN "
    "ROW_STEP_COUNT WORKER_COUNT WORKERS_DIFFER UNEXPECTED_VERSION SAVED_SAMPLER REPLAY_DIFFERS "
    "DATASET_DIFFERS DATASET_IN_USE DATASET_UNREADABLE SESSION_TAKEN",
    "RESOURCE_EXHAUSTED": "MODEL_TOO_LARGE MESSAGE_TOO_SMALL FRAGMENTS_TOO_LARGE TOO_MANY_WORKERS TOO_MANY_CALLS "
    "TOO_MANY_REQUEST_BYTES TOO_MANY_STALLED_CALLS REQUEST_TOO_LARGE ENVIRONMENTS_TOO_LARGE OBJECT_STORE_FULL "
    "NO_EPISODE_ENDED CALL_TOO_LARGE TOO_MANY_SAMPLERS QUOTA_EXCEEDED DISK_FULL VIDEO_TOO_LARGE",
    "UNAVAILABLE": "WORKER_LOST WORKER_LOST_AGAIN WORKER_HUNG TOO_FEW_WORKERS CLIENT_STALLED SERVER_STOPPING "
    "SAMPLER_TAKEN JOURNAL_LOST CALL_TOO_LONG WORKER_OUT_OF_MEMORY",
    "UNAUTHENTICATED": "TOKEN_MISSING TOKEN_INVALID TOKEN_EXPIRED",
    "ALREADY_EXISTS": "SAMPLER_EXISTS",
    "DEADLINE_EXCEEDED": "NO_PROGRESS",
    "INTERNAL": "ENV_FAILED INTERNAL",
}
"""All reasons that servers send, by their status."""

_STATUS: Json = {"do": "status"}


def error_cases() -> list[Case]:
    """Return the cases about errors."""
    pairs = [(code, reason) for code, reasons in _REASONS.items() for reason in reasons.split()]
    batch = sending(recording("parts").messages)

    def failing(rpc: str, status: str, reason: str) -> Json:
        return {"rpc": rpc, "steps": [abort(status, reason)]}

    return [
        Case(
            "reasons-of-calls",
            "errors of every reason",
            [_STATUS] * len(pairs),
            scripts=[failing("GetSampler", *pair) for pair in pairs],
        ),
        Case(
            "reasons-of-streams",
            "streams that fail before their beginning, for every reason",
            [samples(1)] * len(pairs),
            scripts=[failing("ObtainSamples", *pair) for pair in pairs],
        ),
        Case(
            "unknown-reasons",
            "reasons and statuses of a later version",
            [_STATUS, _STATUS, _STATUS],
            scripts=[
                failing("GetSampler", "FAILED_PRECONDITION", "MOON_IN_THE_WRONG_HOUSE"),
                failing("GetSampler", "DATA_LOSS", "INTERNAL"),
                failing("GetSampler", "OUT_OF_RANGE", "SOMETHING_ELSE"),
            ],
            expected={0: {"error": {"reason": "MOON_IN_THE_WRONG_HOUSE"}}, 1: {"error": {"kind": "server"}}},
        ),
        Case(
            "error-of-a-field",
            "an error of the server, with the field, the request's id, and a message beyond ASCII",
            [env(label="größer", end="nowhere"), {**env(), "num_rows": 1 << 30}],
            expected={
                0: {"error": {"reason": "ENV_REFUSED", "kind": "invalid_argument"}},
                1: {"error": {"kind": "invalid_argument"}},
            },
        ),
        Case(
            "no-agent",
            "a call that comes too early, and the same call in time",
            [samples(10), env(), RANDOM, samples(10)],
            expected={0: {"error": {"reason": "NO_AGENT"}}},
        ),
        Case(
            "error-within-a-stream",
            "a stream that fails after some messages, for a reason that is final",
            [samples(1)],
            scripts=[
                {"rpc": "ObtainSamples", "steps": [*batch[:2], abort("INTERNAL", "ENV_FAILED", "environment: no")]}
            ],
            expected={0: {"error": {"reason": "ENV_FAILED"}}},
        ),
        Case(
            "no-account",
            "a stream that ends without its account",
            [samples(1)],
            scripts=[{"rpc": "ObtainSamples", "steps": batch[:-1]}],
            client_errors={0: {}},
        ),
        Case(
            "deadline-of-a-call",
            "a call that takes longer than the client waits",
            [_STATUS, _STATUS],
            {"timeout_seconds": 1},
            faults=[{"fault": "delay", "seconds": 3.0, "rpc": "GetSampler"}],
            client_errors={0: {"kind": "deadline"}},
        ),
        Case(
            "deadline-of-environments",
            "an update of environments that takes longer than the client waits for other answers",
            [env()],
            {"timeout_seconds": 1},
            faults=[{"fault": "delay", "seconds": 2.0, "rpc": "UpdateEnv"}],
        ),
        Case(
            "deadline-of-a-stream",
            "a stream without progress for longer than the client waits",
            [samples(1)],
            {"timeout_seconds": 1},
            scripts=[{"rpc": "ObtainSamples", "steps": [*batch[:2], {"wait": 30}]}],
            client_errors={0: {"kind": "deadline"}},
        ),
    ]


def access_cases() -> list[Case]:
    """Return the cases about TLS and tokens."""
    return [
        Case(
            "tls-and-token",
            "TLS by an authority, and a token",
            [env(), RANDOM, samples(20), _STATUS],
            secure=True,
        ),
        Case(
            "tls-other-authority",
            "a server whose certificate another authority has signed",
            [_STATUS],
            {"ca": "@other_ca"},
            secure=True,
            client_errors={0: {"reason": "TLS_FAILED"}},
        ),
        *(
            Case(
                name,
                about,
                [operation],
                {"token": token},
                secure=True,
                expected={0: {"error": {"kind": "access", "reason": name.upper().replace("-", "_")}}},
            )
            for name, about, operation, token in (
                ("token-missing", "no token", _STATUS, None),
                ("token-invalid", "a wrong token", _STATUS, "rst_wrong"),
                ("token-expired", "a token that has expired", _STATUS, "@expired_token"),
                ("scope-missing", "a token that permits less", RANDOM, "@limited_token"),
            )
        ),
    ]
