from dataclasses import replace
from typing import Any

import pytest

from fake_engine import LAPTOP
from hanabi_grpo.client.rollout_client import RolloutClient, RolloutResult
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import make_policy
from hanabi_grpo.errors import ServerError
from hanabi_grpo.evaluation.matches import PlayedGame, Served, play_line_up, replay
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.rollout.resolver import SeatResolver
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import DroppedGame
from server_app import RunningApp, running_app


def played(text: str, config: EnvConfig, num_deals: int, **options: Any) -> list[PlayedGame]:
    line_up = parse_line_up(text, config.players)
    return [
        game for games in play_line_up(line_up, config, range(num_deals), suite="eval", **options) for game in games
    ]


def served(app: RunningApp) -> Served:
    client = RolloutClient(app.url)
    return Served(client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=1.0)


def test_scripts_play_every_deal_in_every_seat_order() -> None:
    config = EnvConfig(preset="mini", players=3)
    games = played("iggi,random,hint-bot", config, 120)
    assert [(game.seed, game.order) for game in games] == [(seed, order) for seed in range(120) for order in range(3)]
    orders = [("iggi", "random", "hint-bot"), ("random", "hint-bot", "iggi"), ("hint-bot", "iggi", "random")]
    for number, order in enumerate(orders):
        alone = play_episodes_sync(config, [make_policy(name) for name in order], "eval", range(120))
        assert [one.score for one in alone] == [game.game.score for game in games if game.order == number]


def test_a_model_and_a_script_change_seats_over_a_real_connection() -> None:
    with running_app() as app:
        games = played("base,hint-bot", LAPTOP, 130, served=served(app))
    assert [(game.seed, game.order) for game in games] == [(seed, order) for seed in range(130) for order in range(2)]
    for game in games:
        assert game.episode is not None
        assert game.episode.seats == (("base", "hint-bot"), ("hint-bot", "base"))[game.order]
        assert (game.game.score, game.game.num_turns) == (game.episode.score, len(game.episode.turns))
        for turn in game.episode.turns:
            assert bool(turn.reply_ids) == (game.episode.seats[turn.player] == "base")


class Dropping:
    """Gives up one game of every request."""

    def __init__(self, client: RolloutClient) -> None:
        self._client = client

    def play(self, deals: Any, **options: Any) -> RolloutResult:
        result = self._client.play(deals, **options)
        [lost] = result.groups[0]
        result.groups[0].clear()
        return replace(result, dropped=(DroppedGame(suite=lost.suite, seed=lost.seed, game=0, reason="lightning"),))


def test_a_dropped_game_is_no_figure() -> None:
    with running_app() as app:
        given = served(app)
        broken = replace(given, client=Dropping(given.client))  # type: ignore[arg-type]
        with pytest.raises(ServerError, match=r"1 of 3 games were not played \(deal eval/0: lightning\)"):
            played("base", LAPTOP, 3, served=broken)


def test_an_episode_whose_moves_do_not_fit_its_deal_is_refused() -> None:
    [episode] = play_episodes_sync(LAPTOP, [make_policy("hint-bot")] * 2, "eval", [5])
    assert replay(episode).score == episode.score
    forged = (
        replace(episode, score_kept=episode.score_kept + 1),
        replace(episode, turns=episode.turns[1:]),
        replace(episode, turns=(replace(episode.turns[0], action="Sing"), *episode.turns[1:])),
    )
    for one in forged:
        with pytest.raises(ServerError, match="deal eval/5, game 0"):
            replay(one)
