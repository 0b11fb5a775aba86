"""Checks of a run: calls delivered what their references deliver, and no step twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from faults.chaos.chains import chains_of
from faults.chaos.digests import slice_digest, state_digest
from faults.chaos.references import References
from faults.chaos.story import RecordedCall, Story

import rollserve

__all__ = [
    "EXPECTED_OUTCOMES",
    "Verdict",
    "check_story",
    "delivered_twice",
    "differences",
    "different_steps",
    "wrong_ends",
]

EXPECTED_OUTCOMES = frozenset(
    {
        "",  # the client was killed
        "ok",
        "cancelled",
        "AGENT_MISFIT",
        "ENVIRONMENT_VERSION",
        "NO_AGENT",
        "POLICY_VERSION",
        "ROW_STEP_COUNT",
        "SAMPLER_RUN",
        "SERVER_STOPPING",
        "UNAVAILABLE",
        "WORKER_COUNT",
        "WORKER_HUNG",
        "WORKER_LOST",
        "WORKER_LOST_AGAIN",
    }
)
"""Outcomes of calls that faults explain."""


@dataclass
class Verdict:
    """Findings of the checks.

    Attributes:
        wrong: a sentence for each problem.
        num_compared_calls, num_compared_steps, num_compared_bytes: data that equals its reference.
        num_unknown_calls: number of calls without a reference, because their beginning or history is unknown.
    """

    wrong: list[str] = field(default_factory=list)
    num_compared_calls: int = 0
    num_compared_steps: int = 0
    num_compared_bytes: int = 0
    num_unknown_calls: int = 0


def check_story(story: Story, references: References) -> Verdict:
    """Check all calls of a run."""
    verdict = Verdict()
    for call in story.calls:
        verdict.wrong += wrong_ends(call)
    verdict.wrong += delivered_twice(story.calls)
    comparison = _Comparison(story, references, verdict)
    for call in story.calls:
        if call.request["kind"] in ("samples", "exact", "session", "evaluation", "population"):
            comparison.compare(call)
    for chain in chains_of(story.calls):
        for call in chain.calls:
            comparison.compare(call)
        verdict.num_unknown_calls += sum(bool(call.segments) for call in chain.unknown)
    return verdict


def wrong_ends(call: RecordedCall) -> Iterator[str]:
    """Yield what is wrong with the outcome and the account of a call."""
    text, field = call.end.get("text", ""), call.end.get("field", "")
    rejected = call.outcome == "INVALID_VALUE" and (
        (field.startswith("options.exploration") and "deterministic" in call.request["options"])
        or (field.startswith("parameters") and call.request["kind"] == "population")  # the agent was replaced meanwhile
    )
    # The run gives workers small buffers.
    rejected |= call.outcome == "FRAGMENTS_TOO_LARGE" and call.request["kind"] == "fragments"
    if call.outcome not in EXPECTED_OUTCOMES and not rejected:
        yield f"{call}: {text}"
    account = call.end.get("account")
    if account is None:
        return
    num_accounted = account["num_steps"] + account["num_kept_steps"] + account["num_dropped_steps"]
    if account["num_carried_steps"] + account["num_simulated_steps"] != num_accounted:
        yield f"{call}: the account does not add up: {account}"
    if account["num_steps"] != call.end["num_steps"]:
        yield f"{call}: the account has {account['num_steps']} steps, the messages {call.end['num_steps']}"


def delivered_twice(calls: Sequence[RecordedCall]) -> Iterator[str]:
    """Yield steps of the sampler's own sequences that more than one call delivered.

    Fragment calls count only if they succeeded: a failed one moves no rows.
    """
    delivered: dict[object, Counter[int]] = defaultdict(Counter)
    for call in calls:
        kind = call.request["kind"]
        if call.request["seed"] is not None or call.beginning is None or kind not in ("samples", "exact", "fragments"):
            continue
        if kind == "fragments" and call.outcome != "ok":
            continue
        for segment in call.segments:
            key = call.beginning.run, call.beginning.seed, kind == "fragments", segment.index
            delivered[key].update(range(segment.first_step, segment.first_step + segment.length))
    for key, steps in delivered.items():
        step, times = steps.most_common(1)[0]
        if times > 1:
            yield f"(run, seed, fragments, episode) {key}: step {step} was delivered {times} times"


class _Comparison:
    """Comparison of calls with references, which adds to a verdict."""

    def __init__(self, story: Story, references: References, verdict: Verdict) -> None:
        self._names = story.names
        self._references = references
        self._verdict = verdict

    def compare(self, call: RecordedCall) -> None:
        """Compare a call, if its beginning and its versions are known."""
        if call.beginning is None:
            self._verdict.num_unknown_calls += bool(call.segments)
            return
        env = self._names.get((call.beginning.run, "env", call.beginning.env))
        agent = self._names.get((call.beginning.run, "agent", call.beginning.policy))
        if call.request["kind"] == "session":
            agent = "client"
        if agent is None or env is None:
            self._verdict.num_unknown_calls += 1
            return
        try:
            found = list(self._differences(call, agent, env))
        except rollserve.RollserveError as error:
            found = [f"the reference failed: {error}"]
        if found:
            self._verdict.wrong += [f"{call} ({agent}, {env}): {text}" for text in found]
        else:
            self._verdict.num_compared_calls += 1
            self._verdict.num_compared_steps += call.num_steps
            self._verdict.num_compared_bytes += call.num_bytes

    def _differences(self, call: RecordedCall, agent: str, env: str) -> Iterator[str]:
        kind, is_whole = call.request["kind"], call.outcome == "ok"
        if kind == "session":
            steps, batches = self._references.session(call, env)
            yield from different_steps(call, steps, is_whole=is_whole)
            if batches:
                reference = rollserve.EpisodeBatch.concatenate(*batches)
                yield from differences(call, reference, is_whole=is_whole)
            return
        if kind in ("evaluation", "population"):
            if not is_whole:
                return
            outcomes, episodes = self._references.evaluation(call, agent, env)
            if outcomes != call.end["outcomes"]:
                yield "returns or lengths differ"
            if episodes is not None:
                yield from differences(call, episodes, is_whole=True)
            return
        number = call.request["number"]
        if kind == "samples" and not is_whole:
            number = call.num_steps
        if number and (call.segments or kind == "fragments"):
            yield from differences(call, self._references.episodes(call, agent, env, number), is_whole=is_whole)


def different_steps(call: RecordedCall, reference: Sequence[str], *, is_whole: bool) -> Iterator[str]:
    """Yield the first step of a session that differs from its reference, or that is missing if `is_whole` is true."""
    for number, (shown, expected) in enumerate(zip_longest(call.steps, reference)):
        if shown != expected and (is_whole or shown is not None):
            yield f"step {number} differs: expected {expected}, got {shown}"
            return


def differences(call: RecordedCall, reference: rollserve.EpisodeBatch, *, is_whole: bool) -> Iterator[str]:
    """Yield the first difference between a call and its reference, or the beginning of it if `is_whole` is false."""
    position, offset = 0, 0
    for segment in call.segments:
        if position == len(reference):
            yield f"a segment too many: {segment}"
            return
        stop = offset + segment.length
        if stop > int(reference.lengths[position]):
            yield f"a segment too long: {segment}"
            return
        if slice_digest(reference, position, offset, stop) != segment.digest:
            yield f"expected episode {reference.episode_indices[position]} from step {offset}, got {segment}"
            return
        if segment.state not in (None, state_digest(reference, position, offset)):
            yield f"recurrent states differ: {segment}"
            return
        offset = stop
        if stop == int(reference.lengths[position]):
            position, offset = position + 1, 0
    if is_whole and (position, offset) != (len(reference), 0):
        yield f"expected {len(reference)} segments, got {position} and {offset} steps"
