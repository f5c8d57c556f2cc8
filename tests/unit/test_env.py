"""The environment: replies in, moves and rewards out."""

import warnings

import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.envs.hanabi.env import EnvConfig, HanabiEnv
from hanabi_grpo.envs.hanabi.rules import Game, make_spec, shuffled_deck
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import EpisodeStatus, ReplyKind

COMPACT = EnvConfig(preset="laptop", observation="compact")
DEAL = {"suite": "train", "seed": 5}


@pytest.mark.parametrize("observation", ["full", "compact"])
@pytest.mark.parametrize(("preset", "players"), ALL_BOARDS)
def test_gymnasium_finds_nothing_to_complain_about(preset: str, players: int, observation: str) -> None:
    env = HanabiEnv(EnvConfig.parse({"preset": preset, "players": players, "observation": observation}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Its one remark on an env that was not made through gymnasium.make: render modes cannot be checked.
        warnings.filterwarnings("ignore", message=".*[Nn]ot able to test alternative render modes.*")
        check_env(env)


def test_reset_deals_the_deck_of_suite_and_seed() -> None:
    env = HanabiEnv(COMPACT)
    observation, info = env.reset(options=DEAL)
    game = Game(make_spec("laptop"), shuffled_deck(make_spec("laptop"), "train", 5))
    assert env.game.hands == game.hands
    assert observation == env.prompt()
    assert observation.startswith("life1 info3 deck2 nextR1 nextY1 me slot0")
    assert info["player"] == "player_0"
    assert info["score"] == info["score_kept"] == 0
    assert info["legal_actions"][:3] == ["Play 0", "Play 1", "Play 2"]


def test_without_options_a_seed_repeats_the_deals_and_no_seed_goes_on_to_new_ones() -> None:
    env = HanabiEnv(EnvConfig(preset="full"))
    first = [env.reset(seed=3)[0], env.reset()[0]]
    again = [env.reset(seed=3)[0], env.reset()[0]]
    assert first == again
    assert first[0] != first[1]


def test_an_unknown_reset_option_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"\['sed'\]: unknown; allowed: suite, seed, game"):
        HanabiEnv(COMPACT).reset(options={"sed": 3})


@pytest.mark.parametrize(
    ("reply", "kind", "parts"),
    [
        ("Hint 1", ReplyKind.LEGAL, {}),
        ("Discard 0", ReplyKind.ILLEGAL, {"illegal": -0.5}),
        ("Hint G", ReplyKind.ILLEGAL, {"illegal": -0.5}),
        ("Play 7", ReplyKind.ILLEGAL, {"illegal": -0.5}),
        ("Hint player_0 1", ReplyKind.ILLEGAL, {"illegal": -0.5}),
        ("", ReplyKind.UNPARSABLE, {"unparsable": -0.5}),
        ("\ud800\x00", ReplyKind.UNPARSABLE, {"unparsable": -0.5}),
        (b"\xff\xfe".decode(errors="replace"), ReplyKind.UNPARSABLE, {"unparsable": -0.5}),
    ],
)
def test_a_bad_reply_is_penalised_and_a_legal_move_is_made_instead(
    reply: str, kind: ReplyKind, parts: dict[str, float]
) -> None:
    env = HanabiEnv(COMPACT)
    _, before = env.reset(options=DEAL)
    _, reward, _, truncated, info = env.step(reply)
    own = {part: value for part, value in info["rewards"].items() if part not in ("score", "bomb")}
    assert info["kind"] is kind
    assert own == parts
    assert reward == sum(info["rewards"].values())
    assert info["mover"] == "player_0"
    assert info["player"] == "player_1"
    assert info["action"] in before["legal_actions"]
    assert env.game.num_turns == 1
    assert not truncated


def test_the_replacing_move_depends_only_on_suite_seed_game_and_turn() -> None:
    def moves(game: int) -> list[str]:
        env = HanabiEnv(EnvConfig(preset="full"))
        env.reset(options={**DEAL, "game": game})
        return [env.step(reply)[4]["action"] for reply in ("nonsense", "", "Play 9")]

    assert moves(0) == moves(0)
    assert len({tuple(moves(game)) for game in range(5)}) == 5


def test_a_bomb_ends_the_game_and_takes_the_points_away() -> None:
    env = HanabiEnv(COMPACT)
    env.reset(options=DEAL)
    env.step("Hint 1")
    reward = 0.0
    terminated = False
    while not terminated:
        hand = env.game.hands[env.current_player]
        fireworks = env.view().fireworks
        wrong = [slot for slot, card in enumerate(hand) if fireworks[card.color] != card.rank]
        right = [slot for slot, card in enumerate(hand) if fireworks[card.color] == card.rank]
        scored = env.game.score_kept
        slot = (wrong if scored else right or wrong)[0]
        _, reward, terminated, _, info = env.step(f"Play {slot}")
    assert env.status is EpisodeStatus.BOMBED
    assert info["rewards"] == {"bomb": -1.0}
    assert reward == -1.0
    assert (info["score"], info["score_kept"]) == (0, 1)
    assert info["legal_actions"] == []


def test_max_turns_truncates() -> None:
    env = HanabiEnv(EnvConfig(preset="full", max_turns=2))
    env.reset(options=DEAL)
    _, _, terminated, truncated, _ = env.step("Hint player_1 1")
    assert (terminated, truncated, env.status) == (False, False, None)
    _, _, terminated, truncated, info = env.step("nothing")
    assert (terminated, truncated, env.status) == (False, True, EpisodeStatus.TRUNCATED_TURNS)
    assert info["legal_actions"] == []
    with pytest.raises(IllegalActionError, match=r"The game is over \(truncated_turns\): call reset\(\)"):
        env.step("Play 0")


def test_a_step_before_reset_says_what_to_do() -> None:
    with pytest.raises(IllegalActionError, match=r"call reset\(\) first"):
        HanabiEnv(COMPACT).step("Play 0")


def test_without_observing_the_same_game_is_played_and_the_text_comes_on_request() -> None:
    seen, unseen = HanabiEnv(COMPACT), HanabiEnv(COMPACT, observe=False)
    text, _ = seen.reset(options=DEAL)
    nothing, info = unseen.reset(options=DEAL)
    assert nothing == ""
    assert "legal_actions" not in info
    assert unseen.prompt() == text
    assert unseen.step("Hint 1")[0] == ""
    assert unseen.prompt() == seen.step("Hint 1")[0]


@settings(deadline=None)
@given(
    board=st.sampled_from(ALL_BOARDS),
    seed=st.integers(0, 2**32),
    replies=st.lists(st.sampled_from(["Play 0", "Discard 0", "Hint R", "Hint player_1 1", "?"]), min_size=1),
    bomb_rule=st.sampled_from(["zero", "keep"]),
)
def test_any_replies_end_in_a_finished_game_whose_team_parts_add_up_to_its_score(
    board: tuple[str, int], seed: int, replies: list[str], bomb_rule: str
) -> None:
    config = EnvConfig.parse({"preset": board[0], "players": board[1], "bomb_rule": bomb_rule})
    env = HanabiEnv(config, observe=False)
    env.reset(options={"suite": "test", "seed": seed})
    team, steps = 0.0, 0
    while env.status is None:
        mover = env.current_player
        _, reward, _, _, info = env.step(replies[steps % len(replies)])
        assert info["mover"] == f"player_{mover}"
        assert reward == pytest.approx(sum(info["rewards"].values()))
        team += info["rewards"].get("score", 0.0) + info["rewards"].get("bomb", 0.0)
        steps += 1
    assert not env.status.is_truncated
    assert team == (info["score"] if bomb_rule == "zero" else info["score_kept"])
