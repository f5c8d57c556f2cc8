"""The KL term: in the loss or the reward, its adaptive weight, and the policy that it is to."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.training.batching import build_micro_batches
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.kl import adapted, adapted_weights, measure_costs
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.reference import Reference
from hanabi_grpo.training.rewards import paid_groups, turn_rewards
from hanabi_grpo.training.thoughts import all_tokens
from hanabi_grpo.types import Episode
from loop_parts import BASE_SETTINGS, NAMES, RunOfATest, same_weights, written_games
from made_batches import made_cut
from made_games import made_episode, made_turn


def test_the_controller_is_that_of_its_source() -> None:
    # β (1 + .1 e): e = KL / target − 1 within ± .2.
    assert adapted(0.5, 0.11, 0.1) == pytest.approx(0.5 * 1.01)
    assert adapted(0.5, 9.0, 0.1) == pytest.approx(0.5 * 1.02)
    assert adapted(0.5, 0.0, 0.1) == pytest.approx(0.5 * 0.98)
    assert adapted(0.5, 0.1, 0.1) == 0.5
    weights = {"player_0": 0.5, "player_1": 0.25}
    assert adapted_weights(weights, {"player_1": 1.0}, None) == weights
    # Who has no token in the step keeps its weight.
    assert adapted_weights(weights, {"player_1": 1.0}, 0.1) == {
        "player_0": 0.5,
        "player_1": pytest.approx(0.25 * 1.02),
    }


def sampled_games(test: RunOfATest) -> list[list[Episode]]:
    """Return written games with the logprobs that the run's own adapters give them."""
    groups = written_games(0)
    batches = build_micro_batches(
        groups,
        trained_seats=("player_0@0", "player_1@0"),
        players=NAMES,
        estimator=make_estimator("grpo"),
        cut=made_cut(),
        pad_id=0,
        device=torch.device("cpu"),
    )
    by_game: dict[tuple[str, int], tuple[float, ...]] = {}
    for batch in batches:
        logprobs = test.policy.fixed_logprobs(batch)
        for row, game in enumerate(batch.games):
            values = logprobs[row][batch.reply_mask[row]].tolist()
            by_game[batch.player, game] = tuple(values)
    sampled = []
    number = 0
    for group in groups:
        episodes = []
        for episode in group:
            turns = []
            for turn in episode.turns:
                logprobs_of_turn = by_game[NAMES[turn.player], number]
                turns.append(
                    made_turn(
                        turn.player,
                        *turn.reply_ids,
                        prompt_ids=turn.prompt_ids,
                        version=0,
                        rewards=turn.rewards[turn.player],
                        logprobs=logprobs_of_turn,
                    )
                )
            episodes.append(
                made_episode(
                    *turns,
                    seats=episode.seats,
                    seed=episode.seed,
                    game=episode.game,
                    spec_hash=episode.spec_hash,
                )
            )
            number += 1
        sampled.append(episodes)
    return sampled


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_reply_costs_its_own_logprobs_less_those_of_the_reference(
    tmp_path: Path, micro_batches: int, shared: bool
) -> None:
    test = RunOfATest(tmp_path)
    groups = sampled_games(test)
    reference = Reference(test.policy, "base")
    measured = measure_costs(
        groups,
        trained_seats=("player_0@0", "player_1@0"),
        players=NAMES,
        reference=reference,
        trained=all_tokens,
        cut=made_cut(micro_batches=micro_batches, shared=shared),
        pad_id=0,
        device=torch.device("cpu"),
    )
    # Player 1's reply of the last game, computed by itself: a row of prompt and reply.
    turn = groups[1][1].turns[1]
    ids = torch.tensor([[*turn.prompt_ids, *turn.reply_ids]])
    with torch.no_grad(), adapters.base_only(test.model):
        logits = test.model(input_ids=ids).logits[0].float().log_softmax(-1)
    first = len(turn.prompt_ids)
    expected = 0.0
    for number, (token, sampled) in enumerate(zip(turn.reply_ids, turn.logprobs, strict=True)):
        expected += sampled - float(logits[first + number - 1, token])
    assert measured.costs[1][3] == [pytest.approx(expected, abs=1e-4)]
    assert abs(expected) > 0.01
    assert set(measured.by_player) == {"player_0", "player_1"}

    # The cost is a part of what the reply is paid, for its own player alone.
    costs = {seat: {3: measured.costs[seat][3]} for seat in (1,)}
    paid = paid_groups(groups, Settings(), ("player_0@0", "player_1@0"), costs)
    before = turn_rewards(groups[1][1], 1)[0]
    assert turn_rewards(paid[1][1], 1)[0] == pytest.approx(before - expected, abs=1e-4)
    assert paid[1][1].reward(0) == groups[1][1].reward(0)
    assert paid[0] == [*groups[0]]


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_kl_to_the_start_is_0_before_the_first_update_and_to_the_base_model_it_is_not(
    tmp_path: Path, kl_in: str
) -> None:
    # The adapters of a test do something already, as after a warm start.
    games = sampled_games(RunOfATest(tmp_path / "sampler"))

    def kl_of(reference: str) -> list[float]:
        test = RunOfATest(
            tmp_path / reference.replace(":", "-"),
            num_steps=2,
            games=lambda step: written_games(step) if step else games,
            beta=0.1,
            kl_in=kl_in,
            reference=reference,
        )
        train(test.run)
        return [row["player_0/kl"] for row in test.events.rows]

    base, *_ = kl_of("base")
    start, later = kl_of("start")
    assert base > 0.001
    assert start == pytest.approx(0.0, abs=1e-9)
    assert later > 0.001


def test_a_term_in_the_loss_is_exactly_0_at_the_start(tmp_path: Path) -> None:
    test = RunOfATest(tmp_path, num_steps=1, beta=0.1, reference="start")
    train(test.run)
    assert test.events.rows[0]["kl"] == 0.0


def test_the_kl_of_all_players_is_measured_wherever_it_counts(tmp_path: Path) -> None:
    games = sampled_games(RunOfATest(tmp_path / "sampler"))
    of_all = {}
    for kl_in in ("loss", "reward"):
        test = RunOfATest(
            tmp_path / kl_in, num_steps=1, games=lambda _: games, beta=0.1, kl_in=kl_in
        )
        train(test.run)
        [row] = test.events.rows
        of_all[kl_in] = row["kl"]
        # Two tokens of each reply by player_0, three of player_1's.
        own = [row[f"{name}/kl"] for name in NAMES]
        assert row["kl"] == pytest.approx((2 * own[0] + 3 * own[1]) / 5, rel=1e-4)
    # Trainer and sampler have the same logprobs here, up to rounding.
    assert of_all["reward"] == pytest.approx(of_all["loss"], rel=1e-4)


def test_the_reference_of_every_k_steps_moves_at_steps_that_k_divides(tmp_path: Path) -> None:
    test = RunOfATest(tmp_path, num_steps=5, beta=0.1, reference="every:2")
    versions: dict[int, dict[str, torch.Tensor]] = {}
    finish = test.run.finish_step
    kept: list[int] = []

    def watched() -> None:
        finish()
        step = test.run.state.step
        versions[step] = adapters.copy_parameters(test.policy.adapter_parameters)
        [version] = [
            number
            for number, weights in versions.items()
            if same_weights(weights, test.run.state.reference)
        ]
        kept.append(version)

    versions[0] = adapters.copy_parameters(test.policy.adapter_parameters)
    test.run.finish_step = watched  # type: ignore[method-assign]
    train(test.run)
    assert kept == [0, 0, 2, 2, 4]
    assert [row["kl"] == 0.0 for row in test.events.rows] == [True, False, True, False, True]


RESUMED: list[dict[str, Any]] = [
    {"reference": "start", "kl_target": 0.01},
    {"reference": "every:2", "kl_in": "reward", "kl_target": 0.01},
    {"kl_in": "reward", "advantage": "reinforce_pp"},
    {"reference": "start", "kl_in": "reward", "advantage": "ippo"},
]


@pytest.mark.parametrize("values", RESUMED)
def test_a_resumed_run_ends_where_the_whole_one_does_bit_by_bit(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    values = {"beta": 0.2, "num_steps": 4, **values}
    whole = RunOfATest(tmp_path / "whole", **values)
    whole.events.save_every = 1
    train(whole.run)
    resumed = RunOfATest(
        tmp_path / "resumed",
        resume_folder=tmp_path / "whole" / "checkpoint-3",
        first_step=3,
        **values,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))
    assert whole.run.state.kl_weights == resumed.run.state.kl_weights
    assert whole.run.state.reference.keys() == resumed.run.state.reference.keys()
    assert same_weights(whole.run.state.reference, resumed.run.state.reference)
    last = whole.events.rows[-1]
    assert last["player_1/kl_weight"] == resumed.events.rows[-1]["player_1/kl_weight"]
    if "kl_target" in values:
        # Far above the target from step to step: β grows by 2 % each.
        assert last["player_1/kl_weight"] != 0.2


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_term_moves_a_player_and_the_weight_of_one_player_moves_no_other(
    tmp_path: Path, kl_in: str
) -> None:
    def games(prompt: int) -> Any:
        def of_step(step: int) -> list[list[Episode]]:
            """Player 1 is asked something else, so that its KL is another."""
            groups = []
            for group in written_games(step):
                episodes = []
                for episode in group:
                    first, second = episode.turns
                    other = made_turn(
                        1,
                        *second.reply_ids,
                        prompt_ids=(2, prompt),
                        version=step,
                        rewards={"score": 0.5},
                    )
                    episodes.append(
                        made_episode(
                            first,
                            other,
                            seats=episode.seats,
                            seed=episode.seed,
                            game=episode.game,
                            spec_hash=episode.spec_hash,
                        )
                    )
                groups.append(episodes)
            return groups

        return of_step

    values: dict[str, Any] = {"beta": 0.3, "kl_in": kl_in, "kl_target": 0.05}
    one = RunOfATest(tmp_path / "one", games=games(1), **values)
    two = RunOfATest(tmp_path / "two", games=games(9), **values)
    without = RunOfATest(tmp_path / "without", games=games(1))
    for test in (one, two, without):
        train(test.run)
    assert same_weights(one.weights("player_0"), two.weights("player_0"))
    assert not same_weights(one.weights("player_1"), two.weights("player_1"))
    assert not same_weights(one.weights("player_0"), without.weights("player_0"))
    ones, twos = one.events.rows[-1], two.events.rows[-1]
    assert ones["player_1/kl"] != twos["player_1/kl"]
    assert ones["player_0/kl_weight"] == twos["player_0/kl_weight"]


class ReferenceLaw:
    """A reference policy that gives each token of its one position a written logprob."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        self._logprobs = logprobs

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        return self._logprobs[batch.ids[:, 1:] - 1]


def test_the_gradient_of_the_cost_is_that_of_the_kl() -> None:
    """Exact over a vocabulary of four: each token is said as often as its probability says."""
    beta = 0.5
    seats = ("player_0@0", "player_1@0")
    counts = [1, 2, 3, 2]
    logits = torch.tensor(counts, dtype=torch.float32).log().requires_grad_()
    reference = torch.tensor([0.5, -1.0, 0.25, 2.0]).log_softmax(-1)
    logps = logits.log_softmax(-1)
    kl = (logps.exp() * (logps - reference)).sum()
    [expected] = torch.autograd.grad(beta * kl, [logits], retain_graph=True)
    assert expected.abs().min() > 0.01

    games = []
    for token, count in enumerate(counts):
        said = made_turn(0, token + 1, prompt_ids=(9,), logprobs=logps[token].item(), version=0)
        games += [made_episode(said, seats=seats)] * count
    measured = measure_costs(
        [games],
        trained_seats=seats,
        players=NAMES,
        reference=ReferenceLaw(reference),  # type: ignore[arg-type]
        trained=all_tokens,
        cut=made_cut(),
        pad_id=0,
        device=torch.device("cpu"),
    )
    points = {}
    for game, costs in measured.costs[0].items():
        points[game] = [beta * cost for cost in costs]
    [batch] = [
        batch
        for batch in build_micro_batches(
            paid_groups([games], Settings(), seats, {0: points}),
            trained_seats=seats,
            players=NAMES,
            estimator=make_estimator("grpo", scale="none"),
            cut=made_cut(),
            pad_id=0,
            device=torch.device("cpu"),
        )
        if batch.player == "player_0"
    ]
    loss, _ = PolicyLoss(Settings(**BASE_SETTINGS))(logps[batch.ids[:, 1:] - 1], batch)
    [gradient] = torch.autograd.grad(loss, [logits])
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kl_in": "reward"}, "HANABI_KL_IN=reward with BETA=0: .*set BETA"),
        ({"kl_target": 0.1}, "HANABI_KL_TARGET=0.1 with BETA=0"),
        ({"reference": "every:5"}, "HANABI_REFERENCE=every:5 with BETA=0"),
        (
            {"beta": 0.1, "kl_in": "reward", "advantage": "vdn"},
            "HANABI_KL_IN=reward with HANABI_ADVANTAGE=vdn: .*HANABI_KL_IN=loss",
        ),
        (
            {"beta": 0.1, "reference": "start", "deepspeed": "zero3"},
            "HANABI_REFERENCE=start with DEEPSPEED=zero3: .*use zero2",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))


@pytest.mark.parametrize("value", ["every:0", "every", "every:-1", "begin", "every:1.5"])
def test_a_reference_is_one_of_three(value: str) -> None:
    with pytest.raises(ValueError, match="reference"):
        Settings(reference=value)
