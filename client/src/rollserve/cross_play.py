"""Policies against each other in the seats of an environment: mean returns, win rates, and ratings."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.evaluation import PolicyVersion, means_over_agents
from rollserve_wire.checks import check_integer, check_type, type_error
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.policy_map import PolicyMap
from rollserve_wire.representations import briefly
from rollserve_wire.summaries import Summary

if TYPE_CHECKING:
    from rollserve.evaluation import Evaluation
    from rollserve.options import EvaluationOptions

__all__ = ["CrossPlay", "Pairings", "Player", "Seat"]


Player = str | tuple[str, int]
"""A policy, or a pair of its name and a version as in a policy map."""

Seat = str | int | tuple[str | int, ...]
"""The agents that a player acts for: a key of a policy map, or several."""

_Z = statistics.NormalDist().inv_cdf(0.975)
_ELO_SCALE = 400 / math.log(10)
"""Elo points of a factor of e in the odds: 400 points are odds of 10 to 1."""
_MAX_STEPS, _MAX_HALVINGS = 100, 50
_LABEL_SPACES = "  "


@briefly
@dataclass(frozen=True)
class Pairings:
    """Games to play: each player, or each of the opponents, against each player.

    Attributes:
        lineups: a map from agents to policies for each pairing.
        seats: the agents of both seats.
        players: the players and the opponents, each once.
    """

    lineups: tuple[PolicyMap, ...]
    seats: tuple[Seat, Seat]
    players: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, players: Sequence[Player], opponents: Sequence[Player] | None, seats: tuple[Seat, Seat]) -> Pairings:
        """Return the pairings of the arguments of `Sampler.cross_play`.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidArgumentError: too few players, one twice, or other than two seats.
        """
        first = second = _checked_players("players", players)
        if not isinstance(seats, Sequence) or isinstance(seats, str):
            raise type_error("seats", "a pair of keys of a policy map, or of tuples of them", seats)
        if len(seats) != 2:
            raise InvalidArgumentError.of("seats", expected="two seats", got=len(seats))
        keys = [key for seat in seats for key in _keys(seat)]
        if len(set(keys)) < len(keys):
            raise InvalidArgumentError.of("seats", expected="seats whose keys differ", got=repr(tuple(seats)))
        if opponents is None:
            if len(first) < 2:
                raise InvalidArgumentError.of("players", expected="at least two players", got=len(first))
            # Both orders, because seats differ.
            pairs = [pair for each in itertools.combinations(first, 2) for pair in (each, each[::-1])]
        else:
            second = _checked_players("opponents", opponents)
            pairs = list(itertools.product(first, second))
        lineups = tuple(
            PolicyMap.of(
                {key: player for seat, player in zip(seats, pair, strict=True) for key in _keys(seat)}, "seats"
            )
            for pair in pairs
        )
        return cls(lineups, (seats[0], seats[1]), tuple(dict.fromkeys([*first, *second])))

    def options(self, options: EvaluationOptions) -> EvaluationOptions:
        """Return options of an evaluation with the lineups.

        Raises:
            TypeError: options that have a map.
        """
        if options.get("policy_map") is not None:
            raise type_error("policy_map", "none beside players", options["policy_map"])
        return {**options, "policy_map": self.lineups}

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[None]:
        """Name the seats if the server refuses the lineups in the block because of the environment's agents.

        Raises:
            InvalidArgumentError: the seats leave out an agent, or have a key that no agent has.
        """
        try:
            yield
        except InvalidArgumentError as error:
            if not re.match(r"options\.policy_maps\[\d+\]\.rules", error.field):
                raise
            expected = "keys of agents that leave out none"
            raise InvalidArgumentError.of("seats", expected=expected, got=repr(self.seats), hint=str(error)) from None

    def results(self, evaluation: Evaluation[Any]) -> CrossPlay:
        """Return the results of an evaluation with the lineups.

        Raises:
            InvalidArgumentError: as of `CrossPlay.of`, or two players are the same version of a policy.
        """
        results = CrossPlay.of(evaluation, self.seats)
        if len(results.players) < len(self.players):
            got = f"{list(self.players)}, which are only {', '.join(map(str, results.players))}"
            raise InvalidArgumentError.of("players", expected="versions of policies that differ", got=got)
        return results

    def num_episodes(self, num_per_pairing: int) -> int:
        """Return the number of episodes of an evaluation in which each pairing has so many."""
        check_integer("num_episodes", num_per_pairing, 32, signed=False)
        return num_per_pairing * len(self.lineups)


@briefly
@dataclass(frozen=True, eq=False)
class CrossPlay:
    """Results of K players against each other, from an evaluation with two seats.

    A player's return in an episode is the mean over the agents of its seat. It wins if that is larger than its
    opponent's, and a draw is half a win. All intervals have a confidence of 95 %. The printed table has each win rate
    with its distance to the farther end of its interval.

    >>> table = sampler.cross_play(["main", ("main", -1), "random"], 100)  # doctest: +SKIP
    >>> print(table)  # doctest: +SKIP
    win rate      main@9       main@7     random@1          Elo
    main@9                0.66 ± 0.07  0.99 ± 0.03   +310 ±  60
    main@7   0.34 ± 0.07               0.97 ± 0.03   +190 ±  58
    random@1 0.01 ± 0.03  0.03 ± 0.03                -500 ± 100

    Attributes:
        players: versions of the policies that played.
        num_episodes: (K, K) int64, number of episodes of each player, by row, against each opponent, by column; in
            both seats.
        returns: (K, K) summaries of the returns of each player against each opponent; None where they did not meet.
        win_rates: (K, K) float64, wins and half of the draws as a part of the episodes; NaN where they did not meet.
        win_rate_intervals: (K, K, 2) float64, interval of each win rate by Wilson's score, which takes no draw for
            certain: with draws it is wider than needed. E. B. Wilson, "Probable inference, the law of succession, and
            statistical inference", 1927.
        elo: (K,) float64, ratings with a mean of 0. A player wins against another with probability 1 / (1 + 10^(-d /
            400)), where d is the difference of their ratings. They are the most likely ones, given all episodes and one
            more draw of each pair that met, without which a player that always wins would have no finite rating; so the
            order of the episodes does not matter. R. A. Bradley, M. E. Terry, "Rank analysis of incomplete block
            designs", 1952; A. E. Elo, "The Rating of Chessplayers", 1978.
        elo_margins: (K,) float64, half of the interval of each rating, by the curvature of the likelihood.
        evaluation: the evaluation, with the returns of each episode.
    """

    players: tuple[PolicyVersion, ...]
    num_episodes: np.ndarray
    returns: tuple[tuple[Summary | None, ...], ...]
    win_rates: np.ndarray
    win_rate_intervals: np.ndarray
    elo: np.ndarray
    elo_margins: np.ndarray
    evaluation: Evaluation[Any]

    @classmethod
    def of(cls, evaluation: Evaluation[Any], seats: tuple[Seat, Seat] = (0, 1)) -> CrossPlay:
        """Return the results of an evaluation in which policies met in two seats.

        Args:
            evaluation: evaluation in an environment with many agents, usually with a `policy_map` for each pairing.
            seats: the agents of both seats: each a key of a policy map, or a tuple of them.

        Raises:
            InvalidArgumentError: an environment with one agent, seats without agents, a seat in which several policies
                acted at once, or one in which no agent made a step, or a return that is NaN.
        """
        positions, returns = _by_seat(evaluation, seats)
        assert evaluation.agent_returns is not None  # noqa: S101  # `_by_seat` has checked it
        players = evaluation.agent_returns.policies
        num_players = len(players)
        own: list[list[list[np.ndarray]]] = [[[] for _ in players] for _ in players]
        wins = np.zeros((num_players, num_players))
        scores = (1 + (returns[:, 0] > returns[:, 1]) - (returns[:, 0] < returns[:, 1]).astype(np.float64)) / 2
        for seat in range(2):
            score = scores if seat == 0 else 1 - scores
            for player, opponent in {(int(pair[seat]), int(pair[1 - seat])) for pair in positions}:
                met = (positions[:, seat] == player) & (positions[:, 1 - seat] == opponent)
                own[player][opponent].append(returns[met, seat])
                wins[player, opponent] += score[met].sum()
        counts = np.array([[sum(map(len, values)) for values in row] for row in own])
        np.fill_diagonal(counts, 0)  # against itself, a policy only wins as often as it loses
        np.fill_diagonal(wins, 0)
        elo, margins = _ratings(wins, counts)
        rates = np.where(counts > 0, wins / np.maximum(counts, 1), np.nan)
        return cls(
            players=players,
            num_episodes=counts,
            returns=tuple(
                tuple(Summary.of(np.concatenate(each)) if count else None for each, count in zip(*row, strict=True))
                for row in zip(own, counts, strict=True)
            ),
            win_rates=rates,
            win_rate_intervals=_wilson(rates, counts),
            elo=elo,
            elo_margins=margins,
            evaluation=evaluation,
        )

    def __str__(self) -> str:
        names = [str(player) for player in self.players]
        rows = [["win rate", *names, "Elo"]]
        for row, name in enumerate(names):
            # The farther end of the interval, which is not symmetric.
            margins = np.abs(self.win_rate_intervals[row] - self.win_rates[row][:, None]).max(axis=1)
            rates = [
                "" if math.isnan(rate) else f"{rate:.2f} ± {margin:.2f}"
                for rate, margin in zip(self.win_rates[row], margins, strict=True)
            ]
            rows.append([name, *rates, f"{self.elo[row]:+.0f} ± {self.elo_margins[row]:.0f}"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for first, *others in rows:
            cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
            lines.append(_LABEL_SPACES.join([f"{first:{widths[0]}}", *cells]))
        return "\n".join(lines)


def _checked_players(name: str, players: Sequence[Player]) -> list[tuple[str, int]]:
    """Return players as pairs (policy, version); the version of a policy alone is 0."""
    check_type(name, players, Sequence, "a sequence of policies")
    if isinstance(players, str):
        raise type_error(name, "a sequence of policies", players)
    for position, player in enumerate(players):
        if not isinstance(player, str | tuple):
            raise type_error(f"{name}[{position}]", "a policy, or a pair (policy, version)", player)
    pairs: list[Any] = [player if isinstance(player, tuple) else (player, 0) for player in players]
    if not pairs or len(set(pairs)) < len(pairs):
        raise InvalidArgumentError.of(name, expected="players that differ, at least one", got=list(players))
    return pairs


def _keys(seat: Seat) -> tuple[str | int, ...]:
    return seat if isinstance(seat, tuple) else (seat,)


def _by_seat(evaluation: Evaluation[Any], seats: Sequence[Seat]) -> tuple[np.ndarray, np.ndarray]:
    """Return which policy acted in each seat of each episode, (N, 2), and the mean return of its agents, (N, 2)."""
    found = evaluation.agent_returns
    if found is None:
        expected = "one in an environment with many agents"
        raise InvalidArgumentError.of("evaluation", expected=expected, got="one with a single agent")
    keys: dict[Any, str] = {key: str(position) for position, seat in enumerate(seats) for key in _keys(seat)}
    seat_map = PolicyMap.of(keys, "seats")
    rules = seat_map.rules_of(found.agents)
    owners = np.array([-1 if rule is None else int(seat_map.rules[rule].choices[0].policy) for rule in rules])
    positions, returns = np.empty((len(found), len(seats)), np.int64), np.empty((len(found), len(seats)))
    for seat in range(len(seats)):
        columns = np.flatnonzero(owners == seat)
        if not len(columns):
            raise InvalidArgumentError.of(
                "seats", expected=f"keys of agents among {list(found.agents)}", got=repr(seats[seat])
            )
        acted = found.policy_positions[:, columns]
        positions[:, seat], lowest = acted.max(axis=1), np.where(acted < 0, np.iinfo(np.int64).max, acted).min(axis=1)
        if (positions[:, seat] != lowest).any():
            raise InvalidArgumentError.of(
                "seats",
                expected="one policy for all agents of a seat, of which one makes a step",
                got=repr(seats[seat]),
            )
        returns[:, seat] = means_over_agents(found.returns[:, columns], acted >= 0)
    for episode, seat in np.argwhere(np.isnan(returns))[:1]:
        got = f"NaN for {found.policies[positions[episode, seat]]} in the episode at position {episode}"
        raise InvalidArgumentError.of("evaluation", expected="returns that are numbers", got=got)
    return positions, returns


def _wilson(rates: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the score intervals of rates, (K, K, 2), for numbers of episodes; NaN without episodes."""
    numbers = np.where(counts > 0, counts, np.nan)
    center = (rates + _Z**2 / (2 * numbers)) / (1 + _Z**2 / numbers)
    half = _Z * np.sqrt(rates * (1 - rates) / numbers + _Z**2 / (4 * numbers**2)) / (1 + _Z**2 / numbers)
    return np.stack([center - half, center + half], axis=-1)


def _ratings(wins: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely Elo ratings and half of their intervals, given (K, K) wins and episodes.

    Newton's method on the log-likelihood, which is concave; a step that lowers it is halved.
    """
    met = counts > 0
    wins, counts = wins + met / 2, counts + met

    def likelihood(strengths: np.ndarray) -> float:
        return -float((wins * np.logaddexp(0, strengths[None] - strengths[:, None]))[met].sum())

    strengths = np.zeros(len(wins))
    best = likelihood(strengths)
    for _ in range(_MAX_STEPS):
        chances = 1 / (1 + np.exp(strengths[None] - strengths[:, None]))
        step = np.linalg.pinv(_information(chances, counts)) @ (wins - counts * chances).sum(axis=1)
        for _ in range(_MAX_HALVINGS):
            value = likelihood(strengths + step)
            if value >= best:
                break
            step /= 2
        strengths, best = strengths + step, value
        if np.abs(step).max(initial=0) < 1e-9:
            break
    strengths -= strengths.mean() if len(strengths) else 0
    chances = 1 / (1 + np.exp(strengths[None] - strengths[:, None]))
    variances = np.diag(np.linalg.pinv(_information(chances, counts)))
    return strengths * _ELO_SCALE, _Z * np.sqrt(variances) * _ELO_SCALE


def _information(chances: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return Fisher's information about strengths whose mean is 0, (K, K)."""
    weights = counts * chances * (1 - chances)
    information: np.ndarray = np.diag(weights.sum(axis=1)) - weights
    return information
