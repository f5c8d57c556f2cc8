"""Phases of best response: who is trained after which validations, when a run ends, and what a
resume knows of it.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.client.curves import validation_curves
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import check_payoffs
from hanabi_grpo.runs.resume_settings import check_compatible
from hanabi_grpo.runs.validation import FILE, Validated
from hanabi_grpo.settings import Settings, batch_plan, settings_values
from hanabi_grpo.training.phases import phase_after
from hanabi_grpo.training.validation import Validation
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

LAPTOP = registry.setup("hanabi", {"preset": "laptop"})
CHOSEN: dict[str, Any] = {
    "update": "best_response",
    "eval_steps": 10,
    "eval_patience": 2,
    "save_steps": 10,
}


def rows(scores: Sequence[float]) -> list[Validated]:
    return [Validated(step=10 * number, score=score, se=0.1) for number, score in enumerate(scores)]


def games(score: int) -> list[list[Episode]]:
    """Return a game of each of two tasks, with equal scores."""
    spec = LAPTOP.spec
    groups = []
    for seed in range(2):
        game = made_episode(
            made_turn(0), score=score, preset=spec.preset, spec_hash=spec.hash, seed=seed
        )
        groups.append([game])
    return groups


def made_validation(settings: Settings, folder: Path, first_step: int = 0) -> Validation:
    """Return the validation of a run whose games are those of `games`."""
    curves = [replace(curve, setups=(LAPTOP,)) for curve in validation_curves(settings)]
    return Validation(settings, folder, curves, first_step)


def phases_by_definition(
    scores: Sequence[float], num_players: int, patience: int
) -> list[tuple[int, bool]]:
    """Return per validation the phase after it, and whether the run ends there.

    From the definition alone: no validation of the last `patience` ones, all of them behind the
    phase's first, is better than every one before it in the run.
    """
    phases = []
    starts = [0]
    for now in range(len(scores)):
        ends_run = False
        first_in_vain = now - patience + 1
        is_long_enough = first_in_vain > starts[-1]
        if is_long_enough and max(scores[first_in_vain : now + 1]) <= max(scores[:first_in_vain]):
            if len(starts) >= num_players:
                start_of_round = starts[-num_players]
                best_of_round = max(scores[start_of_round + 1 : now + 1])
                ends_run = best_of_round <= max(scores[: start_of_round + 1])
            starts.append(now)
        phases.append((len(starts) - 1, ends_run))
    return phases


def test_a_phase_ends_after_so_many_validations_that_are_no_better_than_the_best() -> None:
    scores = [1.0, 2.0, 1.5, 1.4, 1.6, 2.5, 2.4, 1.0, 2.2, 1.2]
    phases = [
        phase_after(rows(scores[: number + 1]), ("player_0", "player_1"), 2)
        for number in range(len(scores))
    ]
    assert [phase.player[-1] for phase in phases] == list("0001111001"), (
        "player_1 is measured against 2.0, which the team went on from"
    )
    assert [phase.stale for phase in phases] == [0, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert [phase.is_best for phase in phases] == [phase.stale == 0 for phase in phases]
    finished = [phase.finished_player for phase in phases]
    assert finished == [None] * 3 + ["player_0"] + [None] * 3 + ["player_1"] + [None, "player_0"]
    assert [phase.ends_run for phase in phases] == [False] * 10
    in_vain = phase_after(rows([*scores, 1.0, 1.0]), ("player_0", "player_1"), 2)
    assert in_vain.ends_run, "2.5 is older than a whole round"
    empty = phase_after([], ("player_1",), 2)
    assert (empty.number, empty.player, empty.stale, empty.ends_run) == (0, "player_1", 0, False)


def test_phases_are_those_of_their_definition() -> None:
    rng, num_ends = random.Random(0), 0
    for _ in range(2000):
        scores = [float(rng.randrange(6)) for _ in range(rng.randrange(1, 25))]
        players, patience = (
            [f"player_{number}" for number in range(rng.randrange(1, 4))],
            rng.randrange(1, 4),
        )
        expected = phases_by_definition(scores, len(players), patience)
        for number, (phase, ends) in enumerate(expected):
            found = phase_after(rows(scores[: number + 1]), players, patience)
            assert (found.number, found.ends_run) == (phase, ends), (
                scores,
                players,
                patience,
                number,
            )
            assert found.player == players[phase % len(players)]
            num_ends += ends
    assert num_ends > 100


def test_a_run_that_is_resumed_anywhere_trains_whom_the_whole_run_trains_and_ends_where_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, scores = (
        Settings(players=3, freeze=("player_1",), **CHOSEN),
        [1, 2, 2, 1, 3, 3, 2, 3, 1, 2, 1, 2],
    )

    def go_on(folder: Path, first: int, last: int) -> list[tuple[tuple[str, ...], bool]]:
        validation, found = made_validation(settings, folder, first), []
        for step in range(first, last):
            if validation.is_due(step):
                validation.add(step, {"training": games(scores[step // 10])}, ())
            verdict = validation.verdict(step)
            found.append((verdict.active_players, verdict.ends_run))
        return found

    with caplog.at_level(logging.INFO):
        whole = go_on(tmp_path, 0, 120)
    assert [active[0][-1] for active, _ in whole[::10]] == list("000222002200")
    assert all(active == whole[step // 10 * 10][0] for step, (active, _) in enumerate(whole))
    assert [step for step, (_, ends) in enumerate(whole) if ends] == [100]
    assert (
        "phase 1: now training player_2; the team starts from 2.000 ± 0.000 at step 10"
        in caplog.messages
    )
    assert caplog.messages[-1] == (
        "a full round of players found no version better than 3.000 ± 0.000 at step 40: "
        "the run ends after step 101"
    )
    kept = (tmp_path / FILE).read_text()
    for first in (0, 5, 10, 29, 30, 31, 60, 90, 100, 101):
        (tmp_path / FILE).write_text(kept)
        assert go_on(tmp_path, first, 120) == whole[first:], first
        assert (tmp_path / FILE).read_text() == kept


def test_metrics_say_the_phase_and_what_is_stale_in_it(tmp_path: Path) -> None:
    validation = made_validation(Settings(**CHOSEN), tmp_path)
    found = []
    for number, score in enumerate((2, 1, 0, 1)):
        found.append(validation.add(10 * number, {"training": games(score)}, ()))
    assert [(one["validation/phase"], one["validation/stale"]) for one in found] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    plain = made_validation(Settings(eval_steps=10, save_steps=10), tmp_path / "x")
    assert plain.phase is None
    assert plain.verdict(0).active_players == ("player_0", "player_1")


@pytest.mark.parametrize("missing", ["eval_steps", "eval_patience"])
def test_phases_without_an_end_are_refused(missing: str) -> None:
    with pytest.raises(
        SettingsError, match=r"HANABI_UPDATE=best_response with HANABI_EVAL_STEPS=.*set both"
    ):
        batch_plan(Settings(**CHOSEN | {missing: 0}))
    batch_plan(Settings(**CHOSEN))


def test_best_response_is_for_teams_of_players_that_can_be_told_apart() -> None:
    with pytest.raises(
        SettingsError, match="HANABI_UPDATE=best_response with HANABI_ADAPTERS=shared"
    ):
        batch_plan(Settings(adapters="shared", **CHOSEN))
    kuhn = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    with pytest.raises(SettingsError, match="kuhn_poker is not a team game"):
        check_payoffs(Settings(**CHOSEN), [LAPTOP, kuhn])
    check_payoffs(Settings(**CHOSEN), [LAPTOP])
    check_payoffs(Settings(), [kuhn])


def test_what_ends_a_phase_cannot_change_on_the_way() -> None:
    saved = {"settings": settings_values(Settings(**CHOSEN))}
    for field in ("eval_steps", "eval_tasks", "eval_patience"):
        with pytest.raises(SettingsError, match=f"HANABI_{field.upper()}: was"):
            check_compatible(saved, Settings(**CHOSEN | {field: 30}))
    plain = {"settings": settings_values(Settings(eval_steps=50))}
    assert check_compatible(plain, Settings(eval_steps=50, eval_patience=3)) == [
        "HANABI_EVAL_PATIENCE: was 0, is 3"
    ]
