"""A sequential OpenSpiel game behind the interface of `envs.base`.

A `Wording` defines what the players of one game read and write.
"""

import functools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import pyspiel

from hanabi_grpo.envs import base
from hanabi_grpo.envs.base import FORFEIT
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.openspiel.rules import Facts, facts, load
from hanabi_grpo.envs.people import Scene, plain_choices, without_format
from hanabi_grpo.envs.questions import Question
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.types import ALL_STARTS, MAX_PLAYERS, player_name

ROLES = ("first", "second")
"""Roles of two players who take turns."""
_RULES_VERSION = 1
"""Part of the environment's hash; increased when the rules change."""
_GRAIN = 1 << 53
"""Resolution of a draw between 0 and 1."""
_RESAMPLES = 2000
"""Maximum number of games that `resampled` draws until one fits."""
_ALONE = tuple((player,) for player in range(MAX_PLAYERS))
"""Value of `to_act` for each player's turn, precomputed."""
_CHANCE = int(pyspiel.PlayerId.CHANCE)


class OpenSpielConfig(StateConfig):
    """Settings of every OpenSpiel game."""

    bad_reply: Literal["random_legal", "forfeit"] = "random_legal"
    """Effect of a bad reply: a random legal action replaces it, or the game is forfeited."""
    reward_illegal: float = -2.0
    """Reward for an action that the rules forbid; more than an entropy bonus can make up for."""
    reward_unparsable: float = -2.0
    """Reward for a reply that does not name an action."""
    reward_draw: float = 0.0
    """Reward of both players for a draw; if it is not 0, the game is no longer zero-sum."""

    def game(self) -> str:
        """Return the text from which OpenSpiel loads the game; `OpenSpiel.spec` checks it."""
        return self.preset


class View(NamedTuple):
    """What a script is shown: what its player knows."""

    game: str
    player: int
    information: str
    """OpenSpiel's information state."""
    history: tuple[int, ...] | None
    """All actions so far if nothing is hidden; otherwise None."""
    legal: tuple[int, ...]
    """OpenSpiel's numbers for the legal actions, in the order of `Observation.legal`."""


class ActionTexts(dict[tuple[int, ...], tuple[str, ...]]):
    """Texts of legal actions by OpenSpiel's numbers; each combination is computed once.

    Example:
        ActionTexts(("fold", "call", "raise"))[0, 2] == ("fold", "raise")
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Start with an empty cache; `texts` are the texts of all actions, by number."""
        super().__init__()
        self.texts = texts

    def __missing__(self, actions: tuple[int, ...]) -> tuple[str, ...]:
        texts = tuple(self.texts[action] for action in actions)
        self[actions] = texts
        return texts


class Wording(Protocol):
    """What the players of one game read and write."""

    action_texts: ActionTexts | None = None
    """None if action texts depend on the state: then implement `actions` and `legal`."""

    def rules(self, config: Any, player: int) -> str:
        """Return the system message in the full style."""

    def state(self, config: Any, state: Any, player: int) -> str:
        """Return everything that the player knows."""

    def actions(self, config: Any, state: Any) -> Sequence[str]:
        """Return all texts that can be actions."""
        if self.action_texts is None:
            return ()
        return self.action_texts.texts

    def legal(self, config: Any, state: Any, actions: Sequence[int]) -> tuple[str, ...]:
        """Return the texts of the legal actions with the given numbers."""
        if self.action_texts is None:
            return ()
        return self.action_texts[tuple(actions)]

    def questions(self, config: Any, state: Any, player: int) -> tuple[Question, ...]:
        """Return questions to the player about what it cannot see."""
        return ()

    def truths(self, config: Any, state: Any, player: int) -> tuple[str, ...]:
        """Return the correct answer to each of `questions`."""
        return ()

    def legend(self, config: Any, player: int) -> str:
        """Return how a person in this seat reads the position; "" if no explanation is needed."""
        return ""

    def picture(self, config: Any, state: Any) -> str:
        """Return the position as text for people, including everything hidden."""


class OpenSpielGame(base.Game):
    """One episode on a `pyspiel.State`.

    Chance is determined at the start: the k-th chance event uses the k-th draw.
    """

    num_drawn = 0
    """Number of chance events so far."""
    forfeited: int | None = None
    """The player whose bad reply ended the game."""
    _acting: tuple[int, ...]
    _actions: list[int]
    """OpenSpiel's legal actions of the player whose turn it is."""
    _legal: tuple[str, ...] | None
    """Texts of `_actions`; if they depend on the state, None until requested."""

    def __init__(
        self, config: OpenSpielConfig, wording: Wording, luck: Callable[[int], float], facts: Facts
    ) -> None:
        """Start an episode.

        Args:
            config: The settings.
            wording: What players read and write.
            luck: Returns the k-th draw, from 0 to 1.
            facts: Facts about the game that `config` selects.
        """
        self.config = config
        self.wording = wording
        self.action_texts = wording.action_texts
        self.luck = luck
        self.facts = facts
        self.state = facts.game.new_initial_state()
        self._advance()

    @classmethod
    def at(cls, config: OpenSpielConfig, wording: Wording, state: Any) -> "OpenSpielGame":
        """Return the game at a state where a player is to act; it must not be continued."""
        game = object.__new__(cls)
        game.config = config
        game.wording = wording
        game.action_texts = wording.action_texts
        game.facts = facts(config.game())
        game.state = state
        game._advance()
        return game

    def to_act(self) -> tuple[int, ...]:
        return self._acting

    def state_message(self, player: int) -> str:
        knowledge = self.wording.state(self.config, self.state, player)
        legal = self.legal(player)
        if not legal:
            return knowledge
        if self.config.style == "compact":
            return f"{knowledge} : {' '.join(legal)}"
        return f"{knowledge}\nYour actions: {', '.join(legal)}."

    def scene(self, player: int) -> Scene:
        config = self.config.model_copy(update={"style": "full"})
        return Scene(
            table=self.wording.state(config, self.state, player),
            news=self._news(player) if self.facts.is_open else (),
            legend=self.wording.legend(config, player),
            choices=plain_choices(self.legal(player)),
        )

    def _news(self, player: int) -> tuple[str, ...]:
        """Return the others' actions since the player's last action, if they are public."""
        sentences: list[str] = []
        state = self.facts.game.new_initial_state()
        for event in self.state.full_history():
            if event.player == player:
                sentences = []
            elif event.player >= 0:
                [text] = self.wording.legal(self.config, state, [event.action])
                sentences.append(f"{player_name(event.player)} chose {text}.")
            state.apply_action(event.action)
        return tuple(sentences)

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
            self._legal = self.wording.legal(self.config, self.state, self._actions)
        return self._legal

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, self.wording.actions(self.config, self.state))

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Apply the action; the reward parts are `return`, `draw` and `forfeit`."""
        [player] = actions
        text = actions[player]
        if text == FORFEIT:
            return self._forfeit(player)
        state = self.state
        nothing = self.facts.nothing
        returns_before = None if nothing else state.returns()
        legal = self._legal or self.legal(player)
        state.apply_action(self._actions[legal.index(text)])
        if self._advance() and nothing:
            return nothing
        rewards = state.returns()
        is_over = not self._acting
        is_draw = is_over and not any(rewards)
        if returns_before is not None:
            # Not `state.rewards()`: some games only report one player's reward for the last action.
            rewards = [now - before for now, before in zip(rewards, returns_before, strict=True)]
        parts = [{"return": reward} if reward else {} for reward in rewards]
        if is_draw and self.config.reward_draw:
            for own_parts in parts:
                own_parts["draw"] = self.config.reward_draw
        return parts

    def result(self) -> Mapping[str, float]:
        """Return the first player's return, and whether a bad reply ended the game."""
        if self._acting:
            return {}
        if self.forfeited is None:
            return {"first": self.state.player_return(0), "forfeit": 0.0}
        return {"first": self._forfeit_return(0), "forfeit": 1.0}

    def copy(self) -> "OpenSpielGame":
        other = object.__new__(OpenSpielGame)
        other.__dict__.update(self.__dict__, state=self.state.clone())
        return other

    def questions(self, player: int) -> tuple[Question, ...]:
        return self.wording.questions(self.config, self.state, player)

    def truths(self, player: int) -> tuple[str, ...]:
        return self.wording.truths(self.config, self.state, player)

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return what the others know.

        Empty if the game has no chance events, because only those can be drawn again.
        """
        if self.facts.is_open or not self.facts.is_dealt:
            return {}
        known = []
        for other in range(self.state.num_players()):
            if other != player:
                known.append(information(self.state, other))
        if not known:
            return {}
        return {"what others know": tuple(known)}

    def resampled(self, player: int, rng: random.Random) -> "OpenSpielGame":
        """Return a game with other chance events in which the player has seen the same.

        OpenSpiel itself draws it for some games. For the others, games are drawn until the
        information state fits, so a secret that this text reveals is never drawn again.
        """
        if can_resample(self.config.game()):
            drawn = self.copy()
            drawn.state = self.state.resample_from_infostate(player, rng.random)
            drawn._advance()
            return drawn
        wanted = information(self.state, player)
        history = self.state.full_history()
        taken = [event.action for event in history if event.player >= 0]
        for _ in range(_RESAMPLES):
            numbers = defaultdict[int, float](rng.random)
            other = OpenSpielGame(self.config, self.wording, numbers.__getitem__, self.facts)
            is_possible = all(other.take(action) for action in taken)
            if is_possible and information(other.state, player) == wanted:
                return other
        return self.copy()

    def take(self, action: int) -> bool:
        """Take an action by its number; return False if it is not legal here."""
        if action not in self._actions:
            return False
        self.state.apply_action(action)
        self._advance()
        return True

    def _forfeit(self, loser: int) -> Sequence[Mapping[str, float]]:
        """End the game, and pay each player the rest of its return in a forfeited game."""
        self.forfeited = loser
        self._acting = ()
        pays_at_the_end = bool(self.facts.nothing)
        paid = [0.0] * self.facts.num_players if pays_at_the_end else self.state.returns()
        rewards = []
        for player in range(self.facts.num_players):
            rewards.append({"forfeit": self._forfeit_return(player) - paid[player]})
        return rewards

    def _forfeit_return(self, player: int) -> float:
        """Return a player's return in a forfeited game.

        The loser and its whole team get the minimum return; opponents share what it loses.
        """
        lost = self.facts.lowest
        utility = self.facts.utility
        if player == self.forfeited or utility == pyspiel.GameType.Utility.IDENTICAL:
            return lost
        share = -lost / (self.facts.num_players - 1)
        if utility == pyspiel.GameType.Utility.ZERO_SUM:
            return share
        return min(share, self.facts.highest)

    def _advance(self) -> bool:
        """Apply chance events and update the player to act; return False if the game is over."""
        state = self.state
        player = state.current_player()
        while player < 0:
            if player != _CHANCE:
                self._acting = ()
                self._actions = []
                self._legal = ()
                return False
            outcome = _drawn_outcome(state.chance_outcomes(), self.luck(self.num_drawn))
            state.apply_action(outcome)
            self.num_drawn += 1
            player = state.current_player()
        actions = state.legal_actions()
        self._acting = _ALONE[player]
        self._actions = actions
        self._legal = None if self.action_texts is None else self.action_texts[tuple(actions)]
        return True


def _numbered_outcomes(widths: Sequence[int], number: int) -> list[float]:
    """Return the draws, from 0 to 1, for one combination of outcomes of all chance events.

    Args:
        widths: Number of equally likely outcomes of each event.
        number: Index of the combination, modulo their number.
    """
    draws = []
    for width in widths:
        number, outcome = divmod(number, width)
        middle = outcome + 0.5
        draws.append(middle / width)
    return draws


def _drawn_outcome(outcomes: Sequence[tuple[int, float]], number: float) -> int:
    """Return the outcome that a number from 0 to 1 selects.

    If the probabilities sum to less than the number, it is the last outcome.
    """
    total = 0.0
    for action, chance in outcomes:
        total += chance
        if number < total:
            return action
    last_action, _ = outcomes[-1]
    return last_action


@functools.cache
def can_resample(name: str) -> bool:
    """Return whether OpenSpiel can draw other chance events that a player cannot distinguish.

    Args:
        name: The text that loads the game.
    """
    state = load(name).new_initial_state()
    while state.is_chance_node():
        state.apply_action(state.legal_actions()[0])
    try:
        state.resample_from_infostate(state.current_player(), random.Random(0).random)
    except pyspiel.SpielError:
        return False
    return True


def information(state: Any, player: int) -> str:
    """Return what a player knows, as described by OpenSpiel."""
    if state.get_game().get_type().provides_information_state_string:
        return str(state.information_state_string(player))
    return str(state.history())


class OpenSpiel(base.Environment[OpenSpielConfig]):
    """An OpenSpiel game with its wording; each game is an environment."""

    def __init__(
        self,
        name: str,
        wording: Wording,
        *,
        roles: Sequence[str],
        presets: Mapping[str, OpenSpielConfig],
        policies: Mapping[str, Callable[[], base.Policy]],
        teachers: Sequence[str] = (),
        teacher_noise: float = 0.4,
        chance_widths: Sequence[int] = (),
    ) -> None:
        """Create an environment; see `Environment` for anything not listed here.

        Args:
            name: Name of the environment.
            wording: What players read and write.
            roles: Role of each player; see `EnvSpec.roles`.
            presets: Configs by name.
            policies: Scripts by name.
            teachers: Names of the scripts that a tiny model imitates.
            teacher_noise: Share of random actions in the games that it imitates.
            chance_widths: Number of equally likely outcomes of each chance event, if it does not
                depend on the players' actions; (): it does, and starts are not numbered.
        """
        self.name = name
        self.wording = wording
        self.roles = tuple(roles)
        self.chance_widths = tuple(chance_widths)
        self.presets = presets
        self.policies = policies
        # All other policies search or solve the game.
        self.slow_policies = frozenset(policies) - {"random"}
        self.teachers = teachers
        self.teacher_noise = teacher_noise
        first_preset = next(iter(presets.values()))
        self.Config = type(first_preset)
        self._last_facts = (first_preset, facts(first_preset.game()))
        """Config and facts of the last `reset`: consecutive resets mostly share a config."""

    def may_block(self, config: OpenSpielConfig) -> bool:
        """Return False: OpenSpiel computes its states within microseconds."""
        return False

    def spec(self, config: OpenSpielConfig) -> base.EnvSpec:
        self._check_preset(config)
        game = load(config.game())
        # The score is the return, which includes the penalties for bad replies.
        fields = config.rule_fields(with_rewards=True)
        least = min(game.min_utility(), config.reward_draw)
        greatest = max(game.max_utility(), config.reward_draw)
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, _RULES_VERSION, fields, config.game()),
            num_players=game.num_players(),
            roles=self.roles,
            payoff=_payoff(game, config),
            max_turns=game.max_game_length(),
            return_range=(least, greatest),
            bad_reply=config.bad_reply,
        )

    def _check_preset(self, config: OpenSpielConfig) -> None:
        """Reject a preset with which OpenSpiel would load another game, or open a file.

        Requests select presets, and some texts crash the whole process; see `rules`.
        """
        is_loaded_by_name = config.game() == config.preset
        if is_loaded_by_name and config.preset not in self.presets:
            raise SettingsError(
                f"env_config: preset={shown(config.preset)}: "
                f"{base.no_such_preset(self, config.preset)}"
            )

    def system(self, config: OpenSpielConfig, player: int) -> str:
        if config.style == "compact":
            return ""
        return self.wording.rules(config, player)

    def person_rules(self, config: OpenSpielConfig, player: int) -> str:
        return without_format(self.wording.rules(config, player))

    def reset(self, config: OpenSpielConfig, *, split: str, seed: int) -> OpenSpielGame:
        last_config, game_facts = self._last_facts
        if config is not last_config:
            game_facts = facts(config.game())
            self._last_facts = (config, game_facts)

        if split == ALL_STARTS and self.chance_widths:
            outcomes = _numbered_outcomes(self.chance_widths, seed)
            return OpenSpielGame(config, self.wording, outcomes.__getitem__, game_facts)

        def luck(number: int) -> float:
            return base.draw(self.name, split, seed, number, below=_GRAIN) / _GRAIN

        return OpenSpielGame(config, self.wording, luck, game_facts)

    def num_starts(self, config: OpenSpielConfig) -> int | None:
        """Return the number of combinations of chance outcomes."""
        return math.prod(self.chance_widths) if self.chance_widths else None

    def start_id(self, config: OpenSpielConfig, *, split: str, seed: int) -> str:
        """Return the chance events before the first action.

        Without such events, each seed is a separate start.
        """
        events = self.reset(config, split=split, seed=seed).state.history()
        if not events:
            return f"{split}/{seed}"
        return " ".join(map(str, events))

    def picture(self, config: OpenSpielConfig, game: OpenSpielGame) -> str:
        return self.wording.picture(config, game.state)


def _payoff(game: Any, config: OpenSpielConfig) -> Literal["team", "zero_sum", "general"]:
    utility = game.get_type().utility
    if utility == pyspiel.GameType.Utility.ZERO_SUM and not config.reward_draw:
        return "zero_sum"
    if utility == pyspiel.GameType.Utility.IDENTICAL:
        return "team"
    return "general"
