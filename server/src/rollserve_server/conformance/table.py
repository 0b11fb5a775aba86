"""The table of what several clients pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rollserve_server.conformance.cases import CASES

if TYPE_CHECKING:
    from rollserve_server.conformance.kit import Outcome

__all__ = ["table_of"]

_SIGNS = {"passed": "✓", "failed": "✗"}


def table_of(clients: Mapping[str, Sequence[Outcome]]) -> str:
    """Return a table in Markdown: a row for each case, a column for each client, and notes on what one lacks."""
    notes: dict[str, int] = {}
    by_client = {name: {outcome.case: outcome for outcome in outcomes} for name, outcomes in clients.items()}
    lines = [f"| | case | {' | '.join(clients)} |", f"|---|---|{'---|' * len(clients)}"]
    for number, case in enumerate(CASES.values(), start=1):
        signs = [_sign(outcomes.get(case.name), notes) for outcomes in by_client.values()]
        lines.append(f"| {number} | `{case.name}`: {case.about} | {' | '.join(signs)} |")
    return "\n".join([*lines, *(f"\n{number}. {text}" for text, number in notes.items())])


def _sign(outcome: Outcome | None, notes: dict[str, int]) -> str:
    if outcome is None:
        return ""
    if outcome.verdict == "unsupported":
        return f"- ({notes.setdefault(outcome.text, len(notes) + 1)})"
    return _SIGNS[outcome.verdict]
