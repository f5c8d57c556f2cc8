"""Teams of the zoo are named as policies, and play with their own settings."""

import json
import os
from pathlib import Path

import pytest

from doctor_machines import ROOT
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings.refs import CheckpointRef, Role, parse_ref
from hanabi_grpo.settings.shipped import ZOO
from hanabi_grpo.settings.zoo import FACTS, use_zoo, zoo_names, zoo_settings, zoo_team

NAMES = tuple(sorted(path.parent.name for path in (ROOT / ZOO).glob(f"*/{FACTS}")))


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # What `use_zoo` sets is taken back.
    for name in zoo_team("laptop").settings:
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize("name", NAMES)
def test_a_team_is_whole_and_belongs_to_its_model_and_its_game(name: str) -> None:
    team = zoo_team(name)
    saved = read_adapters(team.folder)
    facts = json.loads((team.folder / FACTS).read_text())
    num_players = int(team.settings["HANABI_PLAYERS"])
    assert len(saved.adapters) == num_players
    assert saved.facts["model_fingerprint"] == model_fingerprint(team.folder / "model")
    config = {
        "preset": team.settings["HANABI_PRESET"],
        "deductions": team.settings["HANABI_DEDUCTIONS"],
    }
    assert saved.facts["spec_hashes"] == [registry.setup("hanabi", config).spec.hash]
    assert facts["evaluations"]["sampled"]["num_tasks"] >= 1000


def test_the_laptop_team_is_named_as_a_policy_and_one_of_its_players_too() -> None:
    where = {"where": "test", "roles": (Role.BASE,), "scripts": ("iggi",)}
    folder = Path(ZOO) / "laptop"
    assert parse_ref("zoo:laptop", **where) == CheckpointRef(place=folder)
    player = parse_ref("zoo:laptop:player_1", **where)
    assert player == CheckpointRef(place=folder, adapter="player_1")


def test_a_lineup_with_a_team_plays_with_the_teams_settings() -> None:
    assert use_zoo(["iggi", "mine=zoo:laptop:player_1"])
    assert os.environ["HANABI_PRESET"] == "laptop"
    assert os.environ["HANABI_DEDUCTIONS"] == "counted"
    assert Path(os.environ["MODEL"]) == Path(ZOO) / "laptop" / "model"


def test_without_a_team_nothing_is_set() -> None:
    assert not use_zoo(["iggi", "outputs/zoo-like:player_1", "served"])
    assert os.environ["HANABI_PRESET"] == ""


def test_a_variable_that_says_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_MEMORY", "game")
    message = (
        "HANABI_MEMORY=game: zoo:laptop,iggi plays with HANABI_MEMORY=turn; unset HANABI_MEMORY"
    )
    with pytest.raises(SettingsError, match=message):
        use_zoo(["zoo:laptop,iggi"])


@pytest.mark.parametrize("value", ["0", "False", "no"])
def test_another_spelling_of_the_same_value_is_accepted(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HANABI_LEGAL_MOVES", value)
    assert use_zoo(["zoo:laptop"])


def test_an_unknown_team_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(SettingsError, match=r"zoo:lapto: the zoo has no such team; did you mean"):
        zoo_team("lapto")
    with pytest.raises(SettingsError, match=r"available are .*laptop"):
        zoo_settings(["zoo:"])


def test_teams_of_different_models_cannot_play_together() -> None:
    with pytest.raises(SettingsError, match="they cannot play together; name one of them"):
        zoo_settings([f"zoo:{name}" for name in zoo_names()])
