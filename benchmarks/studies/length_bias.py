"""Do calls prefer short episodes, if episodes are delivered in the order of their indices, or as they finish?

    python -m benchmarks.studies.length_bias

Half of the episodes have one step, the other half a thousand; 32 rows run them, in 200 calls for at least 4,000 steps.
A sampler that delivers the episodes that finish first, and drops those still running at the end of a call, delivers
too many short ones. By index, a call delivers a function of the lengths alone, as `tests/pool/test_any_workers.py`
shows on a server; here, both rules are simulated with the same lengths.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

NUM_CALLS, NUM_STEPS, NUM_ROWS = 200, 4000, 32


def episode_lengths(seed: int) -> Iterator[int]:
    """Yield lengths of 1 or 1,000 with equal probability."""
    source = random.Random(seed)
    while True:
        yield 1 if source.random() < 0.5 else 1000


def lengths_by_index(seed: int) -> list[int]:
    """Return the lengths that all calls deliver, if each delivers the fewest next episodes that have enough steps."""
    lengths, delivered = episode_lengths(seed), []
    for _ in range(NUM_CALLS):
        num_steps = 0
        while num_steps < NUM_STEPS:
            delivered.append(next(lengths))
            num_steps += delivered[-1]
    return delivered


def lengths_by_arrival(seed: int) -> list[int]:
    """Return the lengths that all calls deliver, if each delivers what finishes first, until there are enough steps."""
    lengths, delivered = episode_lengths(seed), []
    for _ in range(NUM_CALLS):
        running = [next(lengths) for _ in range(NUM_ROWS)]
        remaining = list(running)
        num_steps = 0
        while num_steps < NUM_STEPS:
            elapsed = min(remaining)
            for row in range(NUM_ROWS):
                remaining[row] -= elapsed
                if remaining[row] == 0 and num_steps < NUM_STEPS:
                    delivered.append(running[row])
                    num_steps += running[row]
                    running[row] = remaining[row] = next(lengths)
    return delivered


def main() -> None:
    """Simulate both rules, and print the share of short episodes."""
    for rule, delivered in (("by index", lengths_by_index(0)), ("by arrival", lengths_by_arrival(0))):
        share = delivered.count(1) / len(delivered)
        mean = sum(delivered) / len(delivered)
        print(f"{rule:>10}: {len(delivered)} episodes, {share:.1%} short, mean length {mean:.1f}")
    print("  unbiased: 50.0% short, mean length 500.5")


if __name__ == "__main__":
    main()
