"""Episode-level rewards: Python functions that an installed package adds to an environment.

They are part of an environment, so they run where it is played: in the rollout server's processes
for games that may block, never in the trainer. Every record lists their rewards by name.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, get_args

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import (
    C,
    Environment,
    EnvSpec,
    Frame,
    Game,
    Outside,
    Policy,
    RewardFunction,
    stable_hash,
)
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.tools.tool import Tool
from hanabi_grpo.errors import RewardError, SettingsError, shown
from hanabi_grpo.types import JUDGE_PARTS, TURN_PARTS, Episode, player_name, task_name

Payoff = Literal["team", "zero_sum", "general"]
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
"""Valid names of rewards."""
_ROUNDING = 1e-9
"""Tolerance for sums of floats."""


def with_rewards(
    environment: Environment[C] | str,
    *,
    name: str,
    rewards: Mapping[str, RewardFunction],
    reward_range: tuple[float, float],
    payoff: Payoff | None = None,
) -> "RewardedEnvironment[C]":
    """Return an environment that plays like an existing one and pays additional rewards.

    To use it in training, register it under the same name with an entry point, like any environment
    in your own package (docs/environments.md). Then `HANABI_ENV` selects it, and server and trainer
    compare their versions of your package.

    Args:
        environment: The existing environment, or its name.
        name: The new name, used in settings, records and requests.
        rewards: Reward functions by the name of their reward part. Each takes a finished episode
            and returns one finite number per player.
        reward_range: Minimum and maximum sum of these rewards for one player in an episode. A game
            that would pay more or less is dropped with a RewardError.
        payoff: How the players' rewards are related, these rewards included; see
            `EnvSpec.payoff`. None: unchanged, so all players of a team must get the same reward.

    Raises:
        SettingsError: A name, the range or the payoff is invalid.

    Example:
        def brief(episode: Episode) -> list[float]:
            characters = sum(len(turn.reply) for turn in episode.turns)
            return [-min(characters / 1000, 1.0)] * episode.num_players

        HANABI_BRIEF = with_rewards(
            "hanabi", name="hanabi_brief", rewards={"brief": brief}, reward_range=(-1.0, 0.0)
        )
    """
    base = registry.get(environment) if isinstance(environment, str) else environment
    if name == base.name or name in registry.OWN or not _NAME.fullmatch(name):
        raise SettingsError(
            f"with_rewards(name={shown(name)}): give a new name of lower-case letters, digits and "
            f"'_', e.g. {base.name.replace(':', '_')}_brief; each name stands for one reward set."
        )
    if not rewards:
        raise SettingsError(f"with_rewards(rewards={{}}): {name} needs at least one function.")
    for part, function in rewards.items():
        taken = part in TURN_PARTS | JUDGE_PARTS or part in base.rewards
        if taken or not _NAME.fullmatch(part) or not callable(function):
            raise SettingsError(
                f"with_rewards(rewards={{{shown(part)}: {shown(function)}}}): map unused names of "
                "lower-case letters, digits and '_' to functions; names already in use: "
                f"{', '.join(sorted({*TURN_PARTS, *JUDGE_PARTS, *base.rewards}))}."
            )
    low, high = reward_range
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise SettingsError(
            f"with_rewards(reward_range={reward_range!r}): give the minimum and maximum sum of "
            "these rewards for one player, both finite."
        )
    if payoff is not None and payoff not in get_args(Payoff):
        raise SettingsError(
            f"with_rewards(payoff={shown(payoff)}): allowed are {', '.join(get_args(Payoff))}, and "
            "None for that of the existing environment."
        )
    return RewardedEnvironment(base, name, rewards, (low, high), payoff)


class RewardedEnvironment(Environment[C]):
    """An existing environment with additional episode-level rewards; see `with_rewards`."""

    def __init__(
        self,
        base: Environment[C],
        name: str,
        rewards: Mapping[str, RewardFunction],
        reward_range: tuple[float, float],
        payoff: Payoff | None,
    ) -> None:
        self.base = base
        self.name = name
        self.rewards = {**base.rewards, **rewards}
        self.reward_range = reward_range
        self.reward_limits = {**base.reward_limits, tuple(rewards): reward_range}
        self.payoff = payoff
        self.Config = base.Config
        self.presets: Mapping[str, C] = base.presets
        self.policies: Mapping[str, Callable[[], Policy]] = base.policies
        self.teachers = base.teachers
        self.teacher_noise = base.teacher_noise
        self.slow_policies = base.slow_policies
        self.variants = base.variants
        self.outside_fields = base.outside_fields
        self.alarms = base.alarms
        self.draws_as = base.draws_as or base.name

    def spec(self, config: C) -> EnvSpec:
        """Return the spec of the base environment, with this name and the wider range."""
        spec = self.base.spec(config)
        low, high = spec.return_range
        least, greatest = self.reward_range
        rewards_hash = stable_hash(sorted(self.rewards), self.reward_range, self.payoff)
        attainable = None if spec.score == "return" else spec.attainable
        return replace(
            spec,
            env=self.name,
            # The part before the dash still identifies the rules.
            hash=f"{spec.hash}-{rewards_hash}",
            payoff=self.payoff or spec.payoff,
            return_range=(low + least, high + greatest),
            attainable=attainable,
        )

    def knows_preset(self, name: str) -> bool:
        """See `Environment.knows_preset`."""
        return self.base.knows_preset(name)

    def parse_config(self, row: Mapping[str, Any]) -> C:
        """See `Environment.parse_config`."""
        return self.base.parse_config(row)

    def may_block(self, config: C) -> bool | None:
        """Return True: a third-party function may take any amount of time."""
        return True

    def num_starts(self, config: C) -> int | None:
        """See `Environment.num_starts`."""
        return self.base.num_starts(config)

    def num_symmetries(self, config: C) -> int:
        """See `Environment.num_symmetries`."""
        return self.base.num_symmetries(config)

    def seen_under(self, config: C, game: Game, symmetries: Sequence[int]) -> Game:
        """See `Environment.seen_under`."""
        return self.base.seen_under(config, game, symmetries)

    def worded_under(self, config: C, action: str, symmetry: int) -> str:
        """See `Environment.worded_under`."""
        return self.base.worded_under(config, action, symmetry)

    def check_policy(self, config: C, name: str) -> None:
        """See `Environment.check_policy`."""
        self.base.check_policy(config, name)

    def bounds_key(self, config: C) -> str | None:
        """See `Environment.bounds_key`; there is no known bound if the score includes rewards."""
        return self.base.bounds_key(config) if self.base.spec(config).score != "return" else None

    def best_response_score(self, config: C, policy: str, seat: int) -> float | None:
        """See `Environment.best_response_score`."""
        return self.base.best_response_score(config, policy, seat)

    def outside(self, config: C) -> Mapping[str, Outside]:
        """See `Environment.outside`."""
        return self.base.outside(config)

    def system(self, config: C, player: int) -> str:
        """See `Environment.system`."""
        return self.base.system(config, player)

    def person_rules(self, config: C, player: int) -> str:
        """See `Environment.person_rules`."""
        return self.base.person_rules(config, player)

    def tools(self, config: C) -> Sequence[Tool]:
        """See `Environment.tools`."""
        return self.base.tools(config)

    def has_short_calls(self, config: C) -> bool:
        """See `Environment.has_short_calls`."""
        return self.base.has_short_calls(config)

    def tool_rules(self, config: C, tools: Sequence[Tool]) -> str:
        """See `Environment.tool_rules`."""
        return self.base.tool_rules(config, tools)

    def reset(self, config: C, *, split: str, seed: int) -> Game:
        """See `Environment.reset`."""
        return self.base.reset(config, split=split, seed=seed)

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        """See `Environment.start_id`."""
        return self.base.start_id(config, split=split, seed=seed)

    def recorded(self, config: C, recording: Recording) -> tuple[Game, str]:
        """See `Environment.recorded`; games of the base environment do not count as this one's."""
        if recording.start is not None:
            return self.base.recorded(config, recording)
        return super().recorded(config, recording)

    def reply_words(self, config: C) -> tuple[str, ...]:
        """See `Environment.reply_words`."""
        return self.base.reply_words(config)

    def word_parts(self, config: C) -> Mapping[str, tuple[str, ...]]:
        """See `Environment.word_parts`."""
        return self.base.word_parts(config)

    def metrics(self, config: C, episodes: Sequence[Episode]) -> dict[str, float]:
        """See `Environment.metrics`."""
        return self.base.metrics(config, episodes)

    def picture(self, config: C, game: Any) -> str:
        """See `Environment.picture`."""
        return self.base.picture(config, game)

    def render(self, config: C, episode: Episode) -> Iterator[Frame]:
        """See `Environment.render`."""
        return self.base.render(config, episode)


def episode_rewards(
    rewards: Mapping[str, RewardFunction],
    episode: Episode,
    spec: EnvSpec,
    limits: Mapping[tuple[str, ...], tuple[float, float]],
) -> list[dict[str, float]]:
    """Return what reward functions pay for a finished episode.

    Args:
        rewards: The functions by the name of their part.
        episode: The episode.
        spec: Spec of the game; its payoff applies to these rewards, too.
        limits: See `Environment.reward_limits`.

    Returns:
        The reward from each function, per player.

    Raises:
        RewardError: A function raises an error or returns invalid numbers, or their sum is outside
            its limits. The message names it.
    """
    paid: list[dict[str, float]] = [{} for _ in range(spec.num_players)]
    known = {part for turn in episode.turns for parts in turn.rewards for part in parts}
    for name, function in rewards.items():
        if name in known:
            raise _failed(name, episode, "has the same name as a reward of the game; rename it")
        try:
            answer = function(episode)
            # A generator runs only now.
            if isinstance(answer, Iterator):
                answer = list(answer)
        except Exception as error:  # third-party code may raise anything
            problem = f"raised {type(error).__name__}: {error}"
            raise _failed(name, episode, problem) from error
        for player, value in enumerate(_numbers(name, answer, episode, spec)):
            paid[player][name] = value
    for names, (least, greatest) in limits.items():
        for player, parts in enumerate(paid):
            total = sum(parts[name] for name in names)
            if not least - _ROUNDING <= total <= greatest + _ROUNDING:
                problem = (
                    f"pays {player_name(player)} {total:g}, outside of reward_range=({least:g}, "
                    f"{greatest:g}); correct the function, or give with_rewards a wider range"
                )
                raise _failed(" + ".join(names), episode, problem)
    return paid


def with_parts(episode: Episode, parts: Sequence[Mapping[str, float]]) -> Episode:
    """Return a finished episode with episode-level rewards added to its last step.

    A player's rewards go into its turn of that step, or if it has none, into the episode's last
    turn.

    Args:
        episode: The episode; one without turns is returned unchanged.
        parts: Named rewards per player.

    Raises:
        RewardError: The last step already has a reward of the same name.
    """
    if not episode.turns:
        return episode
    turns = list(episode.turns)
    last_index = len(turns) - 1
    indices: dict[int, int] = {}
    for index, turn in enumerate(turns):
        if turn.step == turns[last_index].step:
            indices[turn.player] = index
    for player, own_parts in enumerate(parts):
        index = indices.get(player, last_index)
        rewards = list(turns[index].rewards)
        for name in own_parts.keys() & rewards[player].keys():
            raise _failed(name, episode, "has the same name as a reward of the game; rename it")
        rewards[player] = {**rewards[player], **own_parts}
        turns[index] = replace(turns[index], rewards=tuple(rewards))
    return replace(episode, turns=tuple(turns))


def _numbers(name: str, answer: Any, episode: Episode, spec: EnvSpec) -> list[float]:
    """Return the result of one function as numbers, one per player."""
    wanted = f"expected a list of {spec.num_players} finite numbers, one per player"
    # As a list, these would be keys, or in arbitrary order.
    if isinstance(answer, Mapping | Set):
        raise _failed(name, episode, f"returned {shown(answer)}; {wanted}")
    try:
        values = list(answer)
    except TypeError as error:
        raise _failed(name, episode, f"returned {shown(answer)}; {wanted}") from error
    if len(values) != spec.num_players or not all(map(_is_finite, values)):
        raise _failed(name, episode, f"returned {shown(values)}; {wanted}")
    numbers = [float(value) for value in values]
    if spec.payoff == "team" and len(set(numbers)) > 1:
        problem = f"returned {shown(numbers)}, but the players of a team must get the same; "
        raise _failed(name, episode, f'{problem}see payoff="general" of with_rewards')
    if spec.payoff == "zero_sum" and abs(sum(numbers)) > _ROUNDING:
        problem = f"returned {shown(numbers)}, but in a zero-sum game they must sum to 0; "
        raise _failed(name, episode, f'{problem}see payoff="general" of with_rewards')
    return numbers


def _is_finite(value: object) -> bool:
    """Return whether a value is a number that fits a finite float."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def _failed(name: str, episode: Episode, problem: str) -> RewardError:
    task = task_name(episode.suite, episode.seed)
    return RewardError(
        f"reward {name!r} of {episode.env}, task {task}, game {episode.game}: {problem}."
    )
