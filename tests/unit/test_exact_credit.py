"""What estimators and sequential updates find of a credit that is known exactly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from exact_game import (
    GAMES,
    MOVES,
    PAIR,
    SAME_STEP_PAIR,
    SEEN_PAIR,
    SPECS,
    SUM,
    MatrixGame,
    agreement,
    credit_after_a_move,
    learned_credits,
    noise,
    of_player,
    print_learned_credit,
    print_sequential_credit,
    slope,
    true_credit_after,
)
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.training.learned.credit import Credits
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.updates import GameStep, batch_weights, step_log_ratios
from loop_parts import NAMES, RunOfATest, same_weights, written_games

ROOT = Path(__file__).resolve().parents[2]


def test_the_true_credit_is_the_mean_return_with_a_move_less_the_players_own_mean() -> None:
    # Player 0 is paid 5 - 2 - 2 = 3, 1 and 0 more than its worst move, with 4/8, 3/8 and 1/8.
    mean = (4 * 3 + 3 * 1) / 8
    assert of_player(SUM.true_credit(), 0) == pytest.approx(
        {(0, 0, 0): 3 - mean, (0, 0, 1): 1 - mean, (0, 0, 2): -mean}
    )
    # Beside partners that make move 2 in half of the games, the others in a quarter each.
    assert of_player(PAIR.true_credit(), 0) == pytest.approx(
        {(0, 0, 0): -0.125, (0, 0, 1): -0.125, (0, 0, 2): 0.875}
    )
    # Having seen move 1, the second player is paid for move 1 alone.
    seen = SEEN_PAIR.true_credit()
    assert [seen[1, 1, move] for move in range(3)] == pytest.approx([-1.0, 3.0, -1.0])


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_returns_find_all_of_the_credit_with_the_partners_noise(game: MatrixGame) -> None:
    found = game.mean_credit(game.returns())
    assert slope(found, game.true_credit()) == pytest.approx(1.0)
    assert noise(game, game.returns(), 0) > 0.3


@pytest.mark.rest
@pytest.mark.parametrize("name", ["vdn", "qmix"])
@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_learned_shares_are_the_true_ones_also_where_a_move_is_seen(
    game: MatrixGame, name: str
) -> None:
    credits = learned_credits(game, name, steps=20)
    found = game.mean_credit(credits)
    true = game.true_credit()
    for player in (0, 1):
        own, own_true = of_player(found, player), of_player(true, player)
        # QMIX's parts are in points as far as its mixer is linear.
        assert slope(own, own_true) == pytest.approx(1.0, abs=0.05 if name == "vdn" else 0.15)
        assert agreement(own, own_true) > 0.99
        assert noise(game, credits, player) < 0.02


@pytest.mark.parametrize("mover", [0, 1])
@pytest.mark.parametrize("game", [*GAMES, SAME_STEP_PAIR], ids=lambda game: game.name)
def test_without_a_limit_the_factor_of_the_game_finds_the_new_teams_credit_exactly(
    game: MatrixGame, mover: int
) -> None:
    true = true_credit_after(game, mover, MOVES[mover])
    found = credit_after_a_move(game, mover, MOVES[mover], 0.0, "game")
    assert found == pytest.approx(true, abs=1e-6)


@pytest.mark.parametrize("mover", [0, 1])
def test_a_limit_is_a_bias_and_no_factor_points_the_other_way(mover: int) -> None:
    true = true_credit_after(PAIR, mover, MOVES[mover])
    cut = credit_after_a_move(PAIR, mover, MOVES[mover], 2.0, "game")
    old_team = of_player(PAIR.true_credit(), 1 - mover)
    assert slope(old_team, true) < 0 < slope(cut, true) < 0.5


@pytest.mark.parametrize("mover", [0, 1])
def test_the_factor_of_the_step_is_happos_own(mover: int) -> None:
    # Both move in one step: it is exact. One after the other: it is 1, the old team's credit.
    true = true_credit_after(SAME_STEP_PAIR, mover, MOVES[mover])
    found = credit_after_a_move(SAME_STEP_PAIR, mover, MOVES[mover], 0.0, "step")
    assert found == pytest.approx(true, abs=1e-6)
    found = credit_after_a_move(PAIR, mover, MOVES[mover], 0.0, "step")
    assert found == pytest.approx(of_player(PAIR.true_credit(), 1 - mover), abs=1e-6)


def test_each_token_has_the_factor_of_its_own_step() -> None:
    new = torch.tensor([[-1.0, -2.0, 9.0], [-3.0, -1.0, 0.0]])
    old = torch.tensor([[-1.5, -1.0, 0.0], [-3.0, -1.25, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    steps = torch.tensor([[0, 2, 0], [2, 2, 0]])
    ratios = step_log_ratios(new, old, mask, [4, 4], steps)
    # Two rows of one game, as with HANABI_MEMORY=turn.
    assert ratios == {GameStep(4, 0): 0.5, GameStep(4, 2): -0.75}
    batch: Any = type("Batch", (), {"steps": torch.tensor([[0, 2, 3]]), "games": (4,)})
    weights = batch_weights([ratios, {GameStep(4, 0): 9.0}], batch, 0.0)
    expected = torch.tensor([[9.5, -0.75, 0.0]]).exp()
    torch.testing.assert_close(weights, expected)
    limited = batch_weights([ratios, {GameStep(4, 0): 9.0}], batch, 2.0)
    torch.testing.assert_close(limited, torch.tensor([[2.0, 0.5, 1.0]]))


class _NumbersRead(TorchDispatchMode):
    """Counts how often a single number is read, for which a GPU finishes all work before it."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_factors_of_steps_do_not_wait_for_the_gpu_at_every_token() -> None:
    shape = (3, 50)
    steps = torch.arange(50).expand(shape)
    with _NumbersRead() as read:
        ratios = step_log_ratios(
            torch.zeros(shape),
            torch.ones(shape),
            torch.ones(shape, dtype=torch.bool),
            [0, 0, 1],
            steps,
        )
    assert ratios[GameStep(0, 49)] == -2.0
    assert ratios[GameStep(1, 0)] == -1.0
    assert len(ratios) == 100
    assert read.count == 0


def test_an_infinite_or_missing_factor_spoils_no_step() -> None:
    batch: Any = type("Batch", (), {"steps": None, "games": (0, 1, 2)})
    weights = batch_weights([{0: 1e9, 1: float("nan")}], batch, 0.0)
    assert weights.isfinite().all()
    assert weights[1:, 0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "values", [{"sequential_limit": 1.01}, {"sequential_factor": "step"}], ids=str
)
def test_each_choice_reaches_a_sequential_run_which_resumes_bit_by_bit(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    base: dict[str, Any] = {
        "update": "sequential",
        "updates_per_step": 3,
        "games": _one_at_a_time,
    }
    plain = RunOfATest(tmp_path / "plain", **base)
    changed = RunOfATest(tmp_path / "changed", **base, **values)
    changed.events.save_every = 1
    for made in (plain, changed):
        train(made.run)
    assert any(not same_weights(plain.weights(name), changed.weights(name)) for name in NAMES)
    assert {f"{name}/game_weight" in changed.events.rows[0] for name in NAMES} == {True, False}
    resumed = RunOfATest(
        tmp_path / "resumed",
        resume_folder=tmp_path / "changed" / "checkpoint-2",
        first_step=2,
        **base,
        **values,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(changed.weights(player), resumed.weights(player))


def test_where_one_player_moves_at_a_time_the_factor_of_the_step_is_independence(
    tmp_path: Path,
) -> None:
    values: dict[str, Any] = {"updates_per_step": 2}
    step = RunOfATest(
        tmp_path / "step",
        update="sequential",
        sequential_factor="step",
        games=_one_at_a_time,
        **values,
    )
    independent = RunOfATest(tmp_path / "independent", games=_one_at_a_time, **values)
    for made in (independent, step):
        train(made.run)
    for player in NAMES:
        assert same_weights(independent.weights(player), step.weights(player))


def _one_at_a_time(step: int) -> Any:
    groups = []
    for group in written_games(step):
        episodes = []
        for episode in group:
            turns = [replace(turn, step=number) for number, turn in enumerate(episode.turns)]
            episodes.append(replace(episode, turns=tuple(turns)))
        groups.append(episodes)
    return groups


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequential_limit": 0.0}, "HANABI_SEQUENTIAL_LIMIT=0 with HANABI_UPDATE=independent"),
        (
            {"sequential_factor": "step", "update": "best_response", "eval_steps": 50}
            | {"eval_patience": 3},
            "HANABI_SEQUENTIAL_FACTOR=step with HANABI_UPDATE=best_response: .*=sequential, or un",
        ),
    ],
)
def test_choices_that_nothing_reads_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))


@pytest.mark.parametrize("limit", [1.0, 0.5, -2.0])
def test_a_limit_is_above_1_or_none(limit: float) -> None:
    with pytest.raises(ValueError, match="sequential_limit"):
        Settings(sequential_limit=limit)


def _figures(rows: str) -> list[list[float]]:
    """Return the figures of each row of a table; names of settings have none in their cells."""
    figures = []
    for row in rows.strip().splitlines()[2:]:
        cells = row.split("|")[3:]
        figures.append([float(part) for part in ",".join(cells).split(",") if part.strip()])
    return figures


@pytest.mark.rest
@pytest.mark.parametrize(
    ("marker", "print_table"),
    [("exact-credit", print_learned_credit), ("exact-sequential", print_sequential_credit)],
)
def test_the_tables_of_the_docs_are_those_that_the_toy_prints(
    marker: str, print_table: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "teams.md").read_text()
    documented = page.split(f"<!-- {marker}:begin -->")[1].split(f"<!-- {marker}:end -->")[0]
    print_table()
    printed = capsys.readouterr().out
    rows, expected = _figures(documented), _figures(printed)
    assert len(rows) == len(expected) >= 12
    for row, figures in zip(rows, expected, strict=True):
        assert row == pytest.approx(figures, abs=0.11)
    names = [row.split("|")[1:3] for row in documented.strip().splitlines()]
    assert names == [row.split("|")[1:3] for row in printed.strip().splitlines()]


def test_a_checkpoint_of_other_networks_is_refused_with_the_way_out() -> None:
    learned = Credits(Settings(advantage="vdn"), NAMES, SPECS, 4)
    state = learned.state()
    del state["vdn|head.start"]
    problem = "Missing key.*start.*HANABI_START_FROM set to the check"
    with pytest.raises(RunFolderError, match=problem):
        learned.restore(state)
