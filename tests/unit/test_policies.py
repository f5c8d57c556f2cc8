"""Scripted policies: what they do, and the reference scores that tables print."""

import asyncio
from statistics import fmean, stdev

import pytest

from hanabi_grpo.envs.hanabi.env import EnvConfig, HanabiEnv
from hanabi_grpo.envs.hanabi.policies import BlindPolicy, HintBot, Policy, RandomPolicy, make_policy
from hanabi_grpo.envs.hanabi.rules import Game, make_spec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.types import ReplyKind

LAPTOP = make_spec("laptop")
R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)


def answer(policy: Policy, game: Game) -> str:
    player = game.current_player
    seat = policy.seat(player, spec=game.spec, suite="test", seed=1, game=0)
    return asyncio.run(seat.reply(game.view(player), lambda: "")).text


@pytest.mark.parametrize(
    ("preset", "name", "mean"),
    [
        ("laptop", "random", 0.64),
        ("laptop", "blind", 0.133),
        ("laptop", "hint-bot", 2.65),
        ("marshal-mini", "blind", 2.300),
    ],
)
def test_reference_scores_are_within_five_standard_errors(preset: str, name: str, mean: float) -> None:
    policy = make_policy(name)
    episodes = play_episodes_sync(EnvConfig(preset=preset), [policy, policy], "train-reference", range(2000))
    scores = [episode.score for episode in episodes]
    assert abs(fmean(scores) - mean) < 5 * stdev(scores) / len(scores) ** 0.5
    assert all(turn.kind is ReplyKind.LEGAL for episode in episodes for turn in episode.turns)


def test_the_hint_bot_hints_the_rank_of_the_first_playable_card_and_plays_what_is_certain() -> None:
    game = Game(LAPTOP, (R1, R2, Y2, Y1, R1, R1, Y1, Y1))
    assert answer(HintBot(), game) == "Hint 1"
    game.apply(Action("hint_rank", target=1, value=0))
    assert answer(HintBot(), game) == "Play 0"


def test_the_hint_bot_hints_the_colour_where_the_rank_is_known_and_plays_nothing_uncertain() -> None:
    game = Game(LAPTOP, (R2, Y2, R1, Y1, R1, Y1, R1, Y1))
    game.apply(Action("hint_rank", target=1, value=0))
    game.apply(Action("play", slot=0))
    assert answer(HintBot(), game) == "Hint R"
    game.apply(Action("discard", slot=0))
    # Its slot 0 is a 1 of either colour, and yellow 1 lies on the table: it helps the partner instead.
    assert answer(HintBot(), game) == "Hint 2"


def test_the_hint_bot_discards_the_oldest_card_when_no_hint_is_left() -> None:
    game = Game(LAPTOP, (R2, Y2, Y1, R1, R1, Y1, R1, Y1))
    game.apply(Action("play", slot=2))
    game.apply(Action("hint_rank", target=0, value=1))
    game.apply(Action("hint_rank", target=1, value=0))
    game.apply(Action("hint_rank", target=0, value=0))
    assert answer(HintBot(), game) == "Discard 0"


def test_noise_one_is_random_play_and_a_share_is_checked() -> None:
    config = EnvConfig(preset="laptop")
    noisy = play_episodes_sync(config, [HintBot(noise=1.0)] * 2, "train", range(2000))
    assert abs(fmean(episode.score for episode in noisy) - 0.64) < 0.12
    with pytest.raises(SettingsError, match=r"noise=1\.5: it is a share"):
        HintBot(noise=1.5)


def test_blind_play_always_plays_the_oldest_card() -> None:
    (episode,) = play_episodes_sync(EnvConfig(preset="full", players=4), [BlindPolicy()] * 4, "train", [3])
    assert {turn.reply for turn in episode.turns} == {"Play 0"}


def test_random_play_is_the_same_for_a_game_and_differs_between_games_and_seats() -> None:
    env = HanabiEnv(EnvConfig(preset="full"))
    env.reset(options={"suite": "train", "seed": 1})

    def moves(seat: int, game: int) -> list[str]:
        chair = RandomPolicy().seat(seat, spec=env.board, suite="train", seed=1, game=game)
        return [asyncio.run(chair.reply(env.view(), env.prompt)).text for _ in range(20)]

    assert moves(0, 0) == moves(0, 0)
    assert len({tuple(moves(seat, game)) for seat in range(2) for game in range(3)}) == 6


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    with pytest.raises(
        SettingsError,
        match=r"policy 'hint_bot' is unknown; allowed: random, .*, flawed\. Did you mean 'hint-bot'\?",
    ):
        make_policy("hint_bot")
