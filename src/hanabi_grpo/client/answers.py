"""Validation of a server's answers, before anything is learned from them.

Types are checked where an answer is decoded (`rollout.wire.read_struct`). This module checks what
only the client can know: whether these are the games and replies that it requested, whether their
parts are consistent, and whether every number that training uses is finite. No later code checks
an answer again.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.messages import (
    DroppedRow,
    ProbeAnswer,
    ReplyAnswer,
    ReplyRequest,
    RequestedTask,
    RolloutAnswer,
    ScoreAnswer,
    ScoreRequest,
)
from hanabi_grpo.rollout.wire import check_episode, check_logprob_count
from hanabi_grpo.settings.refs import AdapterRef, parse_seat
from hanabi_grpo.types import DroppedGame, Episode, Reply, player_name, task_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """The games of one request."""

    groups: list[list[Episode]]
    """Per task, in the order of the request, the games that were finished, by their numbers."""
    dropped: tuple[DroppedGame, ...] = ()
    """Games that the server dropped, and those whose returns overflow; no group includes them."""
    prompt_tokens: int = 0
    """See `messages.RolloutAnswer`."""
    cached_tokens: int = 0
    """See `messages.RolloutAnswer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GameIdentity:
    """The game of an episode, and the policies in its seats."""

    env: str
    suite: str
    seed: int
    game: int
    preset: str
    num_players: int
    spec_hash: str
    seats: tuple[str, ...]

    @classmethod
    def of_request(cls, task: RequestedTask, game: int) -> "_GameIdentity":
        spec = task.task.setup.spec
        return cls(
            env=spec.env,
            suite=task.task.split,
            seed=task.task.seed,
            game=game,
            preset=spec.preset,
            num_players=spec.num_players,
            spec_hash=spec.hash,
            seats=task.seats,
        )

    @classmethod
    def of_episode(cls, episode: Episode) -> "_GameIdentity":
        return cls(
            env=episode.env,
            suite=episode.suite,
            seed=episode.seed,
            game=episode.game,
            preset=episode.preset,
            num_players=episode.num_players,
            spec_hash=episode.spec_hash,
            seats=episode.seats,
        )

    def __str__(self) -> str:
        return (
            f"game {self.game} of {self.env} {task_name(self.suite, self.seed)} on {self.preset} "
            f"with {self.num_players} players (rules {self.spec_hash}), {','.join(self.seats)} in "
            "its seats"
        )


def checked_games(answer: RolloutAnswer, tasks: Sequence[RequestedTask]) -> RolloutResult:
    """Return the games of an answer, sorted into those played and those dropped.

    Args:
        answer: Episodes and dropped games, by task and then by number.
        tasks: The tasks that were requested.

    Raises:
        ServerError: The games are not the requested ones, their parts are inconsistent, a reply id
            has no logprob, or a number is not finite.
    """
    games_per_task = [len(task.games) for task in tasks]
    num_asked = sum(games_per_task)
    if len(answer.episodes) + len(answer.dropped) != num_asked:
        raise ServerError(
            f"{len(answer.episodes)} games and {len(answer.dropped)} dropped ones for {num_asked} "
            "requested ones. Do server and client run the same version of hanabi_grpo?"
        )
    dropped_rows = {}
    for row in answer.dropped:
        dropped_rows[row.task, row.game] = row
    episodes = iter(answer.episodes)
    groups: list[list[Episode]] = []
    dropped: list[DroppedGame] = []
    for number, task in enumerate(tasks):
        group: list[Episode] = []
        groups.append(group)
        for game in task.games:
            dropped_row = dropped_rows.pop((number, game), None)
            if dropped_row is None:
                episode = _next_episode(episodes, task, game)
                problem = bad_return(episode)
                if not problem:
                    group.append(episode)
                    continue
                dropped_row = DroppedRow(task=number, game=game, reason=problem)
            dropped_game = DroppedGame(
                suite=task.task.split,
                seed=task.task.seed,
                game=game,
                reason=dropped_row.reason,
                is_late=dropped_row.is_late,
                num_turns=dropped_row.num_turns,
                rewards=dropped_row.rewards,
            )
            dropped.append(dropped_game)
    return RolloutResult(
        groups=groups,
        dropped=tuple(dropped),
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
    )


def _next_episode(episodes: Iterator[Episode], task: RequestedTask, game: int) -> Episode:
    """Return the next episode, which must be a valid one of this game."""
    episode = next(episodes, None)
    if episode is None:
        raise ServerError(f"game {game} of {task.where} is missing: neither played nor dropped.")
    try:
        check_episode(episode, needs_logprobs=True)
    except ValueError as error:
        raise ServerError(
            f"game {game} of {task.where}: {error}; do both sides run the same version?"
        ) from None
    asked = _GameIdentity.of_request(task, game)
    answered = _GameIdentity.of_episode(episode)
    if answered != asked:
        raise ServerError(
            f"requested {asked}, received {answered}; it is not used for training. "
            "Do server and client run the same version of hanabi_grpo? Restart the server."
        )
    return episode


def bad_return(episode: Episode) -> str:
    """Return what is wrong with the returns of a game; "" when all of them are finite.

    Finite rewards may overflow in their sum.
    """
    for player in range(episode.num_players):
        value = episode.reward(player)
        if not math.isfinite(value):
            return (
                f"{player_name(player)}: its return over the game is {value}; a return must be "
                "finite. Use smaller reward weights (reward_* in the dataset's env_config)."
            )
    return ""


def checked_reply(answer: ReplyAnswer, request: ReplyRequest) -> Reply:
    """Return the reply of an answer.

    Raises:
        ServerError: The parts are inconsistent, or the reply is of another version.
    """
    where = f"a reply of {request.seat}"
    try:
        check_logprob_count(answer.logprobs, answer.reply_ids, where, needs_logprobs=True)
    except ValueError as error:
        raise ServerError(f"{error}. Restart the server.") from None
    if answer.out_of_tokens == bool(answer.reply_ids):
        raise ServerError(
            f"{where}: out_of_tokens={answer.out_of_tokens}, but {len(answer.reply_ids)} reply "
            "ids. Restart the server."
        )
    if not answer.out_of_tokens and answer.version != _version_of(request.seat):
        raise ServerError(f"{where}: it came from version {answer.version}. Restart the server.")
    return Reply(prompt=request.prompt, **msgspec.structs.asdict(answer))


def checked_scores(answer: ScoreAnswer, request: ScoreRequest) -> tuple[tuple[float, ...], ...]:
    """Return the log-probability of each reply of each prompt, in nats.

    Raises:
        ServerError: There is not one number for each reply, or they are of another version.
    """
    num_asked = [len(prompt.replies) for prompt in request.prompts]
    num_answered = list(map(len, answer.logprobs))
    if num_answered != num_asked or answer.version != _version_of(request.seat):
        raise ServerError(
            f"scores of {request.seat}: not what was requested (version {answer.version})."
        )
    return answer.logprobs


def checked_probe(answer: ProbeAnswer, sequences: Sequence[Sequence[int]]) -> ProbeAnswer:
    """Return the answer if it has every requested number.

    Raises:
        ServerError: Some are missing.
    """
    asked = [len(ids) - 1 for ids in sequences]
    for copy in answer.copies:
        if not list(map(len, copy.without)) == list(map(len, copy.under)) == asked:
            raise ServerError("the answer must have one number for each token id that was sent.")
    if not answer.copies:
        raise ServerError("no replica answered.")
    return answer


def _version_of(seat: str) -> int | None:
    """Return the version that a seat's replies must be stamped with; None: the base model."""
    ref = parse_seat(seat)
    return ref.version if isinstance(ref, AdapterRef) else None
