"""A sequential game of OpenSpiel behind the interface of `envs.base`; `Words` says what players
read and write.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import pyspiel

from hanabi_grpo.envs import base
from hanabi_grpo.envs.base import FORFEIT
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.openspiel.rules import MAX_PLAYERS, Facts, facts, load
from hanabi_grpo.envs.replies import last_choice

ROLES = ("first", "second")
"""Of two players who move in turn."""
_GRAIN = 1 << 53
"""Steps of a draw between 0 and 1."""
_RESAMPLES = 2000
_ALONE = tuple((player,) for player in range(MAX_PLAYERS))
_CHANCE = int(pyspiel.PlayerId.CHANCE)


class OpenSpielConfig(StateConfig):
    """What every game of OpenSpiel can be told."""

    bad_reply: Literal["random_legal", "forfeit"] = "random_legal"
    """What a bad reply does: a random legal action takes its place, or the game is lost."""
    reward_illegal: float = -2.0
    """Reward of an action that the rules forbid; more than an entropy bonus can pay for one."""
    reward_unparsable: float = -2.0
    """Reward of a reply that names no action."""
    reward_draw: float = 0.0
    """Reward of both players for a draw; other than 0 the game is no longer zero-sum."""

    def game(self) -> str:
        """Return the text by which OpenSpiel loads the game; its parameters were checked."""
        return self.preset


class View(NamedTuple):
    """What a script is shown: what its player knows."""

    game: str
    player: int
    information: str
    """OpenSpiel's information state."""
    history: tuple[int, ...] | None
    """All actions so far where nothing is hidden."""
    legal: tuple[int, ...]
    """OpenSpiel's numbers of the legal actions, in the order of `Observation.legal`."""


class Table(dict[tuple[int, ...], tuple[str, ...]]):
    """Words of legal actions by OpenSpiel's numbers, each combination made once; `words` are those
    of all actions.
    """

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self.words = words

    def __missing__(self, actions: tuple[int, ...]) -> tuple[str, ...]:
        self[actions] = picked = tuple(self.words[action] for action in actions)
        return picked


class Words(Protocol):
    """What the players of one game read and write."""

    table: Table | None = None
    """The words of actions; None where they depend on the state: then `actions` and `legal` are
    written.
    """

    def rules(self, config: Any, player: int) -> str:
        """Return the system message in the full style."""

    def state(self, config: Any, state: Any, player: int) -> str:
        """Return everything that the player knows."""

    def actions(self, config: Any, state: Any) -> Sequence[str]:
        """Return every word that may be an action."""
        return self.table.words if self.table is not None else ()

    def legal(self, config: Any, state: Any, actions: Sequence[int]) -> tuple[str, ...]:
        """Return the words of the legal actions, whose numbers are given."""
        return self.table[tuple(actions)] if self.table is not None else ()

    def picture(self, config: Any, state: Any) -> str:
        """Return the table as people see it, with everything that is hidden."""


class OpenSpielGame(base.Game):
    """One episode on a `pyspiel.State`. Chance was drawn at the start: its k-th event takes the
    k-th number.
    """

    num_drawn = 0
    forfeited: int | None = None
    _acting: tuple[int, ...]
    _actions: list[int]
    """OpenSpiel's legal actions of the player whose turn it is."""
    _legal: tuple[str, ...] | None
    """The same in words; where they depend on the state, once somebody asked."""

    def __init__(
        self, config: OpenSpielConfig, words: Words, luck: Callable[[int], float], facts: Facts
    ) -> None:
        """Start; `luck(k)` is the k-th draw, 0 to 1."""
        self.config, self.words, self.luck, self.facts = config, words, luck, facts
        self.table = words.table
        self.state = facts.game.new_initial_state()
        self._go_on()

    @classmethod
    def at(cls, config: OpenSpielConfig, words: Words, state: Any) -> "OpenSpielGame":
        """Return the game at a state in which a player is to act; it must not be played on."""
        game = object.__new__(cls)
        game.__dict__.update(
            config=config, words=words, table=words.table, facts=facts(config.game()), state=state
        )
        game._go_on()
        return game

    def to_act(self) -> tuple[int, ...]:
        return self._acting

    def state_message(self, player: int) -> str:
        told = self.words.state(self.config, self.state, player)
        legal = self.legal(player)
        if not legal:
            return told
        if self.config.style == "compact":
            return f"{told} : {' '.join(legal)}"
        return f"{told}\nYour actions: {', '.join(legal)}."

    def view(self, player: int) -> View:
        return View(
            game=self.config.game(),
            player=player,
            information=information(self.state, player),
            history=tuple(self.state.history()) if self.facts.is_open else None,
            legal=tuple(self._actions) if player in self._acting else (),
        )

    def legal(self, player: int) -> tuple[str, ...]:
        if player not in self._acting:
            return ()
        if self._legal is None:
            self._legal = self.words.legal(self.config, self.state, self._actions)
        return self._legal

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, self.words.actions(self.config, self.state))

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Act; the parts are `return`, `draw` and `forfeit`."""
        [player] = actions
        text = actions[player]
        if text == FORFEIT:
            self.forfeited, self._acting = player, ()
            lost = self.facts.lowest
            others = -lost / max(self.facts.num_players - 1, 1)
            return [
                {"forfeit": lost if one == player else others}
                for one in range(self.facts.num_players)
            ]
        state, nothing = self.state, self.facts.nothing
        before = None if nothing else state.returns()
        state.apply_action(self._actions[(self._legal or self.legal(player)).index(text)])
        if self._go_on() and nothing:
            return nothing
        rewards = state.returns()
        if self.config.reward_draw and not self._acting and not any(rewards):
            return [{"draw": self.config.reward_draw}] * len(rewards)
        # Not `state.rewards()`: some games say only one player's reward of the last action.
        if before is not None:
            rewards = [now - then for now, then in zip(rewards, before, strict=True)]
        return [{"return": reward} if reward else {} for reward in rewards]

    def result(self) -> Mapping[str, float]:
        """Return what the first player won, and whether a bad reply ended the game."""
        if self._acting:
            return {}
        if self.forfeited is None:
            return {"first": self.state.player_return(0), "forfeit": 0.0}
        lost = self.facts.lowest
        return {"first": -lost if self.forfeited else lost, "forfeit": 1.0}

    def copy(self) -> "OpenSpielGame":
        other = object.__new__(OpenSpielGame)
        other.__dict__.update(self.__dict__, state=self.state.clone())
        return other

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return what the others know; nothing where no chance decides it, since only chance can be
        drawn again.
        """
        if self.facts.is_open or not self.facts.is_dealt:
            return {}
        others = [one for one in range(self.state.num_players()) if one != player]
        return (
            {"what others know": tuple(information(self.state, one) for one in others)}
            if others
            else {}
        )

    def resampled(self, player: int, rng: random.Random) -> "OpenSpielGame":
        """Return a game with other chance in which the player has lived through the same, drawn
        until one fits.
        """
        wanted = information(self.state, player)
        taken = [one.action for one in self.state.full_history() if one.player >= 0]
        for _ in range(_RESAMPLES):
            numbers = defaultdict[int, float](rng.random)
            other = OpenSpielGame(self.config, self.words, numbers.__getitem__, self.facts)
            if (
                all(other.take(action) for action in taken)
                and information(other.state, player) == wanted
            ):
                return other
        return self.copy()

    def take(self, action: int) -> bool:
        """Take an action by its number; False when it is not legal here."""
        if action not in self._actions:
            return False
        self.state.apply_action(action)
        self._go_on()
        return True

    def _go_on(self) -> bool:
        """Let chance act, and look who is next; False when the game is over."""
        state = self.state
        while (player := state.current_player()) < 0:
            if player != _CHANCE:
                self._acting, self._actions, self._legal = (), [], ()
                return False
            state.apply_action(_drawn(state.chance_outcomes(), self.luck(self.num_drawn)))
            self.num_drawn += 1
        self._acting = _ALONE[player]
        self._actions = actions = state.legal_actions()
        self._legal = None if self.table is None else self.table[tuple(actions)]
        return True


def _drawn(outcomes: Sequence[tuple[int, float]], left: float) -> int:
    """Return the outcome that a number from 0 to 1 falls on; the last one where the chances add up
    to less.
    """
    total = 0.0
    for action, chance in outcomes:
        total += chance
        if left < total:
            return action
    return outcomes[-1][0]


def information(state: Any, player: int) -> str:
    """Return what a player knows, as OpenSpiel says it."""
    if state.get_game().get_type().provides_information_state_string:
        return str(state.information_state_string(player))
    return str(state.history())


class OpenSpiel(base.Environment[OpenSpielConfig]):
    """A game of OpenSpiel with its words; one environment a game."""

    def __init__(
        self,
        name: str,
        words: Words,
        *,
        roles: Sequence[str],
        presets: Mapping[str, OpenSpielConfig],
        policies: Mapping[str, Callable[[], base.Policy]],
        teachers: Sequence[str] = (),
        teacher_noise: float = 0.4,
    ) -> None:
        self.name, self.words, self.roles = name, words, tuple(roles)
        self.presets, self.policies = presets, policies
        self.teachers, self.teacher_noise = teachers, teacher_noise
        first = next(iter(presets.values()))
        self.Config = type(first)
        self._last = first, facts(first.game())

    def spec(self, config: OpenSpielConfig) -> base.EnvSpec:
        game = load(config.game())
        low, high = game.min_utility(), game.max_utility()
        kind = game.get_type().utility.name
        payoff: Literal["team", "zero_sum", "general"] = "general"
        if kind == "ZERO_SUM" and not config.reward_draw:
            payoff = "zero_sum"
        elif kind == "IDENTICAL":
            payoff = "team"
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(
                self.name, 1, config.model_dump(exclude={"preset"}), config.game()
            ),
            num_players=game.num_players(),
            roles=self.roles,
            payoff=payoff,
            max_turns=game.max_game_length(),
            return_range=(min(low, config.reward_draw), max(high, config.reward_draw)),
            bad_reply=config.bad_reply,
        )

    def system(self, config: OpenSpielConfig, player: int) -> str:
        return self.words.rules(config, player) if config.style == "full" else ""

    def reset(self, config: OpenSpielConfig, *, split: str, seed: int) -> OpenSpielGame:
        if config is not self._last[0]:
            self._last = config, facts(config.game())

        def luck(number: int) -> float:
            return base.draw(self.name, split, seed, number, below=_GRAIN) / _GRAIN

        return OpenSpielGame(config, self.words, luck, self._last[1])

    def start_id(self, config: OpenSpielConfig, *, split: str, seed: int) -> str:
        """Return what was dealt before the first action; where nothing is, each seed is a start of
        its own.
        """
        dealt = self.reset(config, split=split, seed=seed).state.history()
        return " ".join(map(str, dealt)) if dealt else f"{split}/{seed}"

    def picture(self, config: OpenSpielConfig, game: OpenSpielGame) -> str:
        return self.words.picture(config, game.state)
