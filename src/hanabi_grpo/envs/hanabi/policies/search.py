"""One-step search over a bot: each legal move is tried in games that the player cannot tell from
its own.

Source: SPARTA's single-agent search (Lerer et al., arXiv 1912.02318). It differs in this:

- Beliefs are samples, not exact: hands as the hints and the cards in sight allow, weighted by the
  chance that the others, as the bot with a share `TREMBLE` of random moves, would have made the
  moves that they made.
- Any number of seats may search, each as if the others were the bot. The paper's guarantee, never
  to be worse than the bot in expectation, holds for one.
- A move without promise is given up early, and the bot's own is kept until another is better by
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
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, PlayerView

CANDIDATES = 400
"""Games that are drawn and weighted."""
WORLDS = 100
"""Of those, drawn by weight, the most in which a move is tried."""
ROUND = 10
"""Worlds after which moves without promise are given up: less than one standard error from being
better.
"""
MARGIN = 2.0
"""Standard errors of the mean gain by which a move has to be better than the bot's."""
TREMBLE = 0.1


@dataclass(frozen=True, slots=True)
class Search:
    """Search over one of the `RULE_BOTS`."""

    blueprint: str = "iggi"

    @property
    def name(self) -> str:
        """Return the name of the policy; IGGI's is not said."""
        return "search" if self.blueprint == "iggi" else f"search-{self.blueprint}"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat."""

        def choose(seen: base.Observation, rng: random.Random) -> str:
            return move_text(seen, self.move(task.config, seen.view(), rng))

        return base.Script(self.name, choose).seat(player, task=task, game=game)

    def move(self, config: EnvConfig, view: PlayerView, rng: random.Random) -> Action:
        """Return the bot's move, or the one that gains most over it, if that is surely more than
        nothing.
        """
        plan = rule_move(self.blueprint, view, rng)
        gains: dict[Action, list[float]] = {move: [] for move in view.legal_actions if move != plan}
        worlds = self._worlds(config, view, rng) if gains else []
        for number, world in enumerate(worlds, 1):
            # The same world and the same luck for every move.
            luck = rng.getrandbits(64)
            planned = self._score(config, world, plan, luck)
            for move, gained in gains.items():
                gained.append(self._score(config, world, move, luck) - planned)
            if number % ROUND == 0:
                gains = {move: gained for move, gained in gains.items() if _bound(gained, 1.0) > 0}
                if not gains:
                    return plan
        best = max(gains, key=lambda move: fmean(gains[move]), default=plan)
        return best if best != plan and _bound(gains[best], -MARGIN) > 0 else plan

    def _score(self, config: EnvConfig, world: Game, move: Action, luck: int) -> float:
        """Return what a world ends with after a move, when everybody is the bot from there on."""
        game, rng = world.copy(), random.Random(luck)
        game.apply(move)
        while not game.is_over:
            game.apply(rule_move(self.blueprint, game.view(game.current_player), rng))
        return game.score if config.bomb_rule == "zero" else game.score_kept

    def _worlds(self, config: EnvConfig, view: PlayerView, rng: random.Random) -> list[Game]:
        """Return games that look to the player like its own, drawn by how likely they are."""
        known = known_deck(config.spec(), view)
        worlds: list[tuple[Game, float]] = []
        while not worlds:
            drawn = (self._world(config, view, known, rng) for _ in range(CANDIDATES))
            worlds = [world for world in drawn if world]
        games, weights = zip(*worlds, strict=True)
        return rng.choices(games, weights, k=WORLDS)

    def _world(
        self, config: EnvConfig, view: PlayerView, known: KnownDeck, rng: random.Random
    ) -> tuple[Game, float] | None:
        """Draw a game and its weight; None where the last cards that were left fit no more
        hints.
        """
        spec, weight, own = config.spec(), 1.0, dict[int, Card]()
        seen = Counter(card for card in known.cards if card is not None)
        unseen = list((Counter(sorted_deck(spec.num_colors, spec.num_ranks)) - seen).elements())
        for place, told in zip(known.own, view.own_hand, strict=True):
            fits = [
                at
                for at, card in enumerate(unseen)
                if card.color in told.colors and card.rank in told.ranks
            ]
            if not fits:
                return None
            # A card that is one of many is drawn too seldom.
            weight *= len(fits)
            own[place] = unseen.pop(rng.choice(fits))
        rng.shuffle(unseen)
        game = Game(
            spec, [card or own.get(place) or unseen.pop() for place, card in enumerate(known.cards)]
        )
        for event in view.events:
            if event.player != view.player:
                is_same = rule_move(self.blueprint, game.view(event.player), rng) == event.action
                weight *= TREMBLE / len(game.legal_actions()) + (1 - TREMBLE) * is_same
            game.apply(event.action)
        return game, weight


def _bound(gained: Sequence[float], errors: float) -> float:
    """Return the mean plus so many standard errors."""
    return fmean(gained) + errors * stdev(gained) / len(gained) ** 0.5
