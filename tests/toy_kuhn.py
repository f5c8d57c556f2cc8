"""Kuhn poker as an environment whose players remember the game; users have `kuhn_poker`.

Source: Kuhn, "A Simplified Two-Person Poker" (1950). Three cards J < Q < K, one each, one chip each
in the pot, one bet of one chip. With best play the first player loses 1/18 chip per game.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

from hanabi_grpo.envs import base
from hanabi_grpo.envs.replies import last_choice

CARDS = "JQK"
DEALS = tuple(permutations(CARDS, 2))  # of the first and the second player
RULES = """\
You are the {role} player in a game of Kuhn poker. The deck is J, Q and K, from low to high. Each \
player puts 1 chip into the pot and gets one card, which the other player does not see; the third \
card stays hidden.
The first player checks or bets 1 chip. After a check the second player checks too, which ends the \
game, or bets. Who faces a bet folds, which gives the pot to the other player, or calls with 1 \
chip. Else the higher card wins the pot.
End your reply with your action on a line of its own: check, bet, fold or call."""
ROLES = ("first", "second")
OPEN = ("check", "bet")
FACING_BET = ("fold", "call")


class KuhnConfig(base.EnvConfig):
    preset: str = "kuhn"


class KuhnView(NamedTuple):
    player: int
    card: str
    actions: tuple[str, ...]  # of both players, oldest first


class KuhnGame(base.Game):
    def __init__(self, cards: Sequence[str]) -> None:
        self.cards = tuple(cards)
        self.actions: tuple[str, ...] = ()

    def to_act(self) -> tuple[int, ...]:
        is_over = len(self.actions) > 1 and self.actions[-1] != "bet"
        return () if is_over else (len(self.actions) % 2,)

    def message(self, player: int) -> str:
        return self._message_from(player, max(len(self.actions) - 1, 0))

    def state_message(self, player: int) -> str:
        return self._message_from(player, 0)

    def view(self, player: int) -> KuhnView:
        return KuhnView(player, self.cards[player], self.actions)

    def legal(self, player: int) -> tuple[str, ...]:
        choice = FACING_BET if self.actions[-1:] == ("bet",) else OPEN
        return choice if player in self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, OPEN + FACING_BET)

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        self.actions += tuple(actions.values())
        if self.to_act():
            return ({}, {})
        chips = self._chips()
        return ({"chips": chips}, {"chips": -chips})

    def result(self) -> Mapping[str, float]:
        if self.to_act():
            return {}
        is_showdown = self.actions[-1] != "fold"
        return {"first_chips": self._chips(), "showdown": float(is_showdown)}

    def hidden(self, player: int) -> Mapping[str, Any]:
        return {"opponent's card": self.cards[1 - player]}

    def resampled(self, player: int, rng: random.Random) -> "KuhnGame":
        card = rng.choice([card for card in CARDS if card != self.cards[player]])
        other = self.copy()
        other.cards = (self.cards[0], card) if player == 0 else (card, self.cards[1])
        return other

    def _message_from(self, player: int, start: int) -> str:
        """Say what happened from turn `start` on; from the first turn on also the card."""
        message = ""
        if start == 0:
            message += f"Your card is {self.cards[player]}. "
        for turn in range(start, len(self.actions)):
            message += f"The {ROLES[turn % 2]} player: {self.actions[turn]}. "
        legal = self.legal(player)
        if legal:
            message += f"Your action: {' or '.join(legal)}?"
        return message

    def _chips(self) -> float:
        if self.actions[-1] == "fold":
            return 1.0 if len(self.actions) == 2 else -1.0
        stake = 2.0 if self.actions[-1] == "call" else 1.0
        first_rank, second_rank = map(CARDS.index, self.cards)
        return stake if first_rank > second_rank else -stake


def equilibrium(alpha: float) -> base.Script:
    """Return the Nash equilibrium in which the first player bluffs with chance `alpha`.

    `alpha` is from 0 to 1/3.
    """
    bet = {0: {"J": alpha, "Q": 0.0, "K": 3 * alpha}, 1: {"J": 1 / 3, "Q": 0.0, "K": 1.0}}
    call = {0: {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0}, 1: {"J": 0.0, "Q": 1 / 3, "K": 1.0}}

    def choose(seen: base.Observation, rng: random.Random) -> str:
        view = seen.view()
        if view.actions[-1:] == ("bet",):
            choices, chances = FACING_BET, call
        else:
            choices, chances = OPEN, bet
        is_second_choice = rng.random() < chances[view.player][view.card]
        return choices[is_second_choice]

    return base.Script(f"equilibrium-{alpha:g}", choose)


class Kuhn(base.Environment[KuhnConfig]):
    """Kuhn poker. Every split has all six deals, so splits differ in their seeds alone."""

    name = "kuhn"
    Config = KuhnConfig
    presets: Mapping[str, KuhnConfig] = {"kuhn": KuhnConfig()}
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        **{f"equilibrium-{alpha:g}": partial(equilibrium, alpha) for alpha in (0.0, 0.1, 0.2, 0.3)},
    }

    def spec(self, config: KuhnConfig) -> base.EnvSpec:
        return base.EnvSpec(
            env="kuhn",
            preset=config.preset,
            hash=base.stable_hash("kuhn v1", RULES),
            num_players=2,
            roles=ROLES,
            payoff="zero_sum",
            max_turns=3,
            return_range=(-2.0, 2.0),
        )

    def system(self, config: KuhnConfig, player: int) -> str:
        return RULES.format(role=ROLES[player])

    def reset(self, config: KuhnConfig, *, split: str, seed: int) -> KuhnGame:
        return KuhnGame(DEALS[base.draw("kuhn", split, seed, below=len(DEALS))])

    def start_id(self, config: KuhnConfig, *, split: str, seed: int) -> str:
        return "".join(self.reset(config, split=split, seed=seed).cards)

    def metrics(self, config: KuhnConfig, episodes: Sequence[base.Episode]) -> dict[str, float]:
        opened = []
        for episode in episodes:
            opened += [turn.action for turn in episode.turns if turn.action in OPEN]
        bets = opened.count("bet") / max(len(opened), 1)
        return {**super().metrics(config, episodes), "bets": bets}

    def render(self, config: KuhnConfig, episode: base.Episode) -> Iterator[base.Frame]:
        first, second = self.reset(config, split=episode.suite, seed=episode.seed).cards
        yield base.Frame(title="task", text=f"player_0 holds {first}, player_1 holds {second}")
        for number, turn in enumerate(episode.turns, 1):
            yield base.Frame(title=f"turn {number}", text=f"player_{turn.player}: {turn.action}")
        yield base.Frame(title="end", text=f"player_0 wins {episode.reward(0, 'chips'):+g}")


KUHN = Kuhn()
