"""The one look at what a server played before anything is learned from it: the games asked for, in
numbers that hold.

Types, finite numbers and lists that fit are `rollout.wire`'s; here is what only the one who asked can
know."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.messages import RequestedTask, RolloutAnswer
from hanabi_grpo.rollout.wire import fitting
from hanabi_grpo.types import DroppedGame, Episode, player_name, task_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """The games of one request."""

    groups: list[list[Episode]]
    """Per task, in the order asked, the games that were played to their end, in order of their
    numbers.
    """
    dropped: tuple[DroppedGame, ...] = ()
    """The games that the server gave up, and those whose returns overflow; they are in no group."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """See `messages.RolloutAnswer`."""


def checked_games(answer: RolloutAnswer, tasks: Sequence[RequestedTask]) -> RolloutResult:
    """Return the games of an answer; ServerError: others than those asked for, or tokens without a
    logprob each.
    """
    given_up = {(row.task, row.game): row.reason for row in answer.dropped}
    asked = sum(len(task.games) for task in tasks)
    if len(answer.episodes) + len(answer.dropped) != asked:
        raise ServerError(
            f"{len(answer.episodes)} games and {len(answer.dropped)} dropped ones for {asked} "
            "that were asked for; "
            "the server and this client do not fit."
        )
    rows = iter(answer.episodes)
    groups: list[list[Episode]] = [[] for _ in tasks]
    dropped = []
    for number, (task, group) in enumerate(zip(tasks, groups, strict=True)):
        for game in task.games:
            reason = given_up.pop((number, game), "")
            if not reason:
                episode = _as_asked(next(rows, None), task, game)
                reason = bad_return(episode)
            if reason:
                dropped.append(
                    DroppedGame(
                        suite=task.task.split, seed=task.task.seed, game=game, reason=reason
                    )
                )
            else:
                group.append(episode)
    tokens = {"prompt_tokens": answer.prompt_tokens, "cached_tokens": answer.cached_tokens}
    return RolloutResult(groups=groups, dropped=tuple(dropped), **tokens)


def _as_asked(episode: Episode | None, task: RequestedTask, game: int) -> Episode:
    if episode is None:
        raise ServerError(f"game {game} of {task.where} is neither played nor dropped.")
    try:
        fitting(episode)
    except ValueError as error:
        raise ServerError(
            f"game {game} of {task.where}: {error}; do both sides run the same version?"
        ) from None
    spec = task.task.setup.spec
    asked: dict[str, Any] = {
        **{"env": spec.env, "suite": task.task.split, "seed": task.task.seed, "game": game},
        **{
            "preset": spec.preset,
            "num_players": spec.num_players,
            "spec_hash": spec.hash,
            "seats": task.seats,
        },
    }
    got = {name: getattr(episode, name) for name in asked}
    if got != asked:
        raise ServerError(
            f"asked for {_named(asked)}, the answer is {_named(got)}; nothing is learned from it. "
            "Do server and client run the same version of hanabi_grpo? Restart the server."
        )
    return episode


def _named(fields: dict[str, Any]) -> str:
    return (
        f"game {fields['game']} of {fields['env']} {task_name(fields['suite'], fields['seed'])} "
        f"on {fields['preset']} "
        f"with {fields['num_players']} players (rules {fields['spec_hash']}), "
        f"{','.join(fields['seats'])} in its seats"
    )


def bad_return(episode: Episode) -> str:
    """Return what is wrong with the returns of a game, "" when they are finite; refuse one without
    its logprobs.
    """
    for index, turn in enumerate(episode.turns):
        if len(turn.logprobs) != len(turn.reply_ids):
            raise ServerError(
                f"{player_name(turn.player)}, turn {index}: {len(turn.logprobs)} logprobs for "
                f"{len(turn.reply_ids)} "
                "reply ids; each id needs its own."
            )
    for player in range(episode.num_players):
        if not math.isfinite(value := episode.reward(player)):
            return (
                f"{player_name(player)}: its return over the game is {value}; a return must be "
                "finite. Use smaller "
                "reward weights (reward_* in the dataset's env_config)."
            )
    return ""
