"""What a teacher's labels teach: rows, the cross-entropy, its weight, and who moves by it."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.settings import Settings
from hanabi_grpo.training import mismatch
from hanabi_grpo.training.batching import build_micro_batches
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.evidence import NO_SCORE
from hanabi_grpo.training.lessons import (
    TaughtTokens,
    Teaching,
    lesson_figures,
    teaching_at,
    weight_figures,
)
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss, lesson_loss, token_advantages
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.thoughts import WithoutThoughts
from hanabi_grpo.types import Episode, Lesson, ReplyKind, Turn, WeightedReply
from loop_parts import BASE_SETTINGS, NAMES, RunOfATest, same_weights, tiny_policy_model, token_text
from loop_parts import written_games as untaught_games
from made_batches import made_cut
from made_games import made_episode, made_turn

OWN = ("player_0@0", "player_1@0")
ALONE = {"player_0": Teaching(teacher=1.0, reward=1.0)}
Games = list[list[Episode]]


def lesson(*ids: int, action: str = "Play 0") -> Lesson:
    return Lesson(action=action, reply_ids=ids)


def taught(turn: Turn, *ids: int, fresh: bool = False) -> Turn:
    return replace(turn, lesson=lesson(*ids) if ids else None, fresh=fresh)


def mixed(*replies: tuple[float, tuple[int, ...]]) -> Lesson:
    """Return what a teacher says that draws among replies, the first of which it has drawn."""
    weighted = []
    for number, (chance, ids) in enumerate(replies):
        weighted.append(WeightedReply(action=f"Play {number}", chance=chance, reply_ids=ids))
    return replace(lesson(*replies[0][1]), replies=tuple(weighted))


def turn(*ids: int, prompt: tuple[int, ...] = (1, 2)) -> Turn:
    return made_turn(0, *ids, prompt_ids=prompt, version=0)


def game(*turns: Turn) -> Episode:
    return made_episode(*turns, seats=OWN)


def batches_of(
    groups: Games, teaching: dict[str, Teaching] | None = None, **options: Any
) -> list[MicroBatch]:
    """Return player_0's micro-batches."""
    cut = options.pop("cut", made_cut())
    batches = build_micro_batches(
        groups,
        trained_seats=OWN,
        players=NAMES,
        estimator=make_estimator("grpo"),
        cut=cut,
        pad_id=0,
        device=torch.device("cpu"),
        taught=ALONE if teaching is None else teaching,
        **options,
    )
    return [batch for batch in batches if batch.player == "player_0"]


def lessons_in(batch: MicroBatch) -> list[tuple[list[int], list[int], list[float]]]:
    """Return of each row with a lesson the ids before it, its ids and its weights."""
    rows = []
    assert batch.lesson_weights is not None
    for ids, length, weights in zip(
        batch.ids.tolist(), batch.lengths.tolist(), batch.lesson_weights.tolist(), strict=True
    ):
        places = [place + 1 for place, weight in enumerate(weights) if weight]
        if places:
            assert places == list(range(places[0], length))
            values = [weights[place - 1] for place in places]
            rows.append((ids[: places[0]], ids[places[0] : length], values))
    return sorted(rows)


# Rows


def test_each_labelled_turn_is_a_row_of_the_conversation_so_far_and_the_teachers_reply() -> None:
    whole = game(
        taught(turn(3, 4), 5, 6),
        turn(7, prompt=(8,)),
        taught(turn(9, prompt=(10, 11)), 12),
    )
    [batch] = batches_of([[whole, game(turn(3))]])
    assert lessons_in(batch) == [
        ([1, 2], [5, 6], [1.0, 1.0]),
        ([1, 2, 3, 4, 8, 7, 10, 11], [12], [1.0]),
    ]
    assert batch.num_lesson_tokens == 3
    # The replies' own rows are what they were: nobody samples a lesson, and it has no advantage.
    assert batch.num_reply_tokens == 5
    on_lessons = batch.lesson_weights > 0  # type: ignore[operator]
    assert not (on_lessons & batch.reply_mask).any()
    assert not batch.advantages[on_lessons].any()
    assert not batch.sampler_logprobs[on_lessons].any()
    assert int(batch.predicted_mask.sum()) == 3 + 5


def test_with_memory_of_a_turn_a_lesson_stands_behind_its_own_turns_prompt() -> None:
    fresh = game(
        taught(turn(3, 4), 5, 6, fresh=True), taught(turn(9, prompt=(10, 11)), 12, fresh=True)
    )
    [batch] = batches_of([[fresh, game(turn(3))]])
    assert lessons_in(batch) == [([1, 2], [5, 6], [1.0, 1.0]), ([10, 11], [12], [1.0])]


def test_what_the_teacher_said_in_the_players_place_is_context_and_its_own_lesson() -> None:
    said = turn(prompt=(1, 2, 5, 6))
    said = replace(said, lesson=Lesson(action="Play 0", reply_ids=(5, 6), plays=True))
    whole = game(said, taught(turn(9, prompt=(8,)), 12))
    groups = [[whole, game(turn(3))]]
    [batch] = batches_of(groups)
    assert lessons_in(batch) == [([1, 2], [5, 6], [1.0, 1.0]), ([1, 2, 5, 6, 8], [12], [1.0])]
    # In the policy's loss and in the mismatch check are the tokens 9 and 3 alone.
    assert batch.num_reply_tokens == 2
    assert int(batch.reply_mask.sum()) == 2
    figures = lesson_figures(groups, OWN, NAMES)
    assert figures == {
        "player_0/teacher_agreement": 1.0,
        "player_0/teacher_share": 2 / 3,
        "player_0/teacher_plays": 1 / 3,
    }


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        # 3 tokens, 2 turns: 3 / (2 n). 2 games with lessons: 3 / (2 n) with a game's own n.
        ("turn", [[0.75, 0.75], [1.5]]),
        ("sequence", [[0.75, 0.75], [1.5]]),
        ("token", [[1.0, 1.0], [1.0]]),
    ],
)
def test_lessons_have_the_loss_unit_of_replies_among_themselves(
    unit: str, expected: list[list[float]]
) -> None:
    games = [[game(taught(turn(3, 4), 5, 6)), game(taught(turn(3, prompt=(9, 9)), 7))]]
    [batch] = batches_of(games, unit=unit)
    assert [weights for _, _, weights in lessons_in(batch)] == expected


def test_untaught_players_partners_and_a_weight_of_0_have_the_batches_of_before() -> None:
    games = [[game(taught(turn(3, 4), 5, 6)), game(turn(3))]]
    [plain] = batches_of(games, {})
    nobody = {"player_1": Teaching(teacher=1.0, reward=0.0)}
    nothing = {"player_0": Teaching(teacher=0.0, reward=1.0)}
    for teaching in (nobody, nothing):
        [batch] = batches_of(games, teaching)
        assert batch.lesson_weights is None
        assert not batch.num_lesson_tokens
        assert torch.equal(batch.ids, plain.ids)
        assert batch.reward_weight == 1
    # What a partner in the seat was told teaches nobody.
    partner = replace(games[0][0], seats=("iggi", "player_1@0"))
    [batch] = batches_of([[partner, game(turn(3))]])
    assert not batch.num_lesson_tokens


@pytest.mark.parametrize("tokens", [0, 8, 24])
@pytest.mark.parametrize("shared", [False, True])
def test_every_rank_has_as_many_micro_batches_and_each_lesson_is_on_one(
    tokens: int, shared: bool
) -> None:
    groups = []
    for task in range(3):
        group = []
        for number in range(4):
            first = taught(turn(3 + number, 4, prompt=(1, task + 5)), 13, number + 1)
            group.append(game(first, *[taught(turn(6, prompt=(7,)), 14)] * number))
        groups.append(group)
    for world_size in (1, 2, 3):
        counts = []
        found = []
        for rank in range(world_size):
            cut = made_cut(
                tokens=tokens, micro_batches=2, rank=rank, world_size=world_size, shared=shared
            )
            batches = batches_of(groups, cut=cut)
            counts.append(len(batches))
            for batch in batches:
                # The same on every rank, also where its share has no lesson.
                assert batch.num_lesson_tokens == 12 * 2 + 18
                if batch.lesson_weights is not None:
                    found += lessons_in(batch)
        assert len(set(counts)) == 1
        assert len(found) == 12 + 18
        assert sum(sum(weights) for _, _, weights in found) == 12 * 2 + 18


def test_parts_of_a_step_divide_by_their_own_lessons() -> None:
    groups = [
        [game(taught(turn(3), 5, 6)), game(turn(4))],
        [game(taught(turn(3), 7)), game(taught(turn(4), 8, 9))],
    ]
    batches = batches_of(groups, parts=[0, 0, 1, 1])
    assert [(batch.part, batch.num_lesson_tokens) for batch in batches] == [(0, 2), (1, 3)]


# The loss


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_the_cross_entropy_written_out(shared: bool) -> None:
    groups = [[game(taught(turn(3, 4), 5, 6)), game(taught(turn(3), 7), taught(turn(4), 3, 8))]]
    settings = Settings(**BASE_SETTINGS)
    model = tiny_policy_model(settings)
    policy = Policy(model, NAMES, temperature=1.3, has_whole_weights=True)
    teaching = {"player_0": Teaching(teacher=0.5, reward=0.0)}
    parameters = [value for name, value in model.named_parameters() if ".player_0." in name]

    policy.use_adapter_of("player_0")
    expected = torch.zeros(())
    for context, label in (
        ([1, 2], [5, 6]),
        ([1, 2], [7]),
        ([1, 2, 3, 1, 2], [3, 8]),
    ):
        ids = torch.tensor([[*context, *label]])
        logits = model(input_ids=ids).logits[0].float() / 1.3
        logps = torch.log_softmax(logits, -1)
        for number, token in enumerate(label):
            expected = expected - logps[len(context) - 1 + number, token]
    expected = 0.5 * expected / 5
    gradients = torch.autograd.grad(expected, parameters)

    batches = batches_of(groups, teaching, cut=made_cut(tokens=10, shared=shared))
    loss = torch.zeros(())
    for batch in batches:
        batch_loss, _ = PolicyLoss(settings)(policy.logprobs(batch), batch)
        loss = loss + batch_loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for found, wanted in zip(torch.autograd.grad(loss, parameters), gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_row_where_the_player_agrees_is_computed_once() -> None:
    same = [[game(turn(3, 4)), game(turn(5))]]
    agreeing = [[game(taught(turn(3, 4), 3, 4)), game(taught(turn(5), 5))]]
    cut = made_cut(shared=True)
    [plain] = batches_of(same, {}, cut=cut)
    [batch] = batches_of(agreeing, cut=cut)
    assert batch.num_lesson_tokens == 3
    assert batch.num_computed_tokens == plain.num_computed_tokens


def test_the_reward_weight_leaves_entropy_bonus_and_teacher_alone() -> None:
    [batch] = batches_of(
        [[game(taught(turn(3, 4), 5)), game(taught(turn(6), 5))]],
        {"player_0": Teaching(teacher=2.0, reward=0.0)},
    )
    batch.entropy_bonus = torch.where(batch.reply_mask, 0.25, 0.0)
    logprobs = torch.full(batch.reply_mask.shape, -1.0, requires_grad=True)
    loss, _ = PolicyLoss(Settings(**BASE_SETTINGS))(logprobs, batch)
    [gradient] = torch.autograd.grad(loss, [logprobs])
    assert torch.allclose(gradient[batch.reply_mask], torch.tensor(-0.25 / 3))
    on_lessons = batch.lesson_weights > 0  # type: ignore[operator]
    assert torch.allclose(gradient[on_lessons], torch.tensor(-2.0 / 2))
    # Two processes divide by half: their gradients are averaged.
    assert lesson_loss(logprobs, batch, 2).item() == pytest.approx(2.0)


def test_a_model_adds_to_each_token_how_much_likelier_it_finds_it() -> None:
    scored = replace(
        made_turn(0, 3, 4, prompt_ids=(1, 2), logprobs=(-0.5, -2.0), version=0),
        lesson=Lesson(logprobs=(-1.5, -0.25)),
    )
    groups = [[game(scored, turn(6, prompt=(7,))), game(turn(3))]]
    [batch] = batches_of(groups, {"player_0": Teaching(teacher=0.5, reward=0.0)})
    assert batch.lesson_weights is None
    assert not batch.num_lesson_tokens
    advantages = token_advantages(batch)
    # Gaps −1 and 1.75, less their mean .375, times 0.5; and 0 where nobody scored.
    row = [number for number, ids in enumerate(batch.ids.tolist()) if ids[:3] == [1, 2, 3]]
    by_row = {tuple(batch.ids[number].tolist()): advantages[number].tolist() for number in row}
    assert by_row[1, 2, 3, 4, 7, 6] == [0.0, -0.6875, 0.6875, 0.0, 0.0]
    assert lesson_figures(groups, OWN, NAMES) == {
        "player_0/teacher_kl": pytest.approx((1.0 - 1.75) / 2)
    }
    # Beside the reward it is added to its advantage; at weight 0 there is no column.
    [beside] = batches_of(groups, {"player_0": Teaching(teacher=0.5, reward=1.0)})
    torch.testing.assert_close(token_advantages(beside), beside.advantages + advantages)
    [off] = batches_of(groups, {"player_0": Teaching(teacher=0.0, reward=1.0)})
    assert off.teacher_gaps is None


def test_what_a_model_adds_is_on_average_the_gradient_of_the_kl() -> None:
    """Exact over a vocabulary: tokens in proportion to p, so E[gap · ∇log p] = −∇KL."""
    counts = [1, 2, 3, 2]
    logits = torch.tensor(counts, dtype=torch.float32).log().requires_grad_()
    teacher = torch.log_softmax(torch.tensor([0.5, -1.0, 0.25, 2.0]), -1)
    logps = torch.log_softmax(logits, -1)
    kl = (logps.exp() * (logps - teacher)).sum()
    [expected] = torch.autograd.grad(kl, [logits], retain_graph=True)

    games = []
    for token, count in enumerate(counts):
        said = made_turn(0, token + 1, prompt_ids=(9,), logprobs=logps[token].item(), version=0)
        said = replace(said, lesson=Lesson(logprobs=(teacher[token].item(),)))
        games += [game(said)] * count
    teaching = {"player_0": Teaching(teacher=1.0, reward=0.0)}
    [batch] = batches_of([games], teaching)
    of_tokens = logps[batch.ids[:, 1:] - 1]
    loss, _ = PolicyLoss(Settings(**BASE_SETTINGS))(of_tokens, batch)
    [gradient] = torch.autograd.grad(loss, [logits])
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    assert lesson_figures([games], OWN, NAMES)["player_0/teacher_kl"] == pytest.approx(kl.item())


def test_the_mean_of_a_models_gaps_is_over_tokens_that_carry_loss() -> None:
    """Three tokens of a thought with a gap of -2, and an answer on which both agree."""
    said = made_turn(0, 11, 4, 12, 5, prompt_ids=(9,), logprobs=-1.0, version=0)
    said = replace(said, lesson=Lesson(logprobs=(-3.0, -3.0, -3.0, -1.0)))
    without = WithoutThoughts(token_text)
    taught = {"player_0": Teaching(teacher=1.0, reward=0.0)}
    [batch] = batches_of([[game(said)]], taught, trained=without)
    assert batch.teacher_gaps is not None
    assert batch.teacher_gaps[batch.trained_mask].tolist() == [0.0]
    figures = lesson_figures([[game(said)]], OWN, NAMES, without)
    assert figures["player_0/teacher_kl"] == 0.0
    assert lesson_figures([[game(said)]], OWN, NAMES)["player_0/teacher_kl"] == 1.5


# A teacher that draws


def test_each_reply_that_a_teacher_may_give_is_a_row_with_its_chance() -> None:
    first = replace(turn(3, 4), lesson=mixed((0.75, (5, 6)), (0.25, (7,))))
    [batch] = batches_of([[game(first, taught(turn(9, prompt=(8,)), 12)), game(turn(3))]])
    assert lessons_in(batch) == [
        ([1, 2], [5, 6], [0.75, 0.75]),
        ([1, 2], [7], [0.25]),
        ([1, 2, 3, 4, 8], [12], [1.0]),
    ]
    # Expected tokens: 3/4 · 2 + 1/4 · 1 of the first turn, 1 of the second.
    assert batch.num_lesson_tokens == 1.75 + 1
    assert batch.lesson_chances is not None
    assert sorted(batch.lesson_chances.flatten().tolist()) == [0.25, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("unit", ["turn", "sequence"])
def test_turns_weigh_the_same_whatever_their_teacher_may_say(unit: str) -> None:
    drawn = replace(turn(3, 4), lesson=mixed((0.5, (5, 6, 7)), (0.5, (8,))))
    games = [[game(drawn), game(taught(turn(3, prompt=(9, 9)), 7))]]
    [batch] = batches_of(games, unit=unit)
    # 2 and 1 expected tokens: 3 / (2 · 2) and 3 / (2 · 1), times the chance.
    assert [weights for _, _, weights in lessons_in(batch)] == [
        [0.375, 0.375, 0.375],
        [0.375],
        [1.5],
    ]
    assert batch.num_lesson_tokens == 3


def test_a_teacher_that_draws_one_reply_for_sure_teaches_as_one_that_does_not_draw() -> None:
    plain = [[game(taught(turn(3, 4), 5, 6)), game(taught(turn(3), 7, 8))]]
    sure = [
        [
            game(replace(turn(3, 4), lesson=mixed((1.0, (5, 6))))),
            game(replace(turn(3), lesson=mixed((1.0, (7, 8))))),
        ]
    ]
    for unit in ("token", "turn"):
        [one] = batches_of(plain, unit=unit)
        [other] = batches_of(sure, unit=unit)
        assert one.lesson_chances is None
        assert other.lesson_chances is None
        for name in ("ids", "lesson_weights", "reply_mask", "advantages"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert one.num_lesson_tokens == other.num_lesson_tokens


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_the_kl_to_the_teachers_distribution(shared: bool) -> None:
    # Replies of one and two tokens: the KL is over whole replies.
    replies = ((0.5, (5, 6)), (0.25, (7,)), (0.25, (5, 9)))
    groups = [[game(replace(turn(3, 4), lesson=mixed(*replies))), game(taught(turn(3), 7))]]
    settings = Settings(**BASE_SETTINGS)
    model = tiny_policy_model(settings)
    policy = Policy(model, NAMES, temperature=1.3, has_whole_weights=True)
    teaching = {"player_0": Teaching(teacher=0.5, reward=0.0)}
    parameters = [value for name, value in model.named_parameters() if ".player_0." in name]

    policy.use_adapter_of("player_0")
    cross_entropy = torch.zeros(())
    for chance, label in (*replies, (1.0, (7,))):
        logits = model(input_ids=torch.tensor([[1, 2, *label]])).logits[0].float() / 1.3
        logps = torch.log_softmax(logits, -1)
        for number, token in enumerate(label):
            cross_entropy = cross_entropy - chance * logps[1 + number, token]
    num_expected = 0.5 * 2 + 0.25 + 0.25 * 2 + 1
    entropy = 0.5 * math.log(2) + 0.5 * math.log(4)
    gradients = torch.autograd.grad(0.5 * cross_entropy / num_expected, parameters)

    batches = batches_of(groups, teaching, cut=made_cut(tokens=10, shared=shared))
    loss = torch.zeros(())
    measured = TaughtTokens()
    for batch in batches:
        logprobs = policy.logprobs(batch)
        measured.add(batch, logprobs)
        batch_loss, _ = PolicyLoss(settings)(logprobs, batch)
        loss = loss + batch_loss
    assert loss.item() == pytest.approx(0.5 * cross_entropy.item() / num_expected, rel=1e-5)
    for found, wanted in zip(torch.autograd.grad(loss, parameters), gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    figures = measured.take(lambda values: values)
    assert figures == {
        "player_0/teacher_loss": pytest.approx(cross_entropy.item() / num_expected, rel=1e-5),
        "player_0/teacher_divergence": pytest.approx(
            (cross_entropy.item() - entropy) / num_expected, rel=1e-5
        ),
    }
    assert measured.take(lambda values: values) == {}


@pytest.mark.parametrize("shared", [False, True])
def test_every_rank_divides_by_the_same_expected_tokens(shared: bool) -> None:
    said = mixed((0.5, (5, 6)), (0.3, (7,)), (0.2, (8, 9)))
    groups = []
    for task in range(3):
        group = []
        for number in range(3):
            group.append(game(replace(turn(3 + number, prompt=(1, task + 5)), lesson=said)))
        groups.append(group)
    [whole] = batches_of(groups)
    assert whole.num_lesson_tokens == pytest.approx(9 * 1.7)
    found = []
    for rank in range(2):
        cut = made_cut(tokens=8, micro_batches=2, rank=rank, world_size=2, shared=shared)
        for batch in batches_of(groups, cut=cut):
            assert batch.num_lesson_tokens == pytest.approx(9 * 1.7)
            if batch.lesson_weights is not None:
                found += lessons_in(batch)
    assert len(found) == 27
    assert sum(sum(weights) for _, _, weights in found) == pytest.approx(9 * 1.7)


def test_agreement_with_a_teacher_that_draws_is_how_likely_it_does_the_same() -> None:
    said = mixed((0.75, (5,)), (0.25, (6,)))
    likely = replace(turn(3), lesson=said)
    unlikely = replace(likely, action="Play 1")
    never = replace(likely, action="Play 2")
    illegal = replace(likely, kind=ReplyKind.ILLEGAL)
    groups = [[game(likely, unlikely, never, illegal, taught(turn(3), 5))]]
    assert lesson_figures(groups, OWN, NAMES) == {
        "player_0/teacher_agreement": (0.75 + 0.25 + 1) / 5,
        "player_0/teacher_share": 1.0,
    }


# The schedule and the figures


def test_the_weight_falls_evenly_to_0_and_stays_there() -> None:
    given = Settings(
        device="cpu", teacher=("iggi",), teacher_weight="player_0=2,1", teacher_steps=4
    )
    weights = [teaching_at(given, step) for step in (0, 1, 3, 4, 9)]
    assert [taught["player_0"].teacher for taught in weights] == [2.0, 1.5, 0.5, 0.0, 0.0]
    assert [taught["player_1"].teacher for taught in weights] == [1.0, 0.75, 0.25, 0.0, 0.0]
    constant = Settings(device="cpu", teacher=("player_1=iggi",), reward_weight=0.0)
    assert teaching_at(constant, 10**6) == {"player_1": Teaching(teacher=1.0, reward=0.0)}
    assert weight_figures(weights[1]) == {
        "player_0/teacher_weight": 1.5,
        "player_1/teacher_weight": 0.75,
    }
    assert weight_figures(teaching_at(constant, 0)) == {"player_1/teacher_weight": 1.0}
    assert teaching_at(Settings(device="cpu"), 0) == {}


def test_agreement_is_of_legal_moves_among_labelled_turns() -> None:
    same = taught(turn(3), 5)
    illegal = replace(same, kind=ReplyKind.ILLEGAL)
    other = replace(same, action="Play 1")
    unlabelled = turn(3)
    groups = [[game(same, illegal), game(other, unlabelled, same)]]
    assert lesson_figures(groups, OWN, NAMES) == {
        "player_0/teacher_agreement": 2 / 4,
        "player_0/teacher_share": 4 / 5,
    }
    # After a swap the player holds the other seat; a partner's turns do not count.
    swapped = lesson_figures(groups, OWN, ("player_1", "player_0"))
    assert set(swapped) == {"player_1/teacher_agreement", "player_1/teacher_share"}
    with_partner = [[replace(groups[0][0], seats=("iggi", "player_1@0"))]]
    assert lesson_figures(with_partner, OWN, NAMES) == {}


def test_labels_without_the_thoughts_that_their_player_writes_are_counted() -> None:
    thinks = replace(taught(turn(3), 5), reply="<think> fits </think> Play 0")
    answers = taught(turn(3), 5)
    with_thought = replace(thinks, lesson=replace(lesson(5), thought="<think> fits </think> "))
    groups = [[game(thinks, thinks, answers, with_thought)]]
    assert lesson_figures(groups, OWN, NAMES)["player_0/teacher_skips_thought"] == 2 / 4


# The loop


def with_turns(groups: Games, change: Callable[[Turn], Turn]) -> Games:
    """Return the games with each turn changed."""
    changed = []
    for group in groups:
        games = [replace(one, turns=tuple(map(change, one.turns))) for one in group]
        changed.append(games)
    return changed


def games_with_lessons(*players: int, mixes: bool = False) -> Callable[[int], Games]:
    """Return games as `written_games`, in which these players are told another reply each turn.

    With `mixes` their teacher may say three replies on each.
    """

    def games(step: int) -> Games:
        groups = []
        for group in untaught_games(step):
            taught_group = []
            for number, episode in enumerate(group):
                turns = []
                for one in episode.turns:
                    if one.player in players:
                        said = (9 + number, 13 + one.player)
                        others = ((0.25, (15,)), (0.25, (9, 10 + number)))
                        told = mixed((0.5, said), *others) if mixes else lesson(*said)
                        one = replace(one, lesson=told)
                    turns.append(one)
                taught_group.append(replace(episode, turns=tuple(turns)))
            groups.append(taught_group)
        return groups

    return games


def trained(folder: Path, games: Callable[[int], Games], **settings: Any) -> RunOfATest:
    made = RunOfATest(folder, games=games, **settings)
    train(made.run)
    return made


def games_with_scores(*players: int) -> Callable[[int], Games]:
    """Return the same games, in which a model scored what these players said."""

    def scored(one: Turn) -> Turn:
        if one.player not in players:
            return one
        logprobs = tuple(-float(token) / 8 for token in one.reply_ids)
        return replace(one, lesson=Lesson(logprobs=logprobs))

    def games(step: int) -> Games:
        return with_turns(untaught_games(step), scored)

    return games


def test_a_model_that_teaches_one_player_moves_the_other_by_nothing(tmp_path: Path) -> None:
    without = trained(tmp_path / "without", untaught_games, advantage="rloo")
    scored = trained(
        tmp_path / "with", games_with_scores(0, 1), teacher=("player_1=base",), advantage="rloo"
    )
    assert same_weights(without.weights("player_0"), scored.weights("player_0"))
    assert not same_weights(without.weights("player_1"), scored.weights("player_1"))
    assert "player_1/teacher_kl" in scored.events.rows[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"updates_per_step": 2, "entropy_bonus": 0.1, "beta": 0.1},
        {"minibatches": 2, "loss_unit": "turn"},
        {"sampler_correction": "sequence_mask", "teacher_steps": 2, "train_thoughts": False},
        {"tokens_per_micro_batch": 4},
        {"mixes": True},
        {"mixes": True, "minibatches": 2, "loss_unit": "turn", "tokens_per_micro_batch": 4},
    ],
)
def test_the_teacher_of_one_player_moves_the_other_by_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    options = {**options}
    teacher_steps = options.pop("teacher_steps", 0)
    mixes = options.pop("mixes", False)
    without = trained(tmp_path / "without", untaught_games, **options)
    with_teacher = trained(
        tmp_path / "with",
        games_with_lessons(0, 1, mixes=mixes),
        teacher=("player_1=iggi",),
        teacher_weight=3.0,
        teacher_steps=teacher_steps,
        **options,
    )
    assert same_weights(without.weights("player_0"), with_teacher.weights("player_0"))
    assert not same_weights(without.weights("player_1"), with_teacher.weights("player_1"))
    for row in with_teacher.events.rows:
        assert "player_0/teacher_loss" not in row
        assert ("player_1/teacher_divergence" in row) == mixes
    last = with_teacher.events.rows[-1]
    first = with_teacher.events.rows[0]
    if not teacher_steps:
        assert last["player_1/teacher_loss"] < first["player_1/teacher_loss"]
    assert last["player_1/teacher_weight"] == (0.0 if teacher_steps else 3.0)


def test_a_player_that_learns_from_its_teacher_alone_comes_to_say_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The written games were sampled by no policy, which a sharp one would notice.
    monkeypatch.setattr(mismatch, "surprise_score", lambda _: NO_SCORE)
    model = tiny_policy_model(Settings(**BASE_SETTINGS))
    with torch.no_grad():
        # So small a random head cannot be sure of anything.
        model.get_output_embeddings().weight.mul_(30)
    made = trained(
        tmp_path,
        games_with_lessons(0, 1),
        policy_model=model,
        num_steps=30,
        teacher=("iggi",),
        reward_weight=0.0,
        lr_scheduler_type="constant",
    )
    losses = [row["player_0/teacher_loss"] for row in made.events.rows]
    # Two labels for the same prompts, half and half: ln 2 in one token of two is the least.
    assert losses[0] > 2
    assert losses[-1] < 0.45
    assert made.events.rows[0]["player_0/teacher_agreement"] == 1.0


def test_a_player_whose_teacher_plays_every_turn_learns_from_it(tmp_path: Path) -> None:
    def by_teacher(one: Turn) -> Turn:
        if one.lesson is None:
            return one
        return replace(
            one,
            prompt_ids=(*one.prompt_ids, *one.lesson.reply_ids),
            reply_ids=(),
            logprobs=(),
            lesson=replace(one.lesson, plays=True),
        )

    def games(step: int) -> Games:
        return with_turns(games_with_lessons(0)(step), by_teacher)

    made = trained(tmp_path, games, teacher=("player_0=iggi",), teacher_plays=1.0)
    first, *_, last = made.events.rows
    assert last["player_0/teacher_loss"] < first["player_0/teacher_loss"]
    assert first["player_0/teacher_plays"] == 1.0
    assert "player_0/teacher_agreement" not in first
    assert all(math.isfinite(row["loss"]) for row in made.events.rows)


@pytest.mark.parametrize(
    ("reply", "given", "warned"),
    [
        ("<think> fits </think> Play 0", {}, ["player_0"]),
        ("Play 0", {}, []),
        ("<think> fits </think> Play 0", {"teacher_weight": 0.0}, []),
    ],
)
def test_a_player_that_thinks_and_a_teacher_that_does_not_are_told_of_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    reply: str,
    given: dict[str, Any],
    warned: list[str],
) -> None:
    def games(step: int) -> Games:
        return with_turns(games_with_lessons(0)(step), lambda one: replace(one, reply=reply))

    trained(tmp_path, games, teacher=("player_0=iggi",), **given)
    told = [message for message in caplog.messages if "learn to skip its thoughts" in message]
    assert [message.split()[0] for message in told] == warned
    assert all("on 100 % of its labeled turns" in message for message in told)
    assert all("its teacher iggi have none" in message for message in told)


def test_without_a_teacher_in_the_settings_lessons_are_not_read(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", untaught_games)
    labelled = trained(tmp_path / "labelled", games_with_lessons(0, 1))
    for player in NAMES:
        assert same_weights(plain.weights(player), labelled.weights(player))
    assert not any("teacher" in name for name in labelled.events.rows[0])


def test_a_player_comes_to_draw_as_its_teacher_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mismatch, "surprise_score", lambda _: NO_SCORE)

    def games(step: int) -> Games:
        said = mixed((0.75, (9, 1)), (0.25, (10, 1)))
        return with_turns(untaught_games(step), lambda one: replace(one, lesson=said))

    model = tiny_policy_model(Settings(**BASE_SETTINGS))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30)
    made = trained(
        tmp_path,
        games,
        policy_model=model,
        num_steps=30,
        teacher=("iggi",),
        reward_weight=0.0,
        lr_scheduler_type="constant",
    )
    divergences = [row["player_0/teacher_divergence"] for row in made.events.rows]
    assert divergences[0] > 1
    assert min(divergences) > 0
    assert divergences[-1] < 0.05


@pytest.mark.parametrize("mixes", [False, True])
def test_a_run_resumes_bit_by_bit_across_the_schedule(tmp_path: Path, mixes: bool) -> None:
    options: dict[str, Any] = {
        "teacher": ("iggi",),
        "teacher_weight": "player_0=2,1",
        "teacher_steps": 3,
        "num_steps": 5,
        "lr_scheduler_type": "constant",
    }
    games = games_with_lessons(0, 1, mixes=mixes)
    whole = trained(tmp_path / "whole", games, **options)
    cut = RunOfATest(tmp_path / "cut", games=games, **{**options, "num_steps": 2})
    cut.events.save_every = 2
    train(cut.run)
    resumed = RunOfATest(
        tmp_path / "cut",
        games=games,
        resume_folder=tmp_path / "cut" / "checkpoint-2",
        first_step=2,
        **options,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))
    facts = read_manifest(tmp_path / "cut" / "checkpoint-2").facts
    assert facts["taught_by"] == {
        player: {"teacher": "iggi", "labels": "distribution"} for player in NAMES
    }
    names = ("player_0/teacher_weight", "player_1/teacher_weight")
    shown = [[row[name] for name in names] for row in whole.events.rows]
    assert shown[2:] == [[row[name] for name in names] for row in resumed.events.rows]
    assert shown[3:] == [[0.0, 0.0], [0.0, 0.0]]
