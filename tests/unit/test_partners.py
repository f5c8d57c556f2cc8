"""Policy specs, pools, shares and draws: pure functions of what they are given."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.hanabi.policies import POLICIES
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.settings.partners import (
    BLOCK,
    Draw,
    Partner,
    choose_step,
    draw,
    own_seats,
    parse_pool,
    read_pool,
    without_weight,
)
from hanabi_grpo.settings.refs import (
    AdapterRef,
    BestPlace,
    CheckpointRef,
    HubPlace,
    Ref,
    Role,
    ScriptRef,
    SeatRef,
    UrlRef,
    WandbPlace,
    parse_checkpoint,
    parse_ref,
    parse_seat,
)
from hanabi_grpo.types import is_trained
from made_games import made_episode

IGGI = Partner(spec="iggi", ref=ScriptRef(name="iggi"), name="iggi")


def refusal(*entries: str, players: int = 2) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_pool(entries, players)
    return str(caught.value)


def test_an_entry_is_a_script_an_earlier_version_the_base_model_or_a_folder() -> None:
    assert parse_pool(("iggi", "earlier", "base"), 2) == (
        IGGI,
        Partner(spec="earlier", ref=Role.EARLIER, name="earlier"),
        Partner(spec="base", ref=Role.BASE, name="base"),
    )
    (fixed,) = parse_pool(("player_1=iggi",), 2)
    assert fixed == replace(IGGI, seat=1)
    (folder,) = parse_pool(("player_0 = outputs/other/checkpoint-50:player_1",), 2)
    assert folder == Partner(
        spec="outputs/other/checkpoint-50:player_1",
        ref=CheckpointRef(place=Path("outputs/other/checkpoint-50"), adapter="player_1"),
        name="checkpoint-50.player_1",
        seat=0,
    )
    assert parse_pool((), 2) == ()
    for name in POLICIES:
        (script,) = parse_pool((name,), 2)
        assert script.spec == name


def test_two_checkpoints_of_one_name_are_told_apart_in_metrics() -> None:
    pool = parse_pool(
        ("a/checkpoint-50", "x/b/checkpoint-50", "y/b/checkpoint-50", "player_1=a/checkpoint-50"), 2
    )
    assert [partner.name for partner in pool] == [
        "a.checkpoint-50",
        "b.checkpoint-50",
        "b.checkpoint-50-2",
        "a.checkpoint-50",
    ]


def test_a_typo_is_refused_with_what_was_meant() -> None:
    messages = {
        "igi": "Did you mean 'iggi'?",
        "earlyer": "Did you mean 'earlier'?",
        "player_1=igi": "Did you mean 'iggi'?",
        "player_2=iggi": "player_2 is not a player of this game; allowed: player_0, player_1.",
        "checkpoint-50": "a folder with a slash in it (./checkpoint-50)",
    }
    for entry in ("IGGI", "", "player_1=", "player_0@7", "served", "iggi\u202e", "x" * 10_000):
        messages[entry] = "is unknown; allowed are"
    for entry, message in messages.items():
        text = refusal(entry)
        assert text.startswith("HANABI_PARTNERS: ")
        assert message in text
        assert len(text) < 700


shares = st.integers(1, 100).map(lambda percent: percent / 100)


@given(share=shares, seed=st.integers(0, 2**31 - 1), tasks=st.integers(0, 400))
def test_the_share_is_kept_within_one_block_of_tasks(share: float, seed: int, tasks: int) -> None:
    drawn = [
        draw((IGGI,), task, share=share, seed=seed, num_players=2) is not None
        for task in range(tasks)
    ]
    wanted = Fraction(str(share))
    for end in range(0, tasks + 1, BLOCK):
        # At the end of each block it is exact but for the part of one task.
        assert sum(drawn[:end]) == int(wanted * end)
    assert abs(sum(drawn) - float(wanted) * tasks) <= BLOCK * float(
        min(wanted, 1 - wanted) + Fraction(1, 8)
    )
    if share == 1:
        assert all(drawn)


@pytest.mark.parametrize("players", [2, 3, 5])
def test_every_partner_plays_equally_often_and_takes_every_seat_equally_often(players: int) -> None:
    pool = parse_pool(("iggi", "earlier", "player_1=piers"), players)
    counts: Counter[tuple[str, int]] = Counter()
    # Half of the tasks have a partner: 16 for each of three partners in each seat.
    for task in range(2 * 3 * players * 16):
        drawn = draw(pool, task, share=0.5, seed=7, num_players=players)
        if drawn is not None:
            counts[drawn.partner.spec, drawn.seat] += 1
    expected = {("piers", 1): 16 * players}
    for seat in range(players):
        expected["iggi", seat] = 16
        expected["earlier", seat] = 16
    assert counts == expected


def test_a_partner_plays_as_often_as_its_weight_says() -> None:
    pool = parse_pool(("iggi*2", "player_1=piers*0.5", "earlier"), 2)
    assert [partner.weight for partner in pool] == [2, Fraction(1, 2), 1]
    assert [partner.spec for partner in pool] == ["iggi", "piers", "earlier"]
    counts: Counter[tuple[str, int]] = Counter()
    # 4 : 1 : 2 in whole numbers, so a cycle has 14 tasks.
    for task in range(14 * 8):
        drawn = draw(pool, task, share=1, seed=7, num_players=2)
        assert drawn is not None
        counts[drawn.partner.spec, drawn.seat] += 1
    assert counts == {
        ("iggi", 0): 32,
        ("iggi", 1): 32,
        ("piers", 1): 16,
        ("earlier", 0): 16,
        ("earlier", 1): 16,
    }
    # Equal weights are no weights.
    equal = parse_pool(("iggi*3", "piers*3"), 2)
    plain = parse_pool(("iggi", "piers"), 2)
    for task in range(64):
        weighted = draw(equal, task, share=0.5, seed=1, num_players=2)
        unweighted = draw(plain, task, share=0.5, seed=1, num_players=2)
        assert (weighted is None) == (unweighted is None)
        if weighted is not None and unweighted is not None:
            assert weighted.partner.spec == unweighted.partner.spec
            assert weighted.seat == unweighted.seat


def test_weights_of_which_no_cycle_can_be_made_are_refused() -> None:
    assert "a weight must be a number above 0" in refusal("iggi*0")
    assert "as whole numbers, the weights make a cycle of 10001 tasks; at most 1000" in refusal(
        "iggi*1000", "piers*0.1"
    )
    assert "'iggi' is listed 2 times" in refusal("iggi*2", "iggi*3")
    assert without_weight("player_1=outputs/run*2.5") == "player_1=outputs/run"


def test_a_draw_depends_on_seed_task_and_pool_alone() -> None:
    pool = parse_pool(("iggi", "earlier"), 3)

    def draws(
        tasks: range, seed: int = 1, entries: tuple[Partner, ...] = pool
    ) -> list[Draw | None]:
        return [draw(entries, task, share=0.5, seed=seed, num_players=3) for task in tasks]

    def as_text(drawn: list[Draw | None]) -> list[str]:
        return ["-" if draw is None else f"{draw.partner.spec} {draw.seat}" for draw in drawn]

    # A resumed run begins in the middle: it draws what the run that was not interrupted drew.
    assert draws(range(0, 90))[37:] == draws(range(37, 90))
    assert draws(range(90)) != draws(range(90), seed=2)
    assert as_text(draws(range(90))) != as_text(draws(range(90), entries=pool[::-1]))
    assert draws(range(50), entries=()) == [None] * 50
    # Written out: another order after an update would change runs that go on.
    assert as_text(draws(range(12))) == [
        "-",
        "-",
        "iggi 1",
        "earlier 2",
        "iggi 0",
        "-",
        "-",
        "-",
        "iggi 2",
        "-",
        "earlier 0",
        "earlier 1",
    ]


def test_earlier_versions_are_drawn_equally_often_and_a_missing_one_changes_only_its_tasks() -> (
    None
):
    drawn = [choose_step((10, 20, 30), task, seed=3) for task in range(3000)]
    counts = Counter(drawn)
    assert set(counts) == {10, 20, 30}
    assert all(abs(count - 1000) < 120 for count in counts.values()), counts
    without = [choose_step((30, 10), task, seed=3) for task in range(3000)]
    assert all(new == old for new, old in zip(without, drawn, strict=True) if old != 20)
    assert choose_step((4,), 0, seed=0) == 4


def test_a_seat_is_trained_only_when_it_holds_this_version_of_this_run() -> None:
    own = own_seats(3, ("player_0", "player_1", "player_2"), 7)
    assert own == ("player_0@7", "player_1@7", "player_2@7")
    assert own_seats(2, ("shared",), 0) == ("shared@0", "shared@0")

    def trained(*seats: str) -> list[bool]:
        episode = made_episode(num_players=3, seats=seats)
        return [is_trained(episode, player, own) for player in range(3)]

    assert trained(*own) == [True] * 3
    assert trained() == [True] * 3
    assert trained("player_0@7", "iggi", "player_2@7") == [True, False, True]
    # Swapped, stale, frozen, and the base model: nobody whose loss belongs to that seat.
    assert trained("player_1@7", "player_1@6", "frozen_0123456789abcdef@7") == [False] * 3
    assert trained("base", "player_1@7", "base") == [False, True, False]


def test_a_pool_that_one_step_cannot_hold_on_the_server_is_refused() -> None:
    many = {"partners": ("earlier",), "players": 5, "save_total_limit": 4}
    assert len(read_pool(Settings(**many, tasks_per_step=16))) == 1
    message = r"one step needs up to 20 different frozen adapters \(20 in the pool"
    with pytest.raises(SettingsError, match=message) as caught:
        read_pool(Settings(**many, tasks_per_step=24))
    assert "a server holds 16" in str(caught.value)
    # The best version in validation is kept in addition, so it is a partner as well.
    many["save_total_limit"] = 3
    assert len(read_pool(Settings(**many, tasks_per_step=24))) == 1
    with pytest.raises(SettingsError, match=message):
        read_pool(Settings(**many, tasks_per_step=24, eval_steps=50, save_steps=50))


def test_a_partner_that_is_named_twice_and_earlier_versions_that_are_never_kept_are_refused() -> (
    None
):
    assert "'player_0=iggi' is listed 2 times" in refusal("player_0=iggi", "player_0=iggi")
    with pytest.raises(
        SettingsError, match=r"never an earlier one\. Set SAVE_TOTAL_LIMIT=2 or more"
    ):
        read_pool(Settings(partners=("earlier",), save_steps=1, save_total_limit=1))
    assert read_pool(Settings(partners=("earlier",), save_steps=2, save_total_limit=1))
    assert read_pool(Settings(partners=("iggi",), save_steps=1, save_total_limit=1))


def read(text: str) -> Ref:
    """Read a spec where everything is allowed."""
    return parse_ref(text, where="here", roles=tuple(Role), scripts=POLICIES, adapters=True)


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
    "outputs/run@best": CheckpointRef(place=BestPlace(run=Path("outputs/run"))),
    "./run@best:player_1": CheckpointRef(place=BestPlace(run=Path("run")), adapter="player_1"),
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
        assert read(text) == value
        assert str(value) == ("player_0@latest" if text == "player_0" else text)
    for name in POLICIES:
        ref = parse_ref(name, where="here", roles=(), scripts=POLICIES)
        assert ref == ScriptRef(name=name)


SEATS: dict[str, SeatRef] = {
    "iggi": ScriptRef(name="iggi"),
    "base": Role.BASE,
    "url:big": UrlRef(name="big"),
    "player_0@7": AdapterRef(adapter="player_0", version=7),
    "frozen_0123456789abcdef@50": AdapterRef(adapter="frozen_0123456789abcdef", version=50),
}


def test_each_seat_of_a_request_is_read_as_its_value_and_written_again() -> None:
    for text, value in SEATS.items():
        assert parse_seat(text) == value
        assert str(value) == text
    guests = [text for text, ref in SEATS.items() if isinstance(ref, AdapterRef) and ref.is_guest]
    assert guests == ["frozen_0123456789abcdef@50"]


@pytest.mark.parametrize(
    "text", ["player_0", "player_0@latest", "served", "human", "earlier", "IGGI", "", "a/b", 7]
)
def test_what_no_server_seats_is_refused_in_a_request(text: object) -> None:
    with pytest.raises(SettingsError, match=r"allowed are adapter@version \(player_0@7\), base"):
        parse_seat(text)


@given(st.text(max_size=40) | st.from_regex(r"(wandb|hf):[a-z./@:_0-9-]{0,30}", fullmatch=True))
def test_any_text_is_a_reference_that_is_read_again_or_is_refused(text: str) -> None:
    try:
        value = read(text)
    except SettingsError as error:
        assert len(str(error)) < 900
    else:
        assert read(str(value)) == value


@pytest.mark.parametrize(
    "text", ["player_8", "player_0@", "player_0@-1", "player_0@٣", "frozen_0123456789abcdef@50"]
)
def test_adapters_that_nobody_can_type_are_unknown(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is unknown; allowed are .*player_0@latest"):
        parse_lineup(text, 2)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("wandb:", "wandb:entity/project/name:alias"),
        ("wandb:x", "wandb:entity/project/name:alias"),
        ("wandb:a/b/c/d", "wandb:entity/project/name:alias"),
        ("wandb:a/b/c:", "wandb:entity/project/name:alias"),
        ("wandb:a/b/c:d:e", "wandb:entity/project/name:alias"),
        ("hf:", "hf:org/repo"),
        ("hf:team", "hf:org/repo"),
        ("hf:a/b/c", "hf:org/repo"),
        ("hf:a/b@", "hf:org/repo"),
        ("hf:a b/c", "hf:org/repo"),
    ],
)
def test_references_to_elsewhere_that_are_none_are_refused_before_anything_is_asked(
    text: str, form: str
) -> None:
    message = rf"{text!r}: give {form}"
    with pytest.raises(SettingsError, match=message):
        parse_checkpoint(text)
    with pytest.raises(SettingsError, match=message):
        parse_lineup(f"iggi,{text}", 2)
    with pytest.raises(SettingsError, match=message):
        parse_pool([text], 2)


def test_no_name_of_this_shell_or_of_an_answer_leads_out_of_the_downloads() -> None:
    for entity, alias in (
        ("..", "v3"),
        ("/etc", "v3"),
        ("../../..", "v3"),
        ("team", "../v3"),
        ("team", ".."),
    ):
        with pytest.raises(SettingsError, match=r"cannot be a folder name; .* check WANDB_ENTITY"):
            WandbPlace(entity=entity, project="hanabi", name="laptop", alias=alias)
    for text in ("wandb:a/../c:v1", "hf:../x", "hf:a/.."):
        with pytest.raises(SettingsError, match=r"cannot be a folder name|give hf:"):
            parse_checkpoint(text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partner_share": 1.0}, "HANABI_PARTNER_SHARE=1 without HANABI_PARTNERS"),
        ({"partner_draw": "worst"}, "HANABI_PARTNER_DRAW=worst without HANABI_PARTNERS"),
    ],
)
def test_a_training_whose_settings_expect_partners_is_refused_without_any(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))
    batch_plan(Settings(partners=("iggi",), **values))
    batch_plan(Settings(partner_share=0.7))


def test_a_power_is_refused_unless_partners_are_drawn_by_their_scores() -> None:
    with pytest.raises(SettingsError, match="HANABI_PARTNER_POWER=3 with HANABI_PARTNER_DRAW=unif"):
        batch_plan(Settings(partners=("iggi",), partner_power=3.0))
    batch_plan(Settings(partners=("iggi",), partner_power=3.0, partner_draw="worst"))
