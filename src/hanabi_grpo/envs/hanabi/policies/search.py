"""One-step search over a bot.

Each legal move is tried in *worlds*: games that the player cannot tell from its own.

Source: SPARTA's single-agent search (Lerer et al., arXiv 1912.02318), with these differences:

- Beliefs are sampled, not exact: hands that the hints and the visible cards allow, weighted by the
  probability that the others would have made their moves if they were the bot with a share
  `TREMBLE` of random moves.
- Any number of seats may search, each as if the others were the bot. The paper's guarantee, never
  to be worse than the bot in expectation, holds for one searching seat.
- Unpromising moves are dropped early, and the bot's own move is kept unless another is better by
  `MARGIN`.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move
from hanabi_grpo.envs.hanabi.rules.beliefs import KnownDeck, known_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Knowledge, PlayerView

CANDIDATES = 400
"""Number of games that are drawn and weighted."""
WORLDS = 100
"""Most worlds in which a move is tried, drawn by weight among the candidates."""
ROUND = 10
"""Unpromising moves are dropped after every so many worlds.

Unpromising: the mean gain plus one standard error is not positive."""
MARGIN = 2.0
"""A move must be better than the bot's by so many standard errors of its mean gain."""
TREMBLE = 0.1
"""Share of random moves that the others are assumed to make."""

_DEFAULT_BOT = "iggi"
_SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class _WeightedWorld:
    """A game that may be the player's own."""

    game: Game
    weight: float
    """Its probability, up to a factor that all worlds of one position share."""


@dataclass(frozen=True, slots=True)
class _WeightedHand:
    """A drawn hand and the rest of the deck."""

    hand: tuple[Card, ...]
    """Oldest card first."""
    rest: list[Card]
    """The other unseen cards."""
    weight: float
    """The inverse of the chance to draw this hand, up to a common factor."""


@dataclass(frozen=True, slots=True)
class Search:
    """Search over one of the `RULE_BOTS`."""

    blueprint: str = _DEFAULT_BOT
    """Name of the bot that everybody is assumed to follow from the next move on."""

    @property
    def name(self) -> str:
        """Return the name of the policy, e.g. "search-piers"; over IGGI it is "search"."""
        if self.blueprint == _DEFAULT_BOT:
            return "search"
        return f"search-{self.blueprint}"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat; see `base.Policy.seat`."""

        def choose(seen: base.Observation, rng: random.Random) -> str:
            return move_text(seen, self.move(task.config, seen.view(), rng))

        return base.Script(self.name, choose).seat(player, task=task, game=game)

    def move(self, config: EnvConfig, view: PlayerView, rng: random.Random) -> Action:
        """Return the move with the largest gain over the bot's, or the bot's if none is certain.

        Args:
            config: The settings of the game.
            view: What the player may know; it is the player's turn.
            rng: Draws the worlds and the random choices in them.
        """
        planned = rule_move(self.blueprint, view, rng)
        alternatives = [move for move in view.legal_actions if move != planned]
        if not alternatives:
            return planned
        gains: dict[Action, list[float]] = {move: [] for move in alternatives}
        worlds = self._worlds(config, view, rng)
        for number, world in enumerate(worlds, 1):
            # The same world and the same luck for every move.
            luck = rng.getrandbits(_SEED_BITS)
            planned_score = self._score(config, world, planned, luck)
            for move, move_gains in gains.items():
                score = self._score(config, world, move, luck)
                move_gains.append(score - planned_score)
            if number % ROUND == 0:
                gains = _promising(gains)
                if not gains:
                    return planned
        best = max(gains, key=lambda move: fmean(gains[move]))
        is_surely_better = _mean_plus_errors(gains[best], -MARGIN) > 0
        return best if is_surely_better else planned

    def _score(self, config: EnvConfig, world: Game, move: Action, luck: int) -> float:
        """Return the score of a world after a move, when everybody is the bot from there on.

        Args:
            config: The settings of the game.
            world: The game; it is not changed.
            move: The move to make in it.
            luck: Seed of the bots' random choices.
        """
        game = world.copy()
        rng = random.Random(luck)
        game.apply(move)
        while not game.is_over:
            game.apply(rule_move(self.blueprint, game.view(game.current_player), rng))
        return game.score if config.bomb_rule == "zero" else game.score_kept

    def _worlds(self, config: EnvConfig, view: PlayerView, rng: random.Random) -> list[Game]:
        """Return games that look to the player like its own, drawn by their probability."""
        spec = config.spec()
        deck = known_deck(spec, view)
        candidates: list[_WeightedWorld] = []
        while not candidates:
            for _ in range(CANDIDATES):
                world = self._draw_world(spec, view, deck, rng)
                if world is not None:
                    candidates.append(world)
        games = [world.game for world in candidates]
        weights = [world.weight for world in candidates]
        return rng.choices(games, weights, k=WORLDS)

    def _draw_world(
        self, spec: GameSpec, view: PlayerView, deck: KnownDeck, rng: random.Random
    ) -> _WeightedWorld | None:
        """Draw a world and its weight.

        Args:
            spec: The board.
            view: What the player may know.
            deck: What the player knows of the deck's order.
            rng: Draws the hand, the rest of the deck and the bots' random choices.

        Returns:
            None if the cards left for the last slots do not fit their hints.
        """
        drawn = _draw_hand(_unseen_cards(spec, deck), view.own_hand, rng)
        if drawn is None:
            return None
        own_cards = dict(zip(deck.own_positions, drawn.hand, strict=True))
        rng.shuffle(drawn.rest)
        cards = []
        for position, card in enumerate(deck.cards):
            cards.append(card or own_cards.get(position) or drawn.rest.pop())
        game = Game(spec, cards)
        weight = drawn.weight
        for event in view.events:
            if event.player != view.player:
                bots_move = rule_move(self.blueprint, game.view(event.player), rng)
                chance = TREMBLE / len(game.legal_actions())
                if bots_move == event.action:
                    chance += 1 - TREMBLE
                weight *= chance
            game.apply(event.action)
        return _WeightedWorld(game, weight)


def _unseen_cards(spec: GameSpec, deck: KnownDeck) -> list[Card]:
    """Return the cards that make up the player's hand and the rest of the deck, sorted."""
    seen = Counter(card for card in deck.cards if card is not None)
    unseen = Counter(sorted_deck(spec.num_colors, spec.num_ranks)) - seen
    return list(unseen.elements())


def _draw_hand(
    unseen: Sequence[Card], own_hand: Sequence[Knowledge], rng: random.Random
) -> _WeightedHand | None:
    """Draw each card of a hand uniformly among the unseen cards that its hints allow.

    Args:
        unseen: The cards to draw from.
        own_hand: What hints say about each card of the hand.
        rng: Draws the cards.

    Returns:
        None if no card left for a slot fits its hints.
    """
    rest = list(unseen)
    hand = []
    weight = 1.0
    for known in own_hand:
        allowed = [
            index
            for index, card in enumerate(rest)
            if card.color in known.colors and card.rank in known.ranks
        ]
        if not allowed:
            return None
        # Corrects the draw: a card that is one of many is drawn too rarely.
        weight *= len(allowed)
        hand.append(rest.pop(rng.choice(allowed)))
    return _WeightedHand(tuple(hand), rest, weight)


def _promising(gains: dict[Action, list[float]]) -> dict[Action, list[float]]:
    """Return the moves that are at most one standard error from being better than the bot's."""
    return {move: values for move, values in gains.items() if _mean_plus_errors(values, 1.0) > 0}


def _mean_plus_errors(values: Sequence[float], num_errors: float) -> float:
    """Return the mean plus `num_errors` of its standard errors."""
    standard_error = stdev(values) / len(values) ** 0.5
    return fmean(values) + num_errors * standard_error
