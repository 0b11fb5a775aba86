"""The plan of a sampler's size, with figures of simulated trainers: no pool and no clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollserve_server.pool.plan.scaling import ScalePlan

IDLE_SECONDS = 60.0
LOAD_SECONDS = 10.0
START_SECONDS = 4.0
"""How long added workers take to start in simulations."""


class Simulation:
    """A sampler that follows a plan at once when it shrinks, and after a while when it grows.

    Attributes:
        num_workers: present number of workers.
        numbers: number of workers after each look.
    """

    def __init__(self, min_workers: int, max_workers: int) -> None:
        self.plan = ScalePlan(min_workers, max_workers, IDLE_SECONDS)
        self.num_workers = min_workers
        self.numbers: list[int] = []
        self._now = self._busy_seconds = 0.0
        self._starting: tuple[float, int] | None = None

    def run(self, seconds: float, busy: Callable[[int], float]) -> list[int]:
        """Return the numbers of workers within a time, given how many of a number of workers have work."""
        before = len(self.numbers)
        for _ in range(round(seconds / self.plan.look_seconds)):
            self._now += self.plan.look_seconds
            self._busy_seconds += busy(self.num_workers) * self.plan.look_seconds
            if self._starting is not None and self._starting[0] <= self._now:
                self.num_workers, self._starting = self._starting[1], None
            wanted = self.plan.look(self._now, self.num_workers, self._busy_seconds)
            if wanted < self.num_workers:
                self.num_workers = wanted
            elif wanted > self.num_workers and self._starting is None:
                self._starting = self._now + START_SECONDS, wanted
            self.numbers.append(self.num_workers)
        return self.numbers[before:]


def trainer(sampling_seconds: float, learning_seconds: float) -> Callable[[int], float]:
    """A trainer that samples and learns by turns, many times in ten seconds; one worker samples for that long."""
    return lambda number: number * (sampling_seconds / number) / (sampling_seconds / number + learning_seconds)


def all_busy(number: int) -> float:
    return float(number)


def idle(_: int) -> float:
    return 0.0


def changes(numbers: list[int]) -> Iterator[int]:
    return (after - before for before, after in itertools.pairwise(numbers) if after != before)


bounds = st.tuples(st.integers(1, 8), st.integers(0, 56)).map(lambda pair: (pair[0], sum(pair)))


@given(bounds, st.lists(st.tuples(st.floats(0.1, 200), st.floats(0, 1)), max_size=12))
def test_the_number_keeps_to_its_bounds(limits: tuple[int, int], loads: list[tuple[float, float]]) -> None:
    simulation = Simulation(*limits)
    for seconds, share in loads:
        simulation.run(seconds, lambda number, share=share: number * share)  # type: ignore[misc]
    assert all(limits[0] <= number <= limits[1] for number in simulation.numbers)
    assert limits[0] <= simulation.plan.num_wanted <= limits[1]


@given(bounds, st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_steady_trainer_gets_one_number_that_only_grows(
    limits: tuple[int, int], sampling_seconds: float, learning_seconds: float
) -> None:
    simulation, busy = Simulation(*limits), trainer(sampling_seconds, learning_seconds)
    numbers = simulation.run(1000, busy)
    assert all(change > 0 for change in changes(numbers))
    assert len(set(numbers[-500:])) == 1
    # The workers rest for two fifths of the time, unless there may be no more of them.
    assert busy(numbers[-1]) <= 0.6 * (numbers[-1] + 0.1) or numbers[-1] == limits[1]


@given(bounds)
def test_workers_that_always_have_work_become_as_many_as_there_may_be(limits: tuple[int, int]) -> None:
    numbers = Simulation(*limits).run(300, all_busy)
    assert all(change > 0 for change in changes(numbers))
    assert numbers[-1] == limits[1]


@given(bounds, st.floats(0, 300))
def test_an_idle_sampler_shrinks_after_the_idle_time_and_not_before(limits: tuple[int, int], seconds: float) -> None:
    simulation = Simulation(*limits)
    simulation.run(seconds, all_busy)
    wanted = simulation.plan.num_wanted
    before = simulation.run(IDLE_SECONDS - 2, idle)
    assert not any(change < 0 for change in changes(before))
    assert simulation.plan.num_wanted >= wanted
    assert simulation.run(LOAD_SECONDS + START_SECONDS + 4, idle)[-1] == limits[0]


@given(st.floats(0, 5))
def test_a_short_burst_changes_nothing(seconds: float) -> None:
    simulation = Simulation(1, 8)
    simulation.run(100, idle)
    simulation.run(seconds, all_busy)
    simulation.run(100, idle)
    assert set(simulation.numbers) == {1}


@pytest.mark.parametrize("pause_seconds", [0.0, IDLE_SECONDS / 2])
def test_a_trainer_that_pauses_for_less_than_the_idle_time_keeps_its_workers(pause_seconds: float) -> None:
    simulation = Simulation(1, 4)
    simulation.run(60, all_busy)
    for _ in range(20):
        simulation.run(pause_seconds, idle)
        assert set(simulation.run(20, all_busy)) == {4}


def test_the_number_falls_to_what_a_smaller_load_asks_for() -> None:
    simulation = Simulation(1, 16)
    assert simulation.run(200, all_busy)[-1] == 16
    assert simulation.run(200, lambda _: 3.0)[-1] == 5
    assert simulation.run(200, lambda _: 0.5)[-1] == 1


def test_one_worker_becomes_four_within_half_a_minute() -> None:
    numbers = Simulation(1, 4).run(30, all_busy)
    assert numbers[0] == 1
    assert numbers[-1] == 4


def test_a_sampler_grows_by_more_than_one_worker_at_a_time() -> None:
    numbers = Simulation(1, 64).run(150, all_busy)
    assert list(dict.fromkeys(numbers)) == [1, 2, 4, 7, 12, 20, 34, 57, 64]
