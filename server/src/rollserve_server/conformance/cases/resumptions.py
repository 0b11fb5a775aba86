"""Cases about streams that break, and are taken up again."""

from __future__ import annotations

from rollserve_server.conformance.cases.case import Case
from rollserve_server.conformance.cases.parts import RANDOM, abort, breaking, env, fragments, samples
from rollserve_server.conformance.recordings import recording, sending

__all__ = ["resumption_cases"]


def resumption_cases() -> list[Case]:
    """Return the cases."""
    large = env(observations="large", max_length=30)
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 2, "options": {"seed": "3"}}
    not_reproducible = [
        *sending((recording("unknown").messages[0], recording("parts").messages[1])),
        abort("UNAVAILABLE", "", "connection lost"),
    ]
    return [
        Case(name, about, [env, RANDOM, operation], faults=faults, resumes=True)
        for name, about, env, operation, faults in (
            ("resume-at-start", "a stream that breaks before its first batch", env(), samples(), breaking(0)),
            ("resume-at-end", "a stream that breaks before its account", env(), samples(), breaking(1000)),
            ("resume-samples", "a stream that breaks within an episode", large, samples(40), breaking(3)),
            ("resume-twice", "a stream that breaks again and again", large, samples(60), breaking(2, 3)),
            ("resume-exact-episodes", "exact episodes whose stream breaks", large, exact, breaking(4)),
            ("resume-fragments", "fragments whose stream breaks", large, fragments(48), breaking(5)),
        )
    ] + [
        Case(
            "resume-refused",
            "a broken stream that cannot be taken up again, because its class is not EPISODE or BLOCK",
            [samples(1)],
            scripts=[{"rpc": "ObtainSamples", "steps": not_reproducible}],
            expected={0: {"error": {"kind": "unavailable"}}},
        )
    ]
