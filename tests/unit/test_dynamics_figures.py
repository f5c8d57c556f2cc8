import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest

from boards import scripted_episodes
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.dynamics import dynamics_figures
from hanabi_grpo.envs.hanabi.dynamics.figures import replayed, reply_figures
from hanabi_grpo.envs.hanabi.dynamics.information import chance_information, information_above_chance
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.types import Episode, ReplyKind, Turn
from made_games import made_episode
from made_games import made_turn as said

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def play(config: EnvConfig, *team: str, deals: int = 8, games: int = 4) -> list[list[Episode]]:
    return [scripted_episodes(config, team, [seed], num_games=games) for seed in range(deals)]


def unknown_board(*turns: Turn) -> Episode:
    return made_episode(*turns, spec_hash="of another version", score=1)


def test_blind_play_is_recognised_and_scores_what_blind_play_scores() -> None:
    figures = dynamics_figures(play(LAPTOP, "blind", "blind"), ())
    assert figures["player_0/blind_share"] == figures["player_0/top_move_share"] == 1.0
    assert figures["player_0/top_slot_share"] == 1.0
    assert figures["share/play"] == 1.0
    assert figures["share/hint"] == figures["player_0/share/hint_color"] == 0.0
    assert figures["over_blind/laptop"] == 0.0
    assert figures["blind/laptop"] == figures["score/laptop"]
    assert figures["games/laptop"] == 32.0
    assert figures["hint_pairs"] == 0.0
    # The board begins with all hints, so a discard is never legal; nothing can be said about it.
    assert "player_0/share/discard" not in figures
    assert "hint_bits" not in figures


def test_shares_are_of_the_turns_on_which_a_move_was_legal() -> None:
    figures = dynamics_figures(play(LAPTOP, "random", "random", deals=40), ())
    assert figures["share/hint"] == pytest.approx(0.45, abs=0.06)
    both = figures["player_0/share/hint_color"] + figures["player_0/share/hint_rank"]
    assert both == pytest.approx(figures["player_0/share/hint"])
    assert figures["player_0/share/play"] > figures["player_0/blind_share"] > 0.05
    assert figures["score/normalized"] == pytest.approx(figures["score/laptop"] / 4)


def test_moves_that_replaced_a_bad_reply_are_nobody_s_choice() -> None:
    [[episode]] = play(LAPTOP, "blind", "blind", deals=1, games=1)
    bad = replace(episode, turns=tuple(replace(turn, kind=ReplyKind.ILLEGAL) for turn in episode.turns))
    figures = dynamics_figures([[bad]], ())
    assert figures["player_0/bad_reply_share"] == 1.0
    assert not [name for name in figures if "share/" in name or "blind_share" in name]


def test_hints_that_nobody_reads_carry_nothing_and_a_bot_s_do() -> None:
    silent = dynamics_figures(play(LAPTOP, "random", "random", deals=100), ())
    heard = dynamics_figures(play(LAPTOP, "simple-bot", "simple-bot", deals=100), ())
    assert abs(silent["hint_bits"]) < 0.03
    assert heard["hint_bits"] > 0.2


def test_information_is_that_above_the_mean_over_every_pairing() -> None:
    before, after = [0, 0, 1, 2, 2], [0, 1, 1, 1, 0]

    def table(order: tuple[int, ...]) -> np.ndarray:
        counts = np.zeros((3, 2), dtype=np.int64)
        np.add.at(counts, (before, list(order)), 1)
        return counts

    above = [information_above_chance(table(order)) for order in itertools.permutations(after)]
    assert statistics.fmean(above) == pytest.approx(0, abs=1e-12)
    assert information_above_chance(np.array([[500, 0], [0, 500]])) == pytest.approx(1, abs=0.01)
    many = np.full((20, 20), 500)
    assert chance_information(many) == pytest.approx(19 * 19 / (2 * np.log(2) * many.sum()), rel=1e-2)


def test_only_trained_seats_count_and_only_self_play_is_compared_with_blind_play() -> None:
    own = ("player_0@3", "player_1@3")
    groups = play(LAPTOP, "hint-bot", "blind")
    seated = [[replace(episode, seats=("player_0@3", "blind")) for episode in group] for group in groups]
    figures = dynamics_figures(seated, own)
    assert "player_0/share/hint" in figures
    assert not [name for name in figures if name.startswith("player_1")]
    assert figures["share/hint"] == figures["player_0/share/hint"]
    assert figures["hint_pairs"] == 0.0, "the partner's answers say nothing about the players that learn"
    assert "over_blind/laptop" not in figures
    assert figures["games/laptop"] == 32.0


def test_games_that_do_not_fit_their_deal_are_left_out() -> None:
    [[episode]] = play(LAPTOP, "blind", "blind", deals=1, games=1)
    assert len(replayed([[episode]], ())) == 1
    first, *rest = episode.turns
    broken = [
        replace(episode, turns=(*rest, first)),
        replace(episode, turns=(replace(first, action="Play 7"), *rest)),
        replace(episode, turns=(replace(first, action="dance"), *rest)),
        replace(episode, turns=(*episode.turns, *episode.turns)),
        replace(episode, spec_hash="0"),
        replace(episode, preset="no such board"),
        replace(episode, suite="not a suite!"),
        replace(episode, seed=-1),
    ]
    assert replayed([broken], ()) == []
    assert dynamics_figures([broken], ())["hint_pairs"] == 0.0


def test_a_step_without_games_and_players_without_turns_have_no_figures() -> None:
    assert dynamics_figures([], ()) == dynamics_figures([[], []], ()) == {}
    figures = dynamics_figures([[unknown_board(said(0, 5, 9))]], ())
    assert figures["player_0/tokens_per_reply"] == 2.0
    assert not [name for name in figures if name.startswith("player_1")]


def test_several_boards_have_a_score_each() -> None:
    mini = EnvConfig(preset="marshal-mini", observation="compact", legal_moves=False)
    figures = dynamics_figures(play(LAPTOP, "blind", "blind", deals=2) + play(mini, "blind", "blind", deals=4), ())
    assert (figures["games/laptop"], figures["games/marshal-mini"]) == (8.0, 16.0)
    assert figures["score/marshal-mini"] > figures["score/laptop"]
    assert make_spec("marshal-mini").reachable_max == 4
    mean = (8 * figures["score/laptop"] + 16 * figures["score/marshal-mini"]) / 24
    assert figures["score/normalized"] == pytest.approx(mean / 4)


def test_a_reply_is_cut_when_it_fills_the_limit_without_its_end() -> None:
    end = 9
    turns = (said(0, 1, 2, end), said(0, 1, 2, 3, end), said(0, 1, 2, 3, 4), said(0, 1, 2, 3, 5), said(1, end))
    figures = reply_figures([unknown_board(*turns)], (), reply_limit=4, end_id=end)
    assert figures["player_0/cut_share"] == 0.5
    assert figures["player_0/tokens_per_reply"] == 3.75
    assert figures["player_1/cut_share"] == 0.0
    assert "player_0/cut_share" not in reply_figures([unknown_board(*turns)], ())


def test_the_form_of_replies_is_counted_by_kind() -> None:
    kinds = (ReplyKind.LEGAL, ReplyKind.LEGAL, ReplyKind.ILLEGAL, ReplyKind.UNPARSABLE)
    figures = reply_figures([unknown_board(*(said(1, 1, kind=kind) for kind in kinds))], ())
    assert figures == {
        "player_1/bad_reply_share": 0.5,
        "player_1/unparsable_share": 0.25,
        "player_1/tokens_per_reply": 1.0,
    }
