"""Tables of a run."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping

from faults.chaos.run import Outcome
from faults.chaos.shares import Shares
from faults.chaos.story import Story
from rich.console import Console
from rich.table import Table

__all__ = ["longest_waits", "print_report"]

_MAX_SHOWN = 20
_MIN_WIDTH = 150


def longest_waits(story: Story) -> Mapping[str, tuple[int, float]]:
    """Return, for each kind of fault, the number of faults and the longest time from one to the next message."""
    waits: dict[str, list[float]] = defaultdict(list)
    for event in story.main:
        if event["event"] == "fault":
            at = bisect.bisect(story.message_times, event["time"])
            if at < len(story.message_times):
                waits[event["kind"]].append(story.message_times[at] - event["time"])
            else:
                waits[event["kind"]].append(0.0)
    return {kind: (len(seconds), max(seconds)) for kind, seconds in sorted(waits.items())}


def print_report(outcome: Outcome) -> None:
    """Print the faults, the calls, the hostile tenant's attacks, the processes, what is wrong, and the shares."""
    story, verdict, wrong = outcome.story, outcome.verdict, outcome.wrong
    console = Console()
    if console.width < _MIN_WIDTH:
        console = Console(width=_MIN_WIDTH)
    faults = _table("faults", "kind", "injected", "longest time to the next message")
    for kind, (count, seconds) in longest_waits(story).items():
        faults.add_row(kind, str(count), f"{seconds:.2f} s")
    calls = _table("calls", "kind", "made", "outcomes")
    for kind, outcomes in sorted(_outcomes(story).items()):
        calls.add_row(kind, str(outcomes.total()), _listed(outcomes))
    processes = _table("processes", "kind", "number", "resident MB", "threads", "files")
    for growth in outcome.growths:
        pairs = (growth.count, growth.num_threads, growth.num_files)
        count, threads, files = (f"{before} → {after}" for before, after in pairs)
        memory = " → ".join(f"{num_bytes / 1e6:.0f}" for num_bytes in growth.rss_bytes)
        processes.add_row(growth.name, count, memory, threads, files)
    attacks = _table("the hostile tenant", "attack", "tried", "answers")
    for attack, answers in sorted(outcome.answers.items()):
        attacks.add_row(attack, str(answers.total()), _listed(answers))
    for table in (faults, calls, *([attacks] if outcome.answers else []), processes):
        console.print(table)
    console.print(
        f"compared: {verdict.num_compared_calls} calls, {verdict.num_compared_steps} steps, "
        f"{verdict.num_compared_bytes / 1e6:.1f} MB; without a reference: {verdict.num_unknown_calls} calls; "
        f"wrong: {len(wrong)}"
    )
    for text in wrong[:_MAX_SHOWN]:
        console.print(f"wrong: {text}", markup=False, highlight=False)
    if outcome.shares is not None:
        console.print(_shares(outcome.shares))


def _shares(shares: Shares) -> str:
    """Return a sentence about the throughput beside the hostile tenant."""
    return (
        f"beside the hostile tenant: {sum(shares.beside):,.0f} steps/s of {len(shares.beside)} clients, "
        f"{sum(shares.beside) / sum(shares.alone):.2f} of the {sum(shares.alone):,.0f} without it; "
        f"the client with the least keeps {min(shares.kept):.2f}, expected at least {shares.bound:.2f} "
        f"(0.8 of a fair share, {shares.fair:.2f})"
    )


def _outcomes(story: Story) -> Mapping[str, Counter[str]]:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for call in story.calls:
        outcomes[call.request["kind"]][call.outcome or "client killed"] += 1
    for event in story.main:
        if event["event"] == "updated":
            outcomes[f"update of {event['kind']}"][event["outcome"]] += 1
    return outcomes


def _listed(outcomes: Counter[str]) -> str:
    return ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    return table
