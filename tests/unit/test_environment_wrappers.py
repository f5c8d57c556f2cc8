"""Environments as PettingZoo and Gymnasium environments.

The libraries' own checks run in `conformance.check`.
"""

import random
from typing import Any

import numpy as np
import pytest

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import base, registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.rules import make_spec, shuffled_deck
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.envs.wrappers import AECWrapper, SeatEnv
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import ReplyKind
from made_games import play_episodes_sync
from toy_environments import DILEMMA, ToyConfig
from toy_kuhn import KUHN, KuhnConfig, equilibrium


@pytest.mark.parametrize("action", [None, 5, b"Play 0"])
def test_an_action_of_a_seat_that_is_no_text_is_refused_and_changes_nothing(action: Any) -> None:
    env = seat_env("laptop", 2, 0)
    message, _ = env.reset(options={"split": "eval", "seed": 1})
    wanted = r"^action=.*: an action must be the text of a reply"
    with pytest.raises(IllegalActionError, match=wanted):
        env.step(action)
    assert env.referee.see(0).message() == message
    assert env.step("Play 0")[4]["kind"] is ReplyKind.LEGAL


@pytest.mark.parametrize(
    ("env", "preset"),
    [("kuhn_poker", "kuhn_poker"), ("frozen_lake", "frozen_lake"), ("hanabi", "laptop")],
)
def test_a_seed_of_numpy_starts_the_game_of_the_same_number(env: str, preset: str) -> None:
    setup = registry.setup(env, {"preset": preset})
    random_play = setup.environment.policies["random"]()
    num_players = setup.spec.num_players
    for number in range(12):
        seed = np.int64(number)
        plain = setup.environment.reset(setup.config, split="eval", seed=number)
        game = setup.environment.reset(setup.config, split="eval", seed=seed)
        for player in range(num_players):
            assert game.view(player) == plain.view(player)
        # The scripts' own draws follow from the seed, too, and so does what replaces a bad reply.
        policies = dict.fromkeys(range(num_players), random_play)
        episode = play_scripts(setup.task("eval", seed), policies, number=np.int64(3))
        assert episode == play_scripts(setup.task("eval", number), policies, number=3)
        assert type(episode.seed) is int


def test_a_numpy_seed_among_the_options_of_reset_is_that_number() -> None:
    messages = []
    for seed, game in ((7, 2), (np.int64(7), np.int64(2))):
        env = seat_env("laptop", 2, 1, "random")
        messages.append(env.reset(options={"split": "eval", "seed": seed, "game": game})[0])
        aec = aec_env("laptop")
        aec.reset(options={"seed": seed})
        messages.append(aec.observe("player_0")["message"])
    assert messages[:2] == messages[2:]


def aec_env(preset: str, players: int = 2, **config: object) -> AECWrapper:
    return AECWrapper(HANABI, HANABI.Config.parse({"preset": preset, "players": players, **config}))


def seat_env(
    preset: str, players: int, seat: int, partner: str = "hint-bot", **config: object
) -> SeatEnv[Any]:
    partners = {other: HANABI.policies[partner]() for other in range(players) if other != seat}
    return SeatEnv(
        HANABI,
        HANABI.Config.parse({"preset": preset, "players": players, **config}),
        seat,
        partners,
    )


# --- PettingZoo


def test_the_agents_read_what_the_players_of_the_loop_read_and_a_bad_reply_costs_its_agent() -> (
    None
):
    aec = aec_env("full", 3)
    setup = Setup(HANABI, HANABI.Config(preset="full", players=3))
    table = Referee(setup.task("train", 8))
    aec.reset(options={"split": "train", "seed": 8})
    rng = random.Random(8)
    while table.status is None:
        agent = aec.agent_selection
        [player] = table.to_act()
        seen = table.see(player)
        assert aec.observe(agent)["message"] == seen.message()
        assert aec.infos[agent]["legal"] == seen.legal()
        others = [other for other in aec.agents if other != agent]
        assert {aec.observe(other)["message"] for other in others} == {""}
        reply = rng.choice([*(seen.legal() or ()), "?"])
        aec.step(reply)
        [turn] = table.step({player: reply})
        assert aec.rewards[agent] == turn.reward(player)
        # The others do not pay for the reply that could not be read.
        price = 0.5 if turn.kind is ReplyKind.UNPARSABLE else 0.0
        assert aec.rewards[others[0]] == turn.reward(player) + price
        assert aec.referee.game.table.events == table.game.table.events


def test_agents_that_act_at_the_same_time_are_asked_in_turn_and_see_no_answer_before_the_last() -> (
    None
):
    env = AECWrapper(DILEMMA, ToyConfig(rounds=2))
    env.reset(seed=1)
    before = env.observe("player_2")
    for agent, reply in (("player_0", "take"), ("player_1", "share")):
        assert env.agent_selection == agent
        env.step(reply)
        assert env.observe("player_2") == before
        assert set(env.rewards.values()) == {0.0}
    env.step("share")
    assert env.agent_selection == "player_0"
    assert env.observe("player_2")["message"].endswith("The others chose ['take', 'share'].")
    assert env.rewards["player_0"] in (3.0, 6.0)
    assert env.infos["player_0"]["rewards"] == {"prize": env.rewards["player_0"]}


def test_the_aec_env_stops_at_max_turns() -> None:
    env = aec_env("full", max_turns=1)
    env.reset(seed=1)
    env.step("Play 0")
    assert env.truncations == {"player_0": True, "player_1": True}
    assert env.terminations == {"player_0": False, "player_1": False}
    for _ in range(2):
        env.step(None)
    assert env.agents == []
    with pytest.raises(IllegalActionError, match=r"every agent has left: call reset\(\)"):
        env.step(None)


def test_the_aec_env_says_what_it_was_given_wrongly() -> None:
    env = aec_env("full")
    with pytest.raises(IllegalActionError, match=r"call reset\(\) first"):
        env.step("Play 0")
    with pytest.warns(
        UserWarning, match=r"reset options \['sed'\]: unknown, ignored; allowed: split, seed"
    ):
        env.reset(options={"sed": 1})
    with pytest.raises(IllegalActionError, match="action=5: an action must be the text of a reply"):
        env.step(5)  # type: ignore[arg-type]
    with pytest.raises(
        SettingsError, match="agent='player_2': this environment has player_0, player_1"
    ):
        env.observe("player_2")


# --- Gymnasium


@pytest.mark.parametrize(("seat", "partner"), [(0, "random"), (2, "outer")])
def test_a_seat_env_plays_the_very_game_that_the_loop_plays(partner: str, seat: int) -> None:
    config = HANABI.Config(preset="mini", players=3, observation="compact")
    env = seat_env("mini", 3, seat, partner, observation="compact")
    setup = Setup(HANABI, config)
    names = [partner] * 3
    names[seat] = "hint-bot"
    policies = [make_script(setup, name) for name in names]
    for episode in play_episodes_sync(setup, policies, "train", range(5)):
        env.reset(options={"split": "train", "seed": episode.seed})
        replies = [turn.reply for turn in episode.trajectory(seat)] or ["nothing: the game is over"]
        total = 0.0
        for number, reply in enumerate(replies, 1):
            _, reward, terminated, truncated, info = env.step(reply)
            total += reward
            is_last = number == len(replies)
            assert terminated is is_last
            assert truncated is False
            assert ("kind" in info) == bool(episode.trajectory(seat))
        assert total == episode.reward(seat)
        assert info["result"] == episode.result


def test_a_game_that_partners_end_before_the_seats_first_turn_ends_at_its_first_step() -> None:
    env = seat_env("laptop", 2, 1, "blind")
    board = make_spec("laptop")
    seeds = [seed for seed in range(50) if shuffled_deck(board, "train", seed)[0].rank == 1]
    seed = seeds[0]
    text, info = env.reset(options={"split": "train", "seed": seed})
    assert text == ""
    assert info["legal"] == ()
    assert info["result"]["bombed"] == 1
    _, reward, terminated, truncated, info = env.step("Play 0")
    assert reward == 0.0
    assert terminated is True
    assert truncated is False
    assert "kind" not in info
    with pytest.raises(
        IllegalActionError, match=r"The episode is over \(finished\): call reset\(\)"
    ):
        env.step("Play 0")


def test_a_seat_reads_only_its_own_messages_and_partners_answer_at_the_same_time() -> None:
    env = seat_env("full", 3, 1)
    text, info = env.reset(options={"split": "train", "seed": 4})
    assert text.endswith("You are player_1. Your move?")
    assert "You are player_1 in a game of Hanabi" in info["system"]
    together = SeatEnv(
        DILEMMA, ToyConfig(rounds=1), 1, {0: DILEMMA.policies["taker"](), 2: base.random_policy()}
    )
    together.reset(seed=1)
    _, _, terminated, _, info = together.step("share")
    assert terminated
    assert info["action"] == "share"


def test_a_seat_env_is_truncated_at_max_turns() -> None:
    env = seat_env("full", 2, 0, max_turns=2)
    with pytest.raises(IllegalActionError, match=r"call reset\(\) first"):
        env.step("Play 0")
    with pytest.raises(
        SettingsError, match=r"reset options \['sed'\]: unknown; allowed: split, seed, game"
    ):
        env.reset(options={"sed": 1})
    env.reset(seed=1)
    _, _, terminated, truncated, info = env.step("Hint player_1 1")
    assert terminated is False
    assert truncated is True
    assert info["legal"] == ()


def test_a_seat_env_needs_one_partner_for_every_other_seat() -> None:
    for seat, others, message in (
        (2, [0, 1], "seat=2: a game of 2 players has seats 0 to 1"),
        (
            0,
            [0, 1],
            r"partners for seats \[0, 1\]: with seat=0, give one partner for each of \[1\]",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            SeatEnv(KUHN, KuhnConfig(), seat, dict.fromkeys(others, equilibrium(0.1)))


def test_a_partner_that_breaks_the_rules_is_named() -> None:
    cheat = base.Script("cheat", lambda seen, rng: "call")
    with pytest.raises(
        IllegalActionError,
        match=r"'call': not a legal action of cheat as player_0; .* one of check, bet",
    ):
        SeatEnv(KUHN, KuhnConfig(), 1, {0: cheat}).reset(seed=1)
