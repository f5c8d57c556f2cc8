"""A game of two moves whose right credit is known: all its games, each as often as it is likely.

Player 0 moves, then player 1, and a matrix says what both are paid. What a move is worth is the
mean return with it, less the mean over the moves that its player might have made instead, both over
the other player's policy. `python tests/exact_game.py` prints the table of docs/teams.md.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hanabi_grpo.envs import registry
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import build_micro_batches
from hanabi_grpo.training.estimators import EstimatorContext, make_estimator
from hanabi_grpo.training.estimators.returns import discounted_return
from hanabi_grpo.training.learned.credit import Credits
from hanabi_grpo.training.learned.heads import PlayerTurns, TurnPlace
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.updates import batch_log_ratios, batch_weights, sum_log_ratios
from hanabi_grpo.types import Episode
from made_batches import made_cut
from made_games import made_episode, made_turn

NAMES = ("player_0", "player_1")
NUM_MOVES = 3
NUM_CELLS = NUM_MOVES * NUM_MOVES
SETUP = registry.setup("hanabi", {"preset": "laptop"})
SPECS = {SETUP.spec.hash: SETUP.spec}
PARTS = 8
"""Probabilities are multiples of 1 / 8, so that 64 games are all games, each as often as likely."""
FIRST_TOKEN = 10
"""The token of the first move; the others follow."""

Credit = dict[tuple[int, int, int], float]
"""By player, what it saw (0, or the other's move) and its move."""


@dataclass(frozen=True)
class MatrixGame:
    """A matrix, and both players' policies."""

    name: str
    payoffs: tuple[tuple[float, ...], ...]
    """By player 0's move and player 1's."""
    is_seen: bool
    """Whether player 1 sees player 0's move."""
    same_step: bool = False
    """Whether both move in the same step of the game."""
    first: tuple[int, ...] = (4, 3, 1)
    """Player 0's policy, in `PARTS`."""
    second: tuple[int, ...] = (2, 2, 4)
    """Player 1's, whatever it saw."""

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Both moves of every game, of 64."""
        pairs = []
        for first, second in itertools.product(range(NUM_MOVES), repeat=2):
            pairs += [(first, second)] * (self.first[first] * self.second[second])
        return pairs

    @cached_property
    def episodes(self) -> list[Episode]:
        """The games of `pairs`, one group."""
        episodes = []
        for number, (first, second) in enumerate(self.pairs):
            paid = ({"score": self.payoffs[first][second]},) * 2
            seen = (1, FIRST_TOKEN + first) if self.is_seen else (1,)
            turns = [
                made_turn(0, FIRST_TOKEN + first, prompt_ids=(1,)),
                replace(made_turn(1, FIRST_TOKEN + second, prompt_ids=seen), rewards=paid),
            ]
            numbered = [replace(turn, step=0 if self.same_step else turn.player) for turn in turns]
            episodes.append(made_episode(*numbered, game=number, spec_hash=SETUP.spec.hash))
        return episodes

    def seen(self, player: int, pair: tuple[int, int]) -> int:
        """Return what a player saw before its move."""
        return pair[0] if player == 1 and self.is_seen else 0

    def mean_credit(
        self, credits: Sequence[Sequence[float]], weights: Sequence[float] | None = None
    ) -> Credit:
        """Return the mean credit of each move, less that of its player in the same place.

        Args:
            credits: Per player and game.
            weights: Of the games, for a team that has moved; None: 1.
        """
        weights = weights or [1.0] * len(self.pairs)
        means: Credit = {}
        for player, own in enumerate(credits):
            sums: dict[tuple[int, int], list[float]] = {}
            for pair, credit, weight in zip(self.pairs, own, weights, strict=True):
                place = (self.seen(player, pair), pair[player])
                total = sums.setdefault(place, [0.0, 0.0])
                total[0] += weight * credit
                total[1] += weight
            for seen in {seen for seen, _ in sums}:
                here = {move: total for (own_seen, move), total in sums.items() if own_seen == seen}
                mean = sum(total for total, _ in here.values()) / sum(w for _, w in here.values())
                for move, (total, weight) in here.items():
                    means[player, seen, move] = total / weight - mean
        return means

    def returns(self) -> list[list[float]]:
        """Return per player what each game paid."""
        return [
            [discounted_return(game, player, 1.0) for game in self.episodes] for player in (0, 1)
        ]

    def true_credit(self) -> Credit:
        """Return what each move is worth."""
        return self.mean_credit(self.returns())


SUM = MatrixGame(
    name="sum",
    payoffs=((5, 3, 4), (3, 1, 2), (2, 0, 1)),
    is_seen=False,
)
PAIR = MatrixGame(
    name="pair",
    payoffs=((4, 0, 0), (0, 4, 0), (0, 0, 4)),
    is_seen=False,
)
SEEN_SUM = replace(SUM, name="sum, the first move seen", is_seen=True)
SEEN_PAIR = replace(PAIR, name="pair, the first move seen", is_seen=True)
SAME_STEP_PAIR = replace(PAIR, name="pair, both in one step", same_step=True)
GAMES = (SUM, SEEN_SUM, PAIR, SEEN_PAIR)


def features(game: MatrixGame) -> list[PlayerTurns]:
    """Return features that show all that a model could know: place and move, place, move."""
    turns = []
    for player, name in enumerate(NAMES):
        rows = []
        for pair in game.pairs:
            seen = game.seen(player, pair)
            rows.append((NUM_MOVES * seen + pair[player], seen, pair[player]))
        one_hot = torch.nn.functional.one_hot(torch.tensor(rows), NUM_CELLS).float()
        normalized = torch.nn.functional.layer_norm(one_hot, (NUM_CELLS,))
        places = [TurnPlace(number, player) for number in range(len(game.pairs))]
        turns.append(PlayerTurns(player=name, places=places, features=normalized.flatten(1)))
    return turns


def learned_credits(game: MatrixGame, name: str, steps: int, seed: int = 0) -> list[list[float]]:
    """Return per player and game the advantage that an estimator learned from all games gives."""
    groups = [game.episodes]
    learned = Credits(Settings(advantage=name, seed=seed), NAMES, SPECS, NUM_CELLS)
    for _ in range(steps):
        values = learned.observe(groups, features(game)).values
    estimator = make_estimator(name, scale="none")
    context = EstimatorContext(values=values)
    credits = []
    for player in (0, 1):
        found = estimator.advantages(game.episodes, player, context)
        credits.append([value for [value] in found])
    return credits


def log_policy(parts: Sequence[int]) -> list[float]:
    return [math.log(part / PARTS) for part in parts]


def batches(game: MatrixGame, *, with_steps: bool) -> dict[str, MicroBatch]:
    """Return each player's games as one micro-batch, with the logprobs of the old policies."""
    made = build_micro_batches(
        [game.episodes],
        trained_seats=("player_0@0", "player_1@0"),
        players=NAMES,
        estimator=make_estimator("grpo", scale="none"),
        cut=made_cut(tokens=10_000),
        pad_id=0,
        device=torch.device("cpu"),
        with_steps=with_steps,
    )
    by_player = {}
    for batch in made:
        policy = game.first if batch.player == NAMES[0] else game.second
        batch.old_logprobs = said(batch, policy)
        by_player[batch.player] = batch
    return by_player


def said(batch: MicroBatch, policy: Sequence[int]) -> torch.Tensor:
    """Return [rows, tokens - 1] logprobs of the moves under a policy, 0 elsewhere."""
    table = torch.zeros(FIRST_TOKEN + NUM_MOVES)
    table[FIRST_TOKEN:] = torch.tensor(log_policy(policy))
    return torch.where(batch.reply_mask, table[batch.ids[:, 1:]], 0.0)


def credit_after_a_move(
    game: MatrixGame, mover: int, new_policy: tuple[int, ...], limit: float, factor: str
) -> Credit:
    """Return the other player's credit once a player has moved, of games of the old team.

    Args:
        game: Whose games they are.
        mover: The player that has moved.
        new_policy: Its policy now.
        limit: HANABI_SEQUENTIAL_LIMIT.
        factor: HANABI_SEQUENTIAL_FACTOR.
    """
    by_player = batches(game, with_steps=factor == "step")
    moved = by_player[NAMES[mover]]
    other = by_player[NAMES[1 - mover]]
    ratios = sum_log_ratios([batch_log_ratios(moved, said(moved, new_policy))])
    weights = batch_weights([ratios], other, limit)
    weighted = (other.advantages * weights * other.reply_mask).sum(1)
    credits: list[Any] = [[], []]
    credits[1 - mover] = [0.0] * len(game.pairs)
    for number, credit in zip(other.games, weighted.tolist(), strict=True):
        credits[1 - mover][number] = credit
    empty = [0.0] * len(game.pairs)
    credits[mover] = empty
    found = game.mean_credit(credits)
    return {place: value for place, value in found.items() if place[0] == 1 - mover}


def true_credit_after(game: MatrixGame, mover: int, new_policy: tuple[int, ...]) -> Credit:
    """Return what the other player's moves are worth beside the one that has moved.

    A place counts as often as the new team comes there, in multiples of how often the old one did.
    """
    moved = replace(game, **{("first", "second")[mover]: new_policy})
    credit: Credit = {}
    for (player, seen, move), value in moved.true_credit().items():
        if player == mover:
            continue
        is_place_of_the_first = player == 1 and game.is_seen
        visits = new_policy[seen] / game.first[seen] if is_place_of_the_first else 1.0
        credit[player, seen, move] = visits * value
    return credit


def slope(found: Credit, true: Credit) -> float:
    """Return how much of the true credit is found: the slope of found on true, 1 for all of it."""
    spread = sum(value**2 for value in true.values())
    return sum(found[place] * value for place, value in true.items()) / spread


def agreement(found: Credit, true: Credit) -> float:
    """Return the cosine of the two; both are differences from a mean."""
    squares = sum(value**2 for value in found.values()) * sum(value**2 for value in true.values())
    return sum(found[place] * true[place] for place in true) / math.sqrt(squares or 1.0)


def of_player(credit: Credit, player: int) -> Credit:
    return {place: value for place, value in credit.items() if place[0] == player}


def noise(game: MatrixGame, credits: Sequence[Sequence[float]], player: int) -> float:
    """Return the variance of a move's credit from game to game, over that of the true credit."""
    means = game.mean_credit(credits)
    true = game.true_credit()
    scale = slope(of_player(means, player), of_player(true, player)) or math.nan
    scatter = signal = 0.0
    sums: dict[tuple[int, int], list[float]] = {}
    for pair, credit in zip(game.pairs, credits[player], strict=True):
        sums.setdefault((game.seen(player, pair), pair[player]), []).append(credit / scale)
    for (seen, move), values in sums.items():
        mean = sum(values) / len(values)
        scatter += sum((value - mean) ** 2 for value in values)
        signal += len(values) * true[player, seen, move] ** 2
    return scatter / signal


def share_and_agreement(found: Credit, true: Credit) -> str:
    return f"{slope(found, true):.2f}, {agreement(found, true):.2f}"


def print_learned_credit() -> None:
    """Print what returns, VDN and QMIX find of the true credit, in Markdown."""
    print("| game | credit by | player 0: share, agreement | player 1 | noise of each |")
    print("|---|---|---|---|---|")
    for game in GAMES:
        true = game.true_credit()
        arms = {"returns": game.returns()}
        for name in ("vdn", "qmix"):
            arms[f"`{name}`"] = learned_credits(game, name, steps=20)
        for arm, credits in arms.items():
            found = game.mean_credit(credits)
            cells = []
            scatter = []
            for player in (0, 1):
                own = of_player(found, player)
                cells.append(share_and_agreement(own, of_player(true, player)))
                scatter.append(f"{noise(game, credits, player):.1f}")
            print(f"| {game.name} | {arm} | {' | '.join(cells)} | {', '.join(scatter)} |")


MOVES = {0: (1, 1, 6), 1: (6, 1, 1)}
"""What each player's policy becomes, where the other one moves after it."""


def print_sequential_credit() -> None:
    """Print what the second of two sequential players finds of the true credit, in Markdown."""
    print("| game | factor | player 0, after player 1 moved | player 1, after player 0 moved |")
    print("|---|---|---|---|")
    for game in (SUM, PAIR, SAME_STEP_PAIR):
        arms = {
            "none (`independent`)": None,
            "of the game, cut at 2 (default)": (2.0, "game"),
            "of the game, `HANABI_SEQUENTIAL_LIMIT=0`": (0.0, "game"),
            "of the step, `HANABI_SEQUENTIAL_LIMIT=0`": (0.0, "step"),
        }
        for arm, options in arms.items():
            cells = []
            for player in (0, 1):
                mover = 1 - player
                true = true_credit_after(game, mover, MOVES[mover])
                found = of_player(game.true_credit(), player)
                if options is not None:
                    found = credit_after_a_move(game, mover, MOVES[mover], *options)
                cells.append(share_and_agreement(found, true))
            print(f"| {game.name} | {arm} | {' | '.join(cells)} |")


if __name__ == "__main__":
    print_learned_credit()
    print()
    print_sequential_credit()
