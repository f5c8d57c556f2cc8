"""HANABI_TRAIN_THOUGHTS=0: thoughts carry no loss, and stay where they are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.envs.texts import think_parts, think_spans
from hanabi_grpo.envs.thoughts import thought_figures
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import build_micro_batches
from hanabi_grpo.training.check_sample import check_rows
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss, mean_logprobs
from hanabi_grpo.training.thoughts import WithoutThoughts, trained_tokens
from hanabi_grpo.types import Episode
from loop_parts import NAMES, RunOfATest, same_weights, token_text, written_games
from made_batches import made_cut
from made_games import made_episode, made_turn

OPEN, CLOSE = 11, 12
"""Tokens of the tags, see `loop_parts.TEXTS`."""


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Play", " 0"], [True, True]),
        (["<think>", "Hm", "</think>", "Play", " 0"], [False, False, False, True, True]),
        # The prompt opened the thought.
        (["Hm", "</think>", "Play"], [False, False, True]),
        # It was cut off.
        (["Play", "<think>", "Hm"], [True, False, False]),
        # Tags in pieces, and a piece that ends a tag and begins the answer.
        (["<th", "ink>", "Hm</thi", "nk>Play", " 0"], [False, False, False, False, True]),
        (
            ["<think>", "a", "</think>", "b", "<THINK>", "c", "</think>", "d"],
            [0, 0, 0, 1, 0, 0, 0, 1],
        ),
        ([], []),
    ],
)
def test_a_token_of_a_thought_carries_no_loss(pieces: list[str], expected: list[bool]) -> None:
    assert trained_tokens(pieces) == [bool(value) for value in expected]


@pytest.mark.parametrize(
    ("text", "trained"),
    [
        # The template wrote the opening tag; the second thought was cut off.
        ("<think> t3</think> t4 t5", [False, False, True, True]),
        ("<think> t3 t4 t5 t6", [False] * 4),
        # Without the tag, the same tokens are an answer.
        (" t3 t4 t5 t6", [True] * 4),
    ],
)
def test_a_thought_that_the_template_opens_carries_no_loss(text: str, trained: list[bool]) -> None:
    ids = (3, CLOSE, 4, 5) if "</think>" in text else (3, 4, 5, 6)
    assert WithoutThoughts(token_text)(made_turn(0, *ids, text=text)) == trained


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "b "]), max_size=8).map("".join))
def test_spans_are_what_the_reader_of_replies_calls_thoughts(reply: str) -> None:
    thoughts, outside, _ = think_parts(reply)
    inside = ""
    rest = ""
    position = 0
    for start, end in think_spans(reply):
        assert position <= start < end
        rest += reply[position:start]
        inside += reply[start:end]
        position = end
    rest += reply[position:]

    def bare(text: str) -> str:
        return text.replace("<think>", "").replace("</think>", "")

    # A lone </think> makes a thought of what came before it, which the reader lists last.
    assert sorted(bare(inside)) == sorted("".join(thoughts))
    assert sorted(bare(rest)) == sorted("".join(outside))


def thoughtful_games(step: int) -> list[list[Episode]]:
    """Return the written games, in which player 0 thinks two tokens before its reply."""
    groups = []
    for group in written_games(step):
        episodes = []
        for number, episode in enumerate(group):
            first, second = episode.turns
            ids = (OPEN, 13 + number, CLOSE, *first.reply_ids)
            first = replace(first, reply_ids=ids, logprobs=(-0.5,) * len(ids))
            episodes.append(replace(episode, turns=(first, second)))
        groups.append(episodes)
    return groups


def test_thoughts_have_no_gradient_and_are_in_the_conversation_and_the_check(
    tmp_path: Path,
) -> None:
    test = RunOfATest(tmp_path)
    seats = ("player_0@0", "player_1@0")
    groups = thoughtful_games(0)
    without = WithoutThoughts(token_text)
    batches = build_micro_batches(
        groups,
        trained_seats=seats,
        players=NAMES,
        estimator=make_estimator("grpo"),
        cut=made_cut(),
        pad_id=0,
        device=torch.device("cpu"),
        unit="turn",
        trained=without,
    )
    [batch] = [batch for batch in batches if batch.player == "player_0"]
    # Two tokens of four games are said, three of each are thought.
    assert batch.num_reply_tokens == 8 and int(batch.reply_mask.sum()) == 20
    logprobs = test.policy.logprobs(batch).detach().requires_grad_()
    loss, _ = PolicyLoss(Settings(entropy_bonus=0.1))(logprobs, batch)
    loss.backward()
    assert logprobs.grad is not None
    moved = logprobs.grad != 0
    assert torch.equal(moved, batch.trained_mask)
    # The check has all tokens, and the logprobs of all are computed.
    rows = check_rows(
        [game for group in groups for game in group], 0, seats, first=0, rank=0, world_size=1
    )
    assert sum(sum(row.mask) for row in rows) == 20
    assert bool((logprobs.detach()[batch.reply_mask] != 0).all())
    # Said tokens are predicted from thoughts: the ids are all there.
    assert {OPEN, CLOSE} <= set(batch.ids.flatten().tolist())


def test_the_entropy_bonus_is_measured_on_trained_tokens() -> None:
    groups = thoughtful_games(0)
    for group in groups:
        for number, episode in enumerate(group):
            first, second = episode.turns
            first = replace(first, logprobs=(-9.0,) * 3 + (-1.0,) * 2)
            group[number] = replace(episode, turns=(first, second))
    seats = ("player_0@0", "player_1@0")
    trained = WithoutThoughts(token_text)
    assert mean_logprobs(groups, seats, NAMES, trained=trained)["player_0"] == -1.0
    assert mean_logprobs(groups, seats, NAMES)["player_0"] == pytest.approx((-27 - 2) / 5)


def test_a_run_without_thoughts_moves_as_if_they_had_been_shown_to_it(tmp_path: Path) -> None:
    """The thoughts as part of the prompt: the same tokens in the same places, and no loss."""

    def shown(step: int) -> list[list[Episode]]:
        groups = []
        for group in thoughtful_games(step):
            episodes = []
            for episode in group:
                first, second = episode.turns
                prompt_ids = (*first.prompt_ids, *first.reply_ids[:3])
                first = replace(
                    first,
                    prompt_ids=prompt_ids,
                    reply_ids=first.reply_ids[3:],
                    logprobs=first.logprobs[3:],
                )
                episodes.append(replace(episode, turns=(first, second)))
            groups.append(episodes)
        return groups

    masked = RunOfATest(tmp_path / "masked", games=thoughtful_games, train_thoughts=False)
    expected = RunOfATest(tmp_path / "shown", games=shown)
    whole = RunOfATest(tmp_path / "whole", games=thoughtful_games)
    for test in (masked, expected, whole):
        train(test.run)
    for player in NAMES:
        for name, value in masked.weights(player).items():
            assert torch.allclose(value, expected.weights(player)[name], atol=1e-5), name
    assert not same_weights(masked.weights("player_0"), whole.weights("player_0"))
    # Player 1 thinks nothing.
    assert same_weights(masked.weights("player_1"), whole.weights("player_1"))


def _replies(*pairs: tuple[str, str]) -> Episode:
    turns = [replace(made_turn(0), prompt=prompt, reply=reply) for prompt, reply in pairs]
    return made_episode(*turns)


def test_figures_of_thoughts_show_their_share_length_and_a_template() -> None:
    assert thought_figures([_replies(("a", "Play 0"), ("b", "<think>\n</think>\nPlay 1"))]) == {}
    varied = _replies(
        ("a", "<think>red is safe</think>Play 0"),
        ("b", "<think>nothing is safe here</think>Discard 0"),
        ("c", "Play 1"),
        ("d", "<think>let me see whether"),
    )
    assert thought_figures([varied]) == {
        "thoughts/turn_share": 0.75,
        "thoughts/words": pytest.approx(11 / 3),
        "thoughts/cut_share": pytest.approx(1 / 3),
        "thoughts/per_prompt": 1.0,
    }
    template = [(str(number), "<think>think well</think>Play 0") for number in range(10)]
    assert thought_figures([_replies(*template)])["thoughts/per_prompt"] == 0.1
