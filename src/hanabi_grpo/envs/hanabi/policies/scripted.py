"""Policies without a model: the reference rows of every table, the teacher of the warm start, and all by name."""

import difflib
import random
from dataclasses import dataclass, field
from itertools import product

from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS, RuleBot
from hanabi_grpo.envs.hanabi.policies.seats import ScriptedSeat, seat_rng
from hanabi_grpo.envs.hanabi.policies.simple_bot import SimpleBot
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, Knowledge, PlayerView
from hanabi_grpo.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy:
    """Draws evenly among the legal moves."""

    name: str = field(default="random", init=False)
    style: ObservationStyle = ObservationStyle.COMPACT
    """How replies are worded; every style is read everywhere."""

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> ScriptedSeat:
        """Return a fresh seat."""
        return ScriptedSeat(choose=_random_move, rng=seat_rng(self.name, player, suite, seed, game), style=self.style)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindPolicy:
    """Always plays the oldest card and looks at nothing.

    A learned policy that scores no more than this says nothing about cooperation.
    """

    name: str = field(default="blind", init=False)
    style: ObservationStyle = ObservationStyle.COMPACT

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> ScriptedSeat:
        """Return a fresh seat."""
        return ScriptedSeat(choose=_play_oldest, rng=seat_rng(self.name, player, suite, seed, game), style=self.style)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintBot:
    """The first rule that fires.

    1. Play the oldest card that fits whatever it is, given the hints.
    2. With a hint token: over partners in turn order and their cards from the oldest, take the first card that fits
       now and that its holder does not know: hint its rank, or its colour when the rank is known.
    3. Discard the oldest card; where that is not allowed, give a random hint, and without one any legal move.
    """

    noise: float = 0.0
    """Share of moves that are drawn evenly among the legal ones, within [0, 1]."""
    name: str = field(default="hint-bot", init=False)
    style: ObservationStyle = ObservationStyle.COMPACT

    def __post_init__(self) -> None:
        """Check `noise`.

        Raises:
            SettingsError: It is not a share.
        """
        if not 0.0 <= self.noise <= 1.0:
            raise SettingsError(f"HintBot noise={self.noise}: it is a share of moves; give a number from 0 to 1.")

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> ScriptedSeat:
        """Return a fresh seat."""
        return ScriptedSeat(choose=self._choose, rng=seat_rng(self.name, player, suite, seed, game), style=self.style)

    def _choose(self, view: PlayerView, rng: random.Random) -> Action:
        if self.noise and rng.random() < self.noise:
            return _random_move(view, rng)
        return _certain_play(view) or _useful_hint(view) or _oldest_discard(view) or _random_hint(view, rng)


REFERENCES: tuple[str, ...] = ("random", "blind", "hint-bot")
"""Scripts that every table of a board carries."""

SCRIPTED: tuple[str, ...] = (*REFERENCES, "simple-bot", *RULE_BOTS)
"""Names that `make_policy` takes."""

ScriptedPolicy = RandomPolicy | BlindPolicy | HintBot | SimpleBot | RuleBot


def make_policy(name: str, *, style: ObservationStyle = ObservationStyle.COMPACT) -> ScriptedPolicy:
    """Return the scripted policy of this name.

    Raises:
        SettingsError: There is none; names the closest and all others.
    """
    if name == "random":
        return RandomPolicy(style=style)
    if name == "blind":
        return BlindPolicy(style=style)
    if name == "hint-bot":
        return HintBot(style=style)
    if name == "simple-bot":
        return SimpleBot(style=style)
    if name in RULE_BOTS:
        return RuleBot(name=name, rules=RULE_BOTS[name], style=style)
    close = difflib.get_close_matches(name, SCRIPTED, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(f"policy {name!r} is unknown; allowed: {', '.join(SCRIPTED)}.{hint}")


def _random_move(view: PlayerView, rng: random.Random) -> Action:
    return rng.choice(view.legal_actions)


def _play_oldest(view: PlayerView, rng: random.Random) -> Action:
    return play(0)


def _certain_play(view: PlayerView) -> Action | None:
    for slot, known in enumerate(view.own_hand):
        if _surely_fits(known, view):
            return play(slot)
    return None


def _surely_fits(known: Knowledge, view: PlayerView) -> bool:
    return all(view.fireworks[color] == rank for color, rank in product(known.colors, known.ranks))


def _useful_hint(view: PlayerView) -> Action | None:
    if not view.hints:
        return None
    for step in range(1, view.num_players):
        seat = (view.player + step) % view.num_players
        for card, known in zip(view.hands[seat], view.knowledge[seat], strict=True):
            if view.fireworks[card.color] != card.rank:
                continue
            if len(known.ranks) > 1:
                return hint_rank(seat, card.rank)
            if len(known.colors) > 1:
                return hint_color(seat, card.color)
    return None


def _oldest_discard(view: PlayerView) -> Action | None:
    action = discard(0)
    return action if action in view.legal_actions else None


def _random_hint(view: PlayerView, rng: random.Random) -> Action:
    hints = [action for action in view.legal_actions if action.kind.startswith("hint")]
    return rng.choice(hints or view.legal_actions)
