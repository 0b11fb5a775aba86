"""Whether calls prefer short episodes: by the order of the indices, and by who finishes first.

    python benchmarks/length_bias.py

Episodes of which half have one step and half a thousand, in 200 calls of at least 4,000 steps by 32 rows. What a call
delivers by the order of the indices is a function of the lengths alone, which `tests/test_any_workers.py` shows on a
server; here both rules are played through with the same lengths. Who takes what finishes first, and drops what is still
running at the end of a call, as the usual samplers do, gets more short ones than there are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

NUM_CALLS, NUM_STEPS, NUM_ROWS = 200, 4000, 32


def episode_lengths(seed: int) -> Iterator[int]:
    """Lengths as a fair coin says."""
    source = random.Random(seed)
    while True:
        yield 1 if source.random() < 0.5 else 1000


def by_index(seed: int) -> list[int]:
    """The lengths of what all calls deliver: each the shortest run of episodes that has enough steps."""
    lengths, delivered = episode_lengths(seed), []
    for _ in range(NUM_CALLS):
        num_steps = 0
        while num_steps < NUM_STEPS:
            delivered.append(next(lengths))
            num_steps += delivered[-1]
    return delivered


def by_arrival(seed: int) -> list[int]:
    """The lengths of what all calls deliver: each what finishes first, until that has enough steps."""
    lengths, delivered = episode_lengths(seed), []
    for _ in range(NUM_CALLS):
        running = [next(lengths) for _ in range(NUM_ROWS)]
        left = list(running)
        num_steps = 0
        while num_steps < NUM_STEPS:
            pause = min(left)
            for row in range(NUM_ROWS):
                left[row] -= pause
                if left[row] == 0 and num_steps < NUM_STEPS:
                    delivered.append(running[row])
                    num_steps += running[row]
                    running[row] = left[row] = next(lengths)
    return delivered


def main() -> None:
    """Plays both rules, and prints what comes of them."""
    for name, delivered in (("by index", by_index(0)), ("by arrival", by_arrival(0))):
        share = delivered.count(1) / len(delivered)
        mean = sum(delivered) / len(delivered)
        print(f"{name:>10}: {len(delivered)} episodes, {share:.1%} short, mean length {mean:.1f}")
    print("in truth half of them are short, and the mean length is 500.5")


if __name__ == "__main__":
    main()
