"""References: one language for seats, adapters, partners and checkpoints, wherever they lie."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.client.lineups import parse_line_up
from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.partners import parse_pool
from hanabi_grpo.settings.refs import (
    AdapterRef,
    CheckpointRef,
    HubPlace,
    Ref,
    Role,
    ScriptRef,
    WandbPlace,
    check_seat,
    is_frozen,
    is_scripted,
    parse_checkpoint,
    parse_ref,
    seat_adapter,
    split_player,
)

LAPTOP = WandbPlace(entity="team", project="hanabi", name="laptop", alias="best")
READ: dict[str, Ref] = {
    "iggi": ScriptRef(name="iggi"),
    "base": Role.BASE,
    "served": Role.SERVED,
    "earlier": Role.EARLIER,
    "human": Role.HUMAN,
    "player_0": AdapterRef(adapter="player_0"),
    "player_4@latest": AdapterRef(adapter="player_4"),
    "shared@12": AdapterRef(adapter="shared", version=12),
    "outputs/run": CheckpointRef(place=Path("outputs/run")),
    "./iggi": CheckpointRef(place=Path("iggi")),
    "outputs/a:run/checkpoint-50:player_1": CheckpointRef(
        place=Path("outputs/a:run/checkpoint-50"), adapter="player_1"
    ),
    "wandb:team/hanabi/laptop:best": CheckpointRef(place=LAPTOP),
    "wandb:team/hanabi/laptop:best:player_1": CheckpointRef(place=LAPTOP, adapter="player_1"),
    "wandb:hanabi/laptop": CheckpointRef(place=WandbPlace(project="hanabi", name="laptop")),
    "hf:org/repo": CheckpointRef(place=HubPlace(org="org", repo="repo")),
    "hf:org/repo@refs/pr/1:shared": CheckpointRef(
        place=HubPlace(org="org", repo="repo", revision="refs/pr/1"), adapter="shared"
    ),
}


def test_each_reference_is_read_as_its_value_and_written_as_it_was_typed() -> None:
    for text, value in READ.items():
        assert parse_ref(text, where="here", roles=tuple(Role), scripts=SCRIPTED, adapters=True) == value
        assert str(value) == text + ("@latest" if text == "player_0" else "")
    scripts = [parse_ref(name, where="here", roles=(), scripts=SCRIPTED) for name in SCRIPTED]
    assert scripts == [ScriptRef(name=one) for one in SCRIPTED]


@given(st.text(max_size=40) | st.from_regex(r"(wandb|hf):[a-z./@:_0-9-]{0,30}", fullmatch=True))
def test_any_text_is_a_reference_that_is_read_again_or_is_refused(text: str) -> None:
    try:
        value = parse_ref(text, where="here", roles=tuple(Role), scripts=SCRIPTED, adapters=True)
    except SettingsError as error:
        assert len(str(error)) < 900
    else:
        assert parse_ref(str(value), where="here", roles=tuple(Role), scripts=SCRIPTED, adapters=True) == value


@pytest.mark.parametrize("text", ["player_8", "player_0@", "player_0@-1", "player_0@٣", "frozen_0123456789abcdef@50"])
def test_adapters_that_nobody_can_type_are_unknown(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is unknown; allowed are .*player_0@latest"):
        parse_line_up(text, 2)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        *((f"wandb:{text}", "wandb:entity/project/name:alias") for text in ("", "x", "a/b/c/d", "a/b/c:", "a/b/c:d:e")),
        *((f"hf:{text}", "hf:org/repo") for text in ("", "team", "a/b/c", "a/b@", "a b/c")),
    ],
)
def test_references_to_elsewhere_that_are_none_are_refused_before_anything_is_asked(text: str, form: str) -> None:
    for read in (parse_checkpoint, lambda text: parse_line_up(f"iggi,{text}", 2), lambda text: parse_pool([text], 2)):
        with pytest.raises(SettingsError, match=rf"{text!r}: give {form}"):
            read(text)


def test_no_name_of_this_shell_or_of_an_answer_leads_out_of_the_downloads() -> None:
    for entity, alias in (("..", "v3"), ("/etc", "v3"), ("../../..", "v3"), ("team", "../v3"), ("team", "..")):
        with pytest.raises(SettingsError, match=r"names no folder; .* and look at WANDB_ENTITY"):
            WandbPlace(entity=entity, project="hanabi", name="laptop", alias=alias)
    for text in ("wandb:a/../c:v1", "hf:../x", "hf:a/.."):
        with pytest.raises(SettingsError, match=r"names no folder|give hf:"):
            parse_checkpoint(text)


def test_a_player_before_an_equals_sign_is_a_seat() -> None:
    assert split_player("player_1 = hf:org/repo") == ("player_1", "hf:org/repo")
    assert split_player("outputs/lr=3e-3") == (None, "outputs/lr=3e-3")


def test_seats_on_the_wire_are_scripts_the_base_model_and_adapters_at_a_version() -> None:
    for seat in ("iggi", "base", "player_0@7", "shared@0", "frozen_0123456789abcdef@50"):
        assert check_seat(seat) == seat
    for seat in ("player_0", "player_0@latest", "served", "", None, 7, "x" * 10_000):
        with pytest.raises(SettingsError, match=r"allowed are adapter@version .*the name of a script"):
            check_seat(seat)
    assert (seat_adapter("player_0@7"), seat_adapter("iggi")) == (("player_0", 7), None)
    assert (is_scripted("iggi"), is_scripted("equilibrium-0.1"), is_scripted("base")) == (True, True, False)
    assert (is_frozen("frozen_0123456789abcdef@50"), is_frozen("player_0@7")) == (True, False)
