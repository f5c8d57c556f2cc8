"""Learning rate, LoRA rank and alpha of each player."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.export.card import _ranks
from hanabi_grpo.runs.resume_settings import check_compatible
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings import Settings, batch_plan, load_settings, settings_values
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.model import adapters
from loop_parts import NAMES, RunOfATest, same_weights, tiny_policy_model
from small_models import small_model

RATES = "player_0=0.05,player_1=0.02"


@pytest.mark.parametrize(
    ("given", "kept", "of_players"),
    [
        ("2e-5", 2e-5, (2e-5, 2e-5)),
        (0.5, 0.5, (0.5, 0.5)),
        ("player_0=1e-5, player_1=3e-5", "player_0=1e-05,player_1=3e-05", (1e-5, 3e-5)),
        ("player_1=3e-5,1e-5", "player_1=3e-05,1e-05", (1e-5, 3e-5)),
    ],
)
def test_a_rate_is_of_all_players_of_each_or_of_the_others(
    given: Any, kept: float | str, of_players: tuple[float, float]
) -> None:
    settings = Settings(learning_rate=given)
    assert settings.learning_rate == kept
    assert (settings.rate_of("player_0"), settings.rate_of("player_1")) == of_players
    batch_plan(settings)
    # What a run's settings.json holds is the same setting.
    saved = json.loads(json.dumps(settings_values(settings)))["LEARNING_RATE"]
    assert Settings(learning_rate=saved).learning_rate == kept


def test_ranks_are_whole_numbers_and_the_server_has_room_for_the_largest() -> None:
    settings = Settings(lora_rank="player_0=8,player_1=64", lora_alpha="player_0=4,32")
    assert (settings.rank_of("player_0"), settings.rank_of("player_1")) == (8, 64)
    assert (settings.alpha_of("player_0"), settings.alpha_of("player_1")) == (4, 32)
    assert settings.largest_rank == 64
    assert type(Settings().lora_rank) is int
    assert Settings(lora_rank="16").lora_rank == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0),
        ("learning_rate", "nan"),
        ("learning_rate", "player_0=1e-5,player_1=-1"),
        ("learning_rate", "player_0=1e-5,player_0=2e-5"),
        ("learning_rate", "player_9=1e-5,1"),
        ("learning_rate", "1e-5,2e-5"),
        ("learning_rate", True),
        ("lora_rank", "player_0=7,16"),
        ("lora_rank", 8.5),
        ("lora_alpha", "player_0=0,1"),
        ("lora_rank", "inf"),
        ("lora_rank", "nan"),
        ("lora_alpha", "player_0=1e400,1"),
    ],
)
def test_a_value_that_is_none_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        Settings(**{field: value})


def test_the_message_of_a_bad_value_says_how_players_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"LEARNING_RATE": "player_0:1e-5"}, tmp_path / ".env", device=("cpu", ""))
    assert str(caught.value) == (
        "LEARNING_RATE='player_0:1e-5': a number above 0, for all players, or for each as in "
        "player_0=1e-5,player_1=3e-5."
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"learning_rate": "player_0=1e-5"},
            "LEARNING_RATE=player_0=1e-05: adapter player_1 has no value; add an",
        ),
        (
            {"lora_rank": "player_0=8,player_2=16"},
            "LORA_RANK=player_0=8,player_2=16: player_2 is not a player of this game; allowed are "
            "player_0, player_1",
        ),
        (
            {"lora_alpha": "player_0=8,player_1=16,32"},
            "LORA_ALPHA=player_0=8,player_1=16,32: 32 applies to no player",
        ),
        (
            {"learning_rate": RATES, "adapters": "shared"},
            "LEARNING_RATE=.* with HANABI_ADAPTERS=shared: .*HANABI_ADAPTERS=per_player",
        ),
    ],
)
def test_values_that_fit_no_table_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))


def test_a_resumed_run_may_change_rates_and_not_ranks() -> None:
    saved = {"settings": settings_values(Settings(lora_rank="player_0=8,16"))}
    changed = Settings(lora_rank="player_0=8,16", learning_rate=RATES)
    [note] = check_compatible(saved, changed)
    assert note == f"LEARNING_RATE: was 0.0015, is {RATES}"
    with pytest.raises(SettingsError, match="LORA_RANK: was player_0=8,16, is 16"):
        check_compatible(saved, Settings(lora_rank=16))


def test_each_player_learns_at_its_own_rate_and_a_resume_goes_on_so(tmp_path: Path) -> None:
    values: dict[str, Any] = {"learning_rate": RATES, "lora_rank": "player_0=8,player_1=16"}
    whole = RunOfATest(tmp_path / "whole", **values)
    assert [group["lr"] for group in whole.optimizer.param_groups] == [0.05, 0.02]
    whole.events.save_every = 1
    train(whole.run)
    alone = RunOfATest(tmp_path / "alone", **{**values, "learning_rate": 0.05})
    train(alone.run)
    assert same_weights(whole.weights("player_0"), alone.weights("player_0"))
    assert not same_weights(whole.weights("player_1"), alone.weights("player_1"))
    rows = whole.events.rows
    assert [row["player_0/learning_rate"] for row in rows] == pytest.approx(
        [0.05, 0.1 / 3, 0.05 / 3]
    )
    assert [row["player_1/learning_rate"] for row in rows] == pytest.approx(
        [0.02, 0.04 / 3, 0.02 / 3]
    )
    assert "player_0/learning_rate" not in alone.events.rows[0]
    resumed = RunOfATest(
        tmp_path / "resumed",
        resume_folder=tmp_path / "whole" / "checkpoint-2",
        first_step=2,
        **values,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))


def test_adapters_have_their_ranks_and_a_checkpoint_of_them_is_read(tmp_path: Path) -> None:
    settings = Settings(lora_rank="player_0=8,player_1=16", lora_alpha="player_0=8,32")
    model = tiny_policy_model(settings)
    for player, rank in zip(NAMES, (8, 16), strict=True):
        tensors = adapters.adapter_tensors(model, player, torch.float32)
        for name, tensor in tensors.items():
            assert tensor.shape[0 if "lora_A" in name else 1] == rank, name
    layer = adapters.lora_layers(model)[0]
    assert layer.scaling == {"player_0": 1.0, "player_1": 2.0}
    folder = tmp_path / "checkpoint-3"
    for player in NAMES:
        adapters.save_adapter(model, player, folder / player)
    saved = read_adapters(folder)
    assert saved.lora_rank == 16
    assert _ranks(saved) == "player_0 8, player_1 16"


def test_the_second_adapter_starts_the_same_whatever_rank_the_first_has() -> None:
    def second(rank: int) -> dict[str, torch.Tensor]:
        model = adapters.add_adapters(
            small_model(), NAMES, rank={"player_0": rank, "player_1": 8}, alpha=16, seed=3
        )
        return dict(adapters.trainable_parameters(model, "player_1"))

    assert same_weights(second(8), second(64))
