"""The interface of an environment.

An *environment* is a game with its prompts and scripts. A *task* is one start of the game,
identified by (split, seed); in Hanabi, a deal. In an *episode*, all *players*, numbered from 0,
play one task to its end.

To write an environment, subclass `EnvConfig` (its settings), `Game` (one episode) and `Environment`
(everything shared by all episodes), as docs/environments.md shows. Methods with a body here are
defaults; implement the others. `Referee` plays a game, `conformance.check` tests an environment.
"""

import copy
import functools
import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from numbers import Integral
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    runtime_checkable,
)

from hanabi_grpo.envs.alarms import Alarm
from hanabi_grpo.envs.config import NO_TOOLS, EnvConfig, split_tools
from hanabi_grpo.envs.instructions import split_instruction
from hanabi_grpo.envs.people import Scene, plain_choices, without_format
from hanabi_grpo.envs.questions import Question
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.tools.calls import describe_tools
from hanabi_grpo.envs.tools.seat import SeatTools
from hanabi_grpo.envs.tools.tool import Tool
from hanabi_grpo.errors import SettingsError, did_you_mean, shown
from hanabi_grpo.types import (
    JUDGE_MEAN_PART,
    JUDGE_PART,
    MAX_PLAYERS,
    Episode,
    ToolCall,
    player_name,
    player_names,
)

FORFEIT = "<forfeit>"
"""The action of a player whose bad reply ends the game; see `EnvSpec.bad_reply`."""
SKIP = "<skip>"
"""The action of a player whose bad reply loses its turn."""

C = TypeVar("C", bound=EnvConfig)
RewardFunction = Callable[[Episode], Sequence[float]]
"""Maps a finished episode to one finite number per player; see `Environment.rewards`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What other code needs to know about an environment with one config, whatever the game is."""

    env: str
    preset: str
    hash: str
    """Hash of the rules and prompts, e.g. from `stable_hash`.

    Two sides with the same hash play the same game."""
    num_players: int
    roles: tuple[str, ...]
    """Role of each player in the game, e.g. ("first", "second").

    Players with equal roles can be compared."""
    payoff: Literal["team", "zero_sum", "general"]
    """How the players' rewards are related.

    "team": every player gets the same parts. "zero_sum": the parts of all players add up to 0 in
    every step. "general": anything else."""
    max_turns: int
    """Steps after which an episode is truncated."""
    return_range: tuple[float, float]
    """Minimum and maximum return of a player in an episode, excluding penalties for bad replies."""
    bad_reply: Literal["random_legal", "forfeit", "skip"] = "random_legal"
    """What replaces a bad reply: a random legal action, or the action `FORFEIT` or `SKIP`."""
    score: str = "return"
    """Name of the figure in `Game.result` that measures how well players did.

    "return" is the sum of a player's rewards."""
    max_score: float | None = None
    """Maximum of that figure under the rules; None: the upper end of `return_range`."""
    attainable: float | None = None
    """Highest mean of that figure that is known to be attainable; None: unknown."""
    disjoint_splits: bool = False
    """Whether no start of a held-out split ("eval…", "test…") ever occurs in another split."""

    @property
    def has_common_score(self) -> bool:
        """Whether one figure describes how well all players did together.

        That figure is a team's return, or a score other than the return.
        """
        return self.payoff == "team" or (self.payoff == "general" and self.score != "return")

    @property
    def role_names(self) -> tuple[str, ...]:
        """A distinct name for each seat: its role; where roles repeat, followed by the seat.

        Example:
            With the roles ("player", "player"): ("player (seat 0)", "player (seat 1)")
        """
        names = []
        for seat, role in enumerate(self.roles):
            is_unique = self.roles.count(role) == 1
            names.append(role if is_unique else f"{role} (seat {seat})")
        return tuple(names)

    def __post_init__(self) -> None:
        """Raise a `SettingsError` for a spec that contradicts itself."""
        if not 1 <= self.num_players <= MAX_PLAYERS:
            self._refuse("num_players", f"an environment has 1 to {MAX_PLAYERS} players")
        if len(self.roles) != self.num_players:
            self._refuse("roles", f"give one role for each of {self.num_players} players")
        if self.max_turns < 1:
            self._refuse("max_turns", "give at least 1")
        low, high = self.return_range
        if low > high:
            self._refuse("return_range", "give the minimum return first")

    def _refuse(self, name: str, rule: str) -> NoReturn:
        raise SettingsError(f"EnvSpec of {self.env!r}: {name}={getattr(self, name)!r}: {rule}.")

    @property
    def score_range(self) -> tuple[float, float]:
        """Minimum and maximum of the figure `score`; figures other than the return start at 0."""
        least_return, greatest_return = self.return_range
        least = least_return if self.score == "return" else min(0.0, least_return)
        greatest = greatest_return if self.max_score is None else float(self.max_score)
        return least, greatest

    @property
    def span(self) -> float:
        """Largest possible difference between two returns; 1 if all returns are equal."""
        low, high = self.return_range
        return high - low or 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a replay, as text."""

    title: str
    text: str


class Game(Protocol):
    """One episode in progress.

    A game is pure: no I/O, no clock, and all randomness is drawn in `Environment.reset`. Everything
    that a player is shown comes from `message`, `state_message`, `view`, `scene` and `legal`. None
    of them may depend on anything the player must not know, and none may change the game.
    """

    def to_act(self) -> tuple[int, ...]:
        """Return the players who act now.

        One player, several players who act simultaneously, or () when the game is over.
        """

    def message(self, player: int) -> str:
        """Return what is new for the player since its last action, and what it is asked.

        Only this player may see this text.
        """
        return self.state_message(player)

    def state_message(self, player: int) -> str:
        """Return everything that matters now, for a player that remembers no earlier message.

        Only this player may see this text.
        """

    def view(self, player: int) -> Any:
        """Return what the player may know, for scripts: data that supports `==`.

        Only this player may see this data.
        """
        return self.state_message(player)

    def scene(self, player: int) -> Scene:
        """Return what a person in this seat is shown, using only what the player may know.

        Only this player may see this scene. The default shows what a model reads.
        """
        return Scene(table=self.state_message(player), choices=plain_choices(self.legal(player)))

    def legal(self, player: int) -> tuple[str, ...] | None:
        """Return the actions that the player may take now, or None if any text is an action.

        Returns () when the player is not to act.
        """

    def parse(self, player: int, reply: str) -> str | None:
        """Return the action named by a reply, legal or not, worded as in `legal`, or None.

        The reply may be any text, and no text may raise an error. `envs.replies` has helpers.
        """

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Take one action of each player in `to_act()`.

        Each action is legal, or is the replacement that `EnvSpec.bad_reply` specifies.

        Returns:
            Named reward parts per player, e.g. `[{"chips": 1.0}, {"chips": -1.0}]`.
        """

    def late(self) -> Sequence[Sequence[Mapping[str, float]]]:
        """Return the rewards of earlier steps that are only known once the episode is over.

        They are paid in addition to what `step` returned; parts of the same name are added.

        Returns:
            Named reward parts per step and player.
        """
        return ()

    def result(self) -> Mapping[str, float]:
        """Return the figures of the episode so far, e.g. `{"score": 3, "score_kept": 3}`."""

    def copy(self) -> Self:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def questions(self, player: int) -> Sequence[Question]:
        """Return questions to the player about hidden cards and the like; () if there are none.

        They may depend only on what the player knows, so that asking reveals nothing.
        """
        return ()

    def truths(self, player: int) -> Sequence[str]:
        """Return the correct answer to each of `questions`; the player must not see them.

        Only belief metrics and the labels of the belief loss use them.
        """
        return ()

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return what the player must not know now, by name, e.g. `{"opponent's card": "K"}`.

        Only tests use it.
        """
        return {}

    def resampled(self, player: int, rng: random.Random) -> Self:
        """Return a game with other `hidden` values in which the player has seen the same.

        Only tests call it: everything the player is shown must be equal in both games. The new
        values must be possible given the rules and what the player may know; occasionally they may
        equal the old ones. Do not choose them by comparing messages: values with which a message
        differs are how a test finds a leak.
        """
        if self.hidden(player):
            raise NotImplementedError(
                f"{type(self).__name__} has hidden values: implement resampled(player, rng)."
            )
        return self.copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Something outside the process that a config names, e.g. a file of problems."""

    value: str
    """Value of the config field."""
    name: str
    """Name that may be shown to anyone and is the same on every machine."""
    digest: str
    """Digest of its content, e.g. "sha256:…"."""


class Environment(Protocol[C]):
    """A game with its prompts, scripts and figures.

    A stateless object that all episodes share.
    """

    name: str
    """Lower-case word that identifies it in settings, records and dataset rows."""
    Config: type[C]
    presets: Mapping[str, C]
    """Configs by name; the field `preset` of each config holds that name."""
    policies: Mapping[str, Callable[[], "Policy"]]
    """Scripts by name."""
    teachers: Sequence[str] = ()
    """Names of the scripts whose noisy games a tiny model imitates before training.

    (): all scripts and random play."""
    teacher_noise: float = 0.4
    """Share of random actions in those games."""
    slow_policies: Collection[str] = ()
    """Names of scripts that may take more than a few milliseconds per move, because they search or
    solve the game. A server plays their episodes in separate processes."""
    variants: Mapping[str, str] = {}
    """Scripts that make the same moves as another one, by name, e.g. a bot that thinks aloud. As
    partners in an evaluation the two are one."""
    outside_fields: Mapping[str, Sequence[str]] = {}
    """Config fields that can refer to something outside the process, such as a file. The value of
    each entry lists the field values that do not. Requests may only refer to what the server was
    started with."""
    alarms: Sequence[Alarm] = ()
    """Signs of collapse in figures of `metrics`, in addition to those for every environment."""
    rewards: Mapping[str, RewardFunction] = {}
    """Episode-level rewards by the name of their part, in addition to those of the game.

    They are paid in the last step. `EnvSpec.payoff` and `return_range` cover them, too. To add
    rewards to somebody else's environment, see `rewards.with_rewards`."""
    reward_limits: Mapping[tuple[str, ...], tuple[float, float]] = {}
    """Minimum and maximum sum of some of `rewards` for one player in an episode, by their names. A
    game that would pay more or less is dropped."""
    draws_as: str = ""
    """Name of another environment whose pages can draw these games; "": none."""

    def spec(self, config: C) -> EnvSpec:
        """Return the spec of a config.

        Raises:
            SettingsError: Fields of the config contradict each other.
        """

    def knows_preset(self, name: str) -> bool:
        """Return whether a config with this preset is a game of this environment."""
        return name in self.presets

    def parse_config(self, row: Mapping[str, Any]) -> C:
        """Return the config of a row; fields that it leaves out are those of its preset.

        Args:
            row: Fields of the config by name, from a dataset row, a request or a record.

        Raises:
            SettingsError: See `EnvConfig.parse`.
        """
        preset = self.presets.get(str(row.get("preset")))
        values = {} if preset is None else preset.model_dump()
        return self.Config.parse({**values, **row})

    def check_policy(self, config: C, name: str) -> None:
        """Raise a SettingsError if one of `policies` cannot play this config.

        It is called before anything is played; the script's `seat` checks this, too.
        """
        return None

    def may_block(self, config: C) -> bool | None:
        """Return whether a call to a game may take longer than a few milliseconds, or never return.

        That is the case if it computes a lot, or waits for another process or machine. A server
        plays such games in separate processes, where a call that never returns can be terminated.
        None: unknown. The server then plays this package's games itself, and games from other
        packages in separate processes.
        """
        return None

    def bounds_key(self, config: C) -> str | None:
        """Return what `best_response_score` depends on besides its arguments, e.g. a rules hash.

        Cached scores stay valid as long as the key is unchanged. None: nothing can be computed for
        this game.
        """
        return None

    def best_response_score(self, config: C, policy: str, seat: int) -> float | None:
        """Return the highest mean score, over all starts, of any player alongside a script.

        Args:
            config: The settings.
            policy: Name of the script, which plays every other seat.
            seat: Seat of the player.

        Returns:
            The score, or None if it cannot be computed, e.g. because the script searches.
        """
        return None

    def outside(self, config: C) -> Mapping[str, Outside]:
        """Return what the config's `outside_fields` refer to, loading it if necessary."""
        return {}

    def system(self, config: C, player: int) -> str:
        """Return the system message of a player, e.g. the rules; "" for none.

        Players receive `system_message`, which appends the config's instruction.
        """

    def tools(self, config: C) -> Sequence[Tool]:
        """Return the tools that players may call before they answer; see `envs.tools`.

        All tools are on unless `EnvConfig.tools` selects some. A call changes nothing in the game,
        and only the player sees the call and its result.
        """
        return ()

    def has_short_calls(self, config: C) -> bool:
        """Return whether calls may use the short form; see `envs.tools.calls`."""
        return False

    def tool_rules(self, config: C, tools: Sequence[Tool]) -> str:
        """Return what the system message says about the active tools; "" for nothing."""
        if self.has_short_calls(config):
            return ""
        return describe_tools(tools, config.tool_calls)

    def system_message(self, config: C, player: int) -> str:
        """Return the complete system message of a player; environments do not override it."""
        text = self.system(config, player)
        tools = tools_of(self, config)
        if tools:
            text = "\n\n".join(filter(None, (text, self.tool_rules(config, tools))))
        return config.with_instruction(text, player)

    def person_message(self, config: C, player: int) -> str:
        """Return the complete rules as a person reads them; environments do not override it."""
        text = self.person_rules(config, player)
        tools = tools_of(self, config)
        if tools:
            rules = describe_tools(tools, config.tool_calls, short=self.has_short_calls(config))
            text = "\n\n".join(filter(None, (text, rules)))
        return config.with_instruction(text, player)

    def person_rules(self, config: C, player: int) -> str:
        """Return the rules as a person in this seat reads them; "" for none.

        The default is the system message without its sentence on how a reply ends.
        """
        return without_format(self.system(config, player))

    def reset(self, config: C, *, split: str, seed: int) -> Game:
        """Start an episode.

        The same (split, seed) starts the same game on every machine; see `draw`.

        Args:
            config: The settings.
            split: Name of a stream of starts, e.g. "train" or "eval".
            seed: Index of the start within the split, 0 to 2**63 - 1.
        """

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        """Return a name for the start; equal names mean equal starts.

        Standard errors are clustered by this name.
        """
        return f"{split}/{seed}"

    def num_starts(self, config: C) -> int | None:
        """Return the number of starts if they are numbered and equally likely; otherwise None.

        In the split `types.ALL_STARTS`, seed k selects start k modulo that number.
        """
        return None

    def num_symmetries(self, config: C) -> int:
        """Return the size of the game's symmetry group; 1: only the identity.

        A symmetry renames things that the rules treat alike (in Hanabi, the colors), so that the
        renamed game is equivalent. `conformance.check_symmetries` checks this.
        """
        return 1

    def seen_under(self, config: C, game: Game, symmetries: Sequence[int]) -> Game:
        """Return a copy of a game in which each player sees its own symmetry.

        Everything that a player is shown and all its actions are renamed; the game stays the same.

        Args:
            config: The settings.
            game: The game, at any point.
            symmetries: One number below `num_symmetries` per player; 0 is the identity.
        """
        if any(symmetries):
            raise NotImplementedError(
                f"{type(self).__name__} has symmetries: implement seen_under and worded_under."
            )
        return game.copy()

    def worded_under(self, config: C, action: str, symmetry: int) -> str:
        """Return an action of the unrenamed game as a player who sees the symmetry words it."""
        return action

    def recorded(self, config: C, recording: Recording) -> tuple[Game, str]:
        """Return a recorded game at its start, and the name of the start; see `start_id`.

        Its prompts are those of the config.

        Raises:
            SettingsError: The recording is of another game, or its start is unknown.
        """
        episode = recording.episode
        spec = Setup(self, config).spec
        is_same_game = (episode.env, episode.spec_hash) == (spec.env, spec.hash)
        if not is_same_game or recording.start is not None:
            raise other_game(spec, recording)
        game = self.reset(config, split=episode.suite, seed=episode.seed)
        name = self.start_id(config, split=episode.suite, seed=episode.seed)
        return game, name

    def reply_words(self, config: C) -> tuple[str, ...]:
        """Return words that a tiny model needs but that random play does not produce.

        These are the words of free-text answers.
        """
        return ()

    def word_parts(self, config: C) -> Mapping[str, tuple[str, ...]]:
        """Return the parts that a word of compact messages shares with other words, by word.

        A tiny model learns words that share a part together; see `sft.word_parts`. This is for
        environments that join related information into one word. Words that share nothing may be
        left out.
        """
        return {}

    def metrics(self, config: C, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return figures over episodes.

        The default is the mean of each figure of `Game.result` over the episodes that have it.
        """
        figures: dict[str, list[float]] = {}
        for episode in episodes:
            for name, value in episode.result.items():
                figures.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in figures.items()}

    def picture(self, config: C, game: Any) -> str:
        """Return the position between two moves as text for people; "" for no picture.

        It includes everything that is hidden from players.
        """
        return ""

    def render(self, config: C, episode: Episode) -> Iterator[Frame]:
        """Yield the episode as text for people.

        The default shows the moves, with pictures or, without pictures, what players were shown.
        """
        game = self.reset(config, split=episode.suite, seed=episode.seed)
        for number, group in groupby(episode.turns, lambda turn: turn.step):
            turns = list(group)
            actions = {turn.player: turn.action for turn in turns if not turn.is_call}
            picture = self.picture(config, game)
            lines = [picture] if picture else []
            if not picture:
                for player in actions:
                    lines.append(f"{player_name(player)} reads:\n{game.state_message(player)}")
            for turn in turns:
                if turn.call is not None and turn.is_call:
                    call = f"{turn.call.tool}({turn.call.argument})"
                    lines.append(f"{player_name(turn.player)} calls {call} -> {turn.call.result}")
            for player, action in actions.items():
                lines.append(f"{player_name(player)}: {action}")
            yield Frame(title=f"turn {number + 1}", text="\n".join(lines))
            game.step(actions)
        figures = ", ".join(f"{name} {value:g}" for name, value in game.result().items())
        last_lines = [self.picture(config, game), figures or episode.status.value]
        yield Frame(title="end", text="\n".join(filter(None, last_lines)))


def drawn_symmetries(num_symmetries: int, num_players: int, split: str, seed: int) -> list[int]:
    """Return each player's symmetry in the episodes of a task, drawn independently.

    Args:
        num_symmetries: See `Environment.num_symmetries`.
        num_players: Number of players.
        split: Split of the task.
        seed: Seed of the task.
    """
    symmetries = []
    for player in range(num_players):
        symmetries.append(draw("other-play", split, seed, player, below=num_symmetries))
    return symmetries


def other_game(wanted: EnvSpec, recording: Recording) -> SettingsError:
    """Return the error for a recorded game that differs from the configured one."""
    episode = recording.episode
    return SettingsError(
        f"{recording.where}: a game of {episode.preset} ({episode.env}, rules {episode.spec_hash}) "
        f"with {episode.num_players} players, expected {wanted.preset} ({wanted.env}, rules "
        f"{wanted.hash}) with {wanted.num_players}; select the game with HANABI_ENV, --preset and "
        "--players."
    )


@dataclass(frozen=True, slots=True)
class Setup(Generic[C]):
    """An environment with its config, as a dataset row specifies it.

    `.task("eval", 17)` is one start of it.
    """

    environment: Environment[C]
    config: C

    @property
    def env(self) -> str:
        """Name of the environment."""
        return self.environment.name

    @property
    def spec(self) -> EnvSpec:
        """The spec; see `Environment.spec`."""
        return _spec(self)

    def without_tools(self) -> "Setup[C]":
        """Return the same game without tools, for callers that cannot run tool calls."""
        if not self.tools:
            return self
        return Setup(self.environment, self.config.model_copy(update={"tools": NO_TOOLS}))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that are on."""
        return tools_of(self.environment, self.config)

    def seat_tools(self) -> SeatTools | None:
        """Return the tools of one player at the start of an episode, or None if there are none."""
        tools = self.tools
        if not tools:
            return None
        return SeatTools(
            tools,
            calls_per_turn=self.config.tool_calls,
            timeout=self.config.tool_timeout,
            short=self.environment.has_short_calls(self.config),
        )

    def task(self, split: str, seed: int) -> "Task[C]":
        """Return one start of the game."""
        return Task(environment=self.environment, config=self.config, split=split, seed=seed)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return `Environment.metrics`, the mean of `Environment.rewards`, and `judge_figures`."""
        figures = self.environment.metrics(self.config, episodes)
        return figures | reward_figures(self.environment, episodes) | judge_figures(episodes)

    def row(self) -> dict[str, Any]:
        """Return the setup as JSON; see `registry.setup`."""
        return {"env": self.env, "env_config": self.config.model_dump(mode="json")}


@functools.lru_cache(maxsize=256)
def _spec(setup: Setup[Any]) -> EnvSpec:
    """Return the environment's spec; its hash also covers the tools and the instruction.

    Raises:
        SettingsError: See `Environment.spec` and `tools_of`; or the instruction names a seat that
            the game does not have.
    """
    spec = setup.environment.spec(setup.config)
    if setup.tools:
        rules = setup.environment.tool_rules(setup.config, setup.tools)
        keys = [tool.key for tool in setup.tools]
        short = setup.environment.has_short_calls(setup.config)
        calls_hash = stable_hash(keys, rules, setup.config.tool_calls, short)
        spec = replace(spec, hash=f"{spec.hash}-{calls_hash}")
    instruction = setup.config.instruction
    if not instruction:
        return spec
    for player in split_instruction(instruction):
        if player is not None and player >= spec.num_players:
            raise SettingsError(
                f"instruction={shown(instruction)}: {player_name(player)} does not exist in a game "
                f"with {spec.num_players} players; allowed: "
                f"{', '.join(player_names(spec.num_players))}."
            )
    # The part before the dash still identifies the rules.
    return replace(spec, hash=f"{spec.hash}-{stable_hash(instruction)}")


def no_such_preset(environment: Environment[Any], name: object) -> str:
    """Return why an environment cannot play a preset; the caller says where the name was given.

    Example:
        no_such_preset(KUHN, "khun_poker") == "kuhn_poker has no such preset; did you mean
        'kuhn_poker'? allowed are kuhn_poker."
    """
    presets = list(environment.presets)
    return (
        f"{environment.name} has no such preset; {did_you_mean(name, presets)}allowed are "
        f"{', '.join(presets)}."
    )


def tools_of(environment: Environment[C], config: C) -> tuple[Tool, ...]:
    """Return the tools of an environment that a config turns on.

    Raises:
        SettingsError: The config names a tool that the environment does not offer, or two tools of
            the environment share a name.
    """
    offered: dict[str, Tool] = {}
    for tool in environment.tools(config):
        if tool.name in offered:
            raise SettingsError(
                f"environment {environment.name!r}: two tools are named {tool.name!r}; rename one "
                "of them."
            )
        offered[tool.name] = tool
    if config.tools is None:
        return tuple(offered.values())
    names = split_tools(config.tools)
    for name in names:
        if name not in offered:
            raise SettingsError(
                f"tools={shown(config.tools)}: {environment.name} has no tool {name!r}; it offers "
                f"{', '.join(offered) or 'none'}. The value none turns all tools off."
            )
    return tuple(offered[name] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[C]):
    """One start of one environment; the episodes of a group share it."""

    environment: Environment[C]
    config: C
    split: str
    """Name of a stream of starts, e.g. "train" or "eval"."""
    seed: int
    """Index of the start within the split."""

    def __post_init__(self) -> None:
        """Convert a NumPy seed to an int, because records store it unchanged."""
        [seed] = _plain([self.seed])
        object.__setattr__(self, "seed", seed)

    @property
    def setup(self) -> Setup[C]:
        """The environment and config, without the start."""
        return Setup(self.environment, self.config)


class Observation:
    """What one player may look at on its turn; a player gets nothing else.

    Each part is computed on demand.
    """

    __slots__ = ("__game", "__tools", "player", "window")

    def __init__(
        self,
        game: Game,
        player: int,
        window: int | None = None,
        tools: SeatTools | None = None,
    ) -> None:
        """Create the view of one player on a game.

        Args:
            game: The episode.
            player: Number of the player.
            window: Number of turns that the player remembers; see `EnvConfig.window`.
            tools: The player's tools; None: it has none.
        """
        self.__game = game
        self.__tools = tools
        self.player = player
        self.window = window

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The player's tool calls in this turn, with their results."""
        return tuple(self.__tools.calls) if self.__tools is not None else ()

    @property
    def follows_call(self) -> bool:
        """Whether `message` is the result of a call that the player just made."""
        return bool(self.calls)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the player may call now."""
        return self.__tools.available() if self.__tools is not None else ()

    def call_of(self, tool: Tool, argument: str) -> str:
        """Return the reply that calls a tool, for scripts."""
        if self.__tools is None:
            raise SettingsError(f"{tool.name}: this game has no tools; check `tools` first.")
        return self.__tools.write(tool, argument)

    def is_call(self, reply: str) -> bool:
        """Return whether a reply would call a tool now."""
        tools = self.__tools
        return tools is not None and tools.calls_left > 0 and tools.read(reply) is not None

    def message(self) -> str:
        """Return what the player is told now: `Game.message` or `state_message`.

        The latter is for a player that does not remember the whole episode. After a tool call, the
        message is the result, and the player remembers what it was told before the call.
        """
        if self.calls:
            return self.calls[-1].result
        if self.window is None:
            return self.__game.message(self.player)
        return self.state_message()

    def state_message(self) -> str:
        """See `Game.state_message`."""
        return self.__game.state_message(self.player)

    def view(self) -> Any:
        """See `Game.view`."""
        return self.__game.view(self.player)

    def scene(self) -> Scene:
        """See `Game.scene`; the tool calls of this turn are listed below the table."""
        scene = self.__game.scene(self.player)
        lines = [f"{call.tool}({call.argument}): {call.result}" for call in self.calls]
        if not lines:
            return scene
        return replace(scene, table="\n".join((scene.table, *lines)))

    def legal(self) -> tuple[str, ...] | None:
        """See `Game.legal`."""
        return self.__game.legal(self.player)

    def parse(self, reply: str) -> str | None:
        """See `Game.parse`."""
        return self.__game.parse(self.player, reply)


class Seat(Protocol):
    """A script as one player of one episode."""

    def act(self, seen: Observation) -> str:
        """Return the reply of this turn, usually a legal action."""


class Policy(Protocol):
    """A script: a way to play without a model, shared by any number of episodes."""

    @property
    def name(self) -> str:
        """Name of the policy in reports."""

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        """Return a new seat for episode number `game` of the task's group."""


@runtime_checkable
class MixingPolicy(Policy, Protocol):
    """A policy that samples its reply and knows the probability of each reply.

    As a teacher (HANABI_TEACHER), it labels a turn with all of its replies and their probabilities
    instead of the one reply that it sampled.
    """

    def chances(self, seen: Observation) -> Mapping[str, float]:
        """Return the probability of each reply on this turn, summing to 1; {} if unknown here."""


@dataclass(frozen=True, slots=True)
class Script:
    """A policy defined by one function of the player's observation and a random generator."""

    name: str
    choose: Callable[[Observation, random.Random], str]

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ScriptSeat":
        """Return a seat with its own random generator.

        The generator depends only on the script, player, task and episode number.
        """
        key = _plain([self.name, player, task.split, task.seed, game])
        return ScriptSeat(self.choose, random.Random(repr(key)))


@dataclass(frozen=True, slots=True)
class MixedScript(Script):
    """A script that knows the probability of each of its replies; see `MixingPolicy`."""

    chances: Callable[[Observation], Mapping[str, float]]
    """Maps an observation to the probabilities from which `choose` samples."""


@dataclass(frozen=True, slots=True)
class ScriptSeat:
    """A `Script` as one player of one episode."""

    choose: Callable[[Observation, random.Random], str]
    rng: random.Random

    def act(self, seen: Observation) -> str:
        """Return the chosen reply."""
        return self.choose(seen, self.rng)


def random_policy() -> Script:
    """Return the script that samples uniformly from the legal actions."""
    return MixedScript(
        "random",
        lambda seen, rng: rng.choice(seen.legal() or ("",)),
        lambda seen: even_chances(seen.legal() or ()),
    )


def even_chances(replies: Sequence[str]) -> dict[str, float]:
    """Return equal probabilities for the given replies.

    Example:
        even_chances(("call", "raise")) == {"call": 0.5, "raise": 0.5}
    """
    return dict.fromkeys(replies, 1 / max(len(replies), 1))


def reward_figures(environment: Environment[Any], episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean over episodes and players of each of `Environment.rewards`.

    Example:
        reward_figures(environment, episodes) == {"reward/brief": -0.25}
    """
    figures: dict[str, float] = {}
    for name in environment.rewards if episodes else ():
        values = []
        for episode in episodes:
            for player in range(episode.num_players):
                values.append(episode.reward(player, name))
        figures[f"reward/{name}"] = sum(values) / len(values)
    return figures


def judge_figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return HANABI_JUDGE's mean reward, and the share of episodes that it did not score.

    Example:
        judge_figures(episodes) == {"reward/judge": 0.72, "judge/missing": 0.0}
    """
    paid = []
    num_missing = 0
    for episode in episodes:
        parts = {name for turn in episode.turns[-1:] for own in turn.rewards for name in own}
        if JUDGE_PART in parts:
            paid.append(episode.reward(episode.turns[-1].player, JUDGE_PART))
        num_missing += JUDGE_MEAN_PART in parts
    if not paid:
        return {}
    return {
        "reward/judge": sum(paid) / len(paid),
        "judge/missing": num_missing / (len(paid) + num_missing),
    }


def has_questions(setup: Setup[Any]) -> bool:
    """Return whether any player of a game can be asked about hidden information."""
    game = setup.environment.reset(setup.config, split="train", seed=0)
    return any(game.questions(seat) for seat in range(setup.spec.num_players))


def is_held_out(split: str) -> bool:
    """Return True for an evaluation split, which no run trains on.

    Its name starts with "eval" or "test", optionally after the prefix "split-".
    """
    return split.removeprefix("split-").startswith(("eval", "test"))


def draw(*key: object, below: int) -> int:
    """Return a number from 0 to `below` - 1 that depends only on the key.

    It is the same on every machine and in every version of Python. The results of Python's own
    generator may change between versions.

    Example:
        draw("dice", split, seed, below=6)
    """
    digest = hashlib.sha256(repr(_plain(key)).encode()).digest()
    return int.from_bytes(digest[:8]) % below


def _plain(key: Sequence[object]) -> tuple[Any, ...]:
    """Return the parts of a key with NumPy integers as Python ints, whose `repr` differs."""
    parts: list[Any] = []
    for part in key:
        if isinstance(part, Integral) and not isinstance(part, int):
            parts.append(int(part))
        else:
            parts.append(part)
    return tuple(parts)


def stable_hash(*parts: object) -> str:
    """Return twelve hex digits for `EnvSpec.hash`.

    Args:
        *parts: What defines the game: rules, prompts, the fields of the config.
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
