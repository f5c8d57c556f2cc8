"""MODEL for each player: how it is read, what is refused, and how checkpoints are compared."""

from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.commands.doctor.command import PROBES, make_checks
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.export.folder import _of_one_base
from hanabi_grpo.report.export.origin import Origin
from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.runs.saved_adapters import (
    SavedAdapters,
    check_same_base,
    check_same_base_of_each,
)
from hanabi_grpo.settings import Settings, batch_plan, load_settings
from hanabi_grpo.settings.base_models import (
    base_models,
    base_of,
    bases_by_player,
    names_several,
    short_names,
)
from hanabi_grpo.settings.sleep import check_sleep

TEAM = "player_0=A,player_1=B"
NOWHERE = Path("/nonexistent/.env")


def facts_of(model: str) -> dict[str, str]:
    """The facts of a base model, as a manifest or a server has them."""
    return {
        "model_fingerprint": f"weights of {model}",
        "tokenizer_hash": f"tokens of {model}",
        "chat_hash": f"chat of {model}",
    }


BASES = {"player_0": facts_of("A"), "player_1": facts_of("B")}
OF_TEAM = {**facts_of("A"), "bases": BASES}


def saved(facts: dict[str, Any], *adapters: str) -> SavedAdapters:
    return SavedAdapters(
        step=1, lora_rank=2, adapters=dict.fromkeys(adapters, (b"", {})), facts=facts
    )


@pytest.mark.parametrize(
    ("model", "players", "of_players"),
    [
        ("A", 2, ("A", "A")),
        (TEAM, 2, ("A", "B")),
        ("player_1=B, player_0=A", 2, ("A", "B")),
        ("player_0=A,B", 3, ("A", "B", "B")),
        ("player_0=A,player_1=B,player_2=A", 3, ("A", "B", "A")),
        ("player_0=outputs/a=1,player_1=B", 2, ("outputs/a=1", "B")),
    ],
)
def test_a_model_is_of_all_players_of_each_or_of_the_others(
    model: str, players: int, of_players: tuple[str, ...]
) -> None:
    settings = Settings(model=model, players=players)
    names = [f"player_{number}" for number in range(players)]
    assert tuple(base_of(settings, name) for name in names) == of_players
    assert base_models(settings) == tuple(dict.fromkeys(of_players))
    is_one = len(set(of_players)) == 1
    assert bases_by_player(settings) == (
        {} if is_one else dict(zip(names, of_players, strict=True))
    )


@pytest.mark.parametrize("model", ["outputs/a,b", "outputs/x=y", "Qwen/Qwen3-4B", "my_player_0=1"])
def test_the_name_of_a_model_may_hold_commas_and_equal_signs(model: str) -> None:
    assert not names_several(model)
    assert base_models(Settings(model=model)) == (model,)


def test_titles_name_each_base_model_once() -> None:
    assert short_names("outputs/tiny-kuhn/") == "tiny-kuhn"
    assert short_names("player_0=org/A,player_1=/models/B,org/A") == "A, B"
    assert short_names("player_0=,player_0=x") == "player_0=,player_0=x"


def test_players_with_equal_entries_share_one_base_model_and_one_adapter_if_they_like() -> None:
    settings = Settings(model="player_0=A,player_1=A", adapters="shared")
    assert base_models(settings) == ("A",)
    assert base_of(settings, "shared") == "A"


@pytest.mark.parametrize(
    ("model", "others", "message"),
    [
        ("player_0=A", {}, "player_1 has no model; add an entry for it, or a model without a"),
        ("player_0=A,player_99=B", {}, "no player is called 'player_99'"),
        (
            "player_0=A,player_2=B,C",
            {},
            "player_2 is not a player of this game; allowed are player_0, player_1 (HANABI_PLAY",
        ),
        ("player_0=A,player_0=B", {}, "a second model for player_0"),
        ("player_0=A,player_1=", {}, "'player_1=': no model"),
        ("player_0=A,player_1=B,C", {}, "C applies to no player, since every player is named"),
        (
            TEAM,
            {"adapters": "shared"},
            "with HANABI_ADAPTERS=shared: the players share one adapter",
        ),
    ],
)
def test_models_of_nobody_or_of_players_who_share_an_adapter_are_refused(
    model: str, others: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        base_models(Settings(model=model, **others))
    assert str(caught.value).startswith(f"MODEL={model}")
    assert message in str(caught.value)


def test_zero_3_and_commands_for_one_model_refuse_a_team_of_models() -> None:
    message = "ZeRO-3 shards the weights of a single model; use zero2"
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(model=TEAM, deepspeed="zero3"))
    batch_plan(Settings(model=TEAM, deepspeed="zero2"))
    with pytest.raises(SettingsError, match="one is needed here; set MODEL to one of them"):
        resolve_model(TEAM)


def test_what_is_for_one_engine_or_one_models_critic_refuses_a_team_of_models() -> None:
    message = f"HANABI_SLEEP=1 with MODEL={TEAM}: only a single engine can sleep"
    with pytest.raises(SettingsError, match=message):
        check_sleep(Settings(model=TEAM, sleep=True, device="gpu"))
    one_gpu = {"vllm_data_parallel_size": 1, "nproc_per_node": 1}
    check_sleep(Settings(model="A", sleep=True, device="gpu", **one_gpu))
    with pytest.raises(SettingsError, match="a critic's adapter belongs to one base model"):
        batch_plan(Settings(model=TEAM, critic="adapter", advantage="ippo"))


def test_the_doctor_looks_at_each_base_model_and_leaves_the_arithmetic_of_one_out(
    tmp_path: Path,
) -> None:
    loaded = load_settings(
        {"MODEL": f"player_0=data/tiny-model,player_1={tmp_path}/none", "HANABI_PRESET": "laptop"},
        NOWHERE,
    )
    wanted = ("model", "chat template", "vocabulary", "memory", "budget")
    probes = [probe for probe in PROBES if probe.name in wanted]
    checks = make_checks(loaded, role="trainer", shell={}, probes=probes)
    found = [(check.status, check.name, check.finding) for check in checks]
    assert found[0][:2] == ("ok", "model")
    assert found[0][2].startswith("data/tiny-model: qwen3, 598 k parameters; 1 adapters of rank 16")
    assert found[1] == (
        "fail",
        "model",
        f"{tmp_path}/none: MODEL={tmp_path}/none: no such folder",
    )
    assert [entry[:2] for entry in found[2:6]] == [
        ("ok", "chat template"),
        ("skip", "chat template"),
        ("ok", "vocabulary"),
        ("skip", "vocabulary"),
    ]
    assert found[6:] == [
        ("skip", "memory", f"needs {tmp_path}/none, and its sizes in config.json"),
        (
            "skip",
            "budget",
            "estimated for one base model at a time: doctor MODEL=data/tiny-model, then "
            f"MODEL={tmp_path}/none",
        ),
    ]


def test_a_guest_may_be_of_any_base_model_of_a_team() -> None:
    folder = Path("run/checkpoint-1")
    assert check_same_base(folder, saved(facts_of("B"), "player_0"), OF_TEAM)
    assert check_same_base(folder, saved(OF_TEAM, "player_0", "player_1"), OF_TEAM)
    with pytest.raises(SettingsError, match="player_0 was trained with another base model"):
        check_same_base(folder, saved(facts_of("C"), "player_0"), OF_TEAM)
    with pytest.raises(SettingsError, match="player_1 was trained with another base model"):
        check_same_base(folder, saved(OF_TEAM, "player_0", "player_1"), facts_of("A"))
    assert check_same_base(
        folder, saved(OF_TEAM, "player_0", "player_1"), facts_of("A"), adapter="player_0"
    )


def test_a_start_must_be_of_the_players_own_base_model() -> None:
    folder = Path("run/checkpoint-1")
    start = saved(OF_TEAM, "player_0", "player_1")
    check_same_base(folder, start, OF_TEAM, adapter="player_1", player="player_1")
    with pytest.raises(SettingsError, match="weights of B, the server has weights of A"):
        check_same_base(folder, start, OF_TEAM, adapter="player_1", player="player_0")


def test_a_resumed_run_needs_each_players_base_model_again() -> None:
    checkpoint = Path("run/checkpoint-1")
    recorded = {"adapters": ["player_0", "player_1"], **OF_TEAM}
    check_same_base_of_each(checkpoint, recorded, OF_TEAM)
    other = {**OF_TEAM, "bases": {**BASES, "player_1": {**BASES["player_1"], "chat_hash": "new"}}}
    with pytest.raises(SettingsError) as caught:
        check_same_base_of_each(checkpoint, recorded, other)
    assert "player_1 was trained with another chat format: chat of B" in str(caught.value)
    alone = {"adapters": ["player_0", "player_1"], **facts_of("A")}
    check_same_base_of_each(checkpoint, alone, facts_of("A"))
    with pytest.raises(SettingsError, match="player_0 was trained with another base model"):
        check_same_base_of_each(checkpoint, alone, facts_of("B"))


def test_an_export_is_of_players_of_one_base_model(tmp_path: Path) -> None:
    origin = Origin(
        folder=tmp_path,
        saved=saved(OF_TEAM, "player_0", "player_1"),
        settings={},
        model="player_0=org/A,player_1=org/B",
        score=None,
        results=[],
        places=(),
    )
    second = _of_one_base(origin, ["player_1"])
    assert second.model == "org/B"
    assert second.saved.facts["model_fingerprint"] == "weights of B"
    with pytest.raises(SettingsError, match="player_0 on org/A, player_1 on org/B"):
        _of_one_base(origin, ["player_0", "player_1"])
