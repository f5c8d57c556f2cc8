"""The only loop over a game. Servers, evaluation, demos and people all play through `play_episode`."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import cache

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.env import HanabiEnv
from hanabi_grpo.envs.hanabi.policies.base import Policy
from hanabi_grpo.envs.hanabi.rewards import with_full_conversation
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import Episode, EpisodeStatus, Reply, ReplyKind, Turn


async def play_episode(
    config: EnvConfig,
    seats: Sequence[Policy],
    *,
    suite: str,
    seed: int,
    game: int = 0,
    names: Sequence[str] = (),
    instance_id: str = "",
) -> Episode:
    """Play one game to its end.

    A bad reply is data: the env penalises and replaces it. A seat that raises ends the game with that error.

    Args:
        config: The game and its rewards.
        seats: One policy per player, in turn order.
        suite: With `seed`, names the deal.
        seed: See `suite`.
        game: Number of this game within the deal's group; feeds the randomness of scripts and fallback moves.
        names: Who sits in each seat, for the record; the policies' own names when left out.
        instance_id: Which server process plays, for the record.

    Raises:
        SettingsError: The number of policies is not the number of players.
    """
    if len(seats) != config.players:
        raise SettingsError(f"{len(seats)} policies for players={config.players}: give one policy per player.")
    env = HanabiEnv(config, observe=False)
    env.reset(options={"suite": suite, "seed": seed, "game": game})
    players = [
        policy.seat(player, spec=env.board, suite=suite, seed=seed, game=game) for player, policy in enumerate(seats)
    ]
    turns: list[Turn] = []
    status: EpisodeStatus | None = None
    while status is None:
        prompt = cache(env.prompt)
        mover = env.current_player
        reply = await players[mover].reply(env.view(), prompt)
        if reply.out_of_tokens:
            status = EpisodeStatus.TRUNCATED_TOKENS
            turns = [*with_full_conversation(turns, mover, config.weights)]
            break
        shown = reply.prompt or (prompt() if prompt.cache_info().currsize else "")
        *_, info = env.step(reply.text)
        turns.append(_turn(mover, shown, reply, info["action"], info["kind"], info["rewards"]))
        status = env.status
    return Episode(
        preset=env.board.preset,
        spec_hash=env.board.hash,
        num_players=config.players,
        suite=suite,
        seed=seed,
        game=game,
        status=status,
        score=env.game.score,
        score_kept=env.game.score_kept,
        turns=tuple(turns),
        seats=tuple(names or [policy.name for policy in seats]),
        instance_id=instance_id,
    )


async def play_group(
    config: EnvConfig,
    seats: Sequence[Policy],
    *,
    suite: str,
    seed: int,
    num_games: int,
    first_game: int = 0,
    instance_id: str = "",
) -> list[Episode]:
    """Play `num_games` games of one deal concurrently and return them in order of their numbers.

    When one game raises, the others are cancelled and awaited, and the error of the first is raised.
    """
    tasks = [
        asyncio.create_task(
            play_episode(config, seats, suite=suite, seed=seed, game=first_game + number, instance_id=instance_id)
        )
        for number in range(num_games)
    ]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def play_episodes_sync(
    config: EnvConfig, policies: Sequence[Policy], suite: str, seeds: Iterable[int]
) -> list[Episode]:
    """Play one game of each deal, one after the other; for scripts, outside a running event loop."""

    async def play_all() -> list[Episode]:
        return [await play_episode(config, policies, suite=suite, seed=seed) for seed in seeds]

    return asyncio.run(play_all())


def _turn(player: int, prompt: str, reply: Reply, action: str, kind: ReplyKind, rewards: dict[str, float]) -> Turn:
    return Turn(
        player=player,
        prompt=_encodable(prompt),
        reply=_encodable(reply.text),
        action=action,
        kind=kind,
        rewards=rewards,
        prompt_ids=reply.prompt_ids,
        reply_ids=reply.reply_ids,
        logprobs=reply.logprobs,
        version=reply.version,
    )


def _encodable(text: str) -> str:
    # A lone surrogate can be in a `str` but not in UTF-8, so a record that holds one could be neither sent nor written.
    return text.encode("utf-8", "replace").decode("utf-8")
