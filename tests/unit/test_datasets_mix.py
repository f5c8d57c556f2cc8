"""Several boards in one run: shares, steps, and the seed that chooses the deals."""

import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hanabi_grpo.envs.hanabi.rules import make_spec, shuffled_deck
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import deals, load_rows, mix_line, num_steps
from hanabi_grpo.rollout.deal_schedule import MAX_BLOCK, Terms, locate, plan_phases
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.deals import DealDataset, step_deals

SHARES = st.one_of(
    st.integers(1, 12).map(Fraction), st.integers(1, 20).map(lambda twentieths: Fraction(twentieths, 20))
)
STEPS = st.one_of(st.none(), st.integers(1, 12))


def rows_of(folder: Path, *rows: dict[str, Any], settings: Settings | None = None) -> list[dict[str, Any]]:
    return load_rows(write(folder, *rows), settings or Settings(deals_per_step=8, deal_seed=0))


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    lines = []
    for row in rows:
        config = {"preset": row.pop("preset", "laptop"), **row.pop("env_config", {})}
        lines.append(json.dumps({"messages": [{"role": "user", "content": "x"}], "env_config": config, **row}) + "\n")
    path.write_text("".join(lines))
    return path


def played(rows: list[dict[str, Any]], start: int, count: int) -> list[str]:
    return [deal["env_config"]["preset"] for deal in deals(rows, start, count)]


@examples(deadline=None)
@given(st.lists(SHARES, min_size=1, max_size=5), st.integers(0, 300), st.integers(1, 40))
def test_any_stretch_of_deals_has_nearly_the_shares_and_a_whole_block_has_them_exactly(
    shares: list[Fraction], start: int, length: int
) -> None:
    terms = tuple(Terms(share=share) for share in shares)
    [phase] = plan_phases(terms)
    block = len(phase.order)
    counts = Counter(locate(terms, deal)[0] for deal in range(start, start + block))
    total = sum(shares)
    assert all(counts[row] == block * share / total for row, share in enumerate(shares))
    part = Counter(locate(terms, deal)[0] for deal in range(start, start + length))
    assert all(abs(part[row] - length * share / total) <= len(shares) for row, share in enumerate(shares))


@examples(deadline=None)
@given(
    st.lists(st.tuples(SHARES, st.integers(0, 12), st.one_of(st.none(), st.integers(1, 12))), min_size=1, max_size=4)
)
def test_a_row_never_skips_or_repeats_a_visit_whatever_the_others_do(
    given_terms: list[tuple[Fraction, int, int | None]],
) -> None:
    terms = tuple(
        Terms(share=share, first=first, end=None if length is None else first + length)
        for share, first, length in given_terms
    )
    seen: dict[int, list[int]] = {row: [] for row in range(len(terms))}
    for deal in range(40):
        covering = [row for row, one in enumerate(terms) if one.covers(deal)]
        if not covering:
            with pytest.raises(SettingsError, match=f"deal {deal}: no row of the dataset plays then"):
                locate(terms, deal)
            continue
        row, visit = locate(terms, deal)
        assert row in covering
        seen[row].append(visit)
    assert all(visits == list(range(len(visits))) for visits in seen.values())
    assert all(a.first < b.first and a.end is not None for a, b in pairwise(plan_phases(terms)))


def test_a_curriculum_moves_from_board_to_board_and_a_row_that_pauses_goes_on(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        {"preset": "laptop", "until_step": 2},
        {"preset": "marshal-mini", "from_step": 2, "share": 3, "env_config": {"seeds": list(range(100))}},
        {"preset": "mini", "from_step": 4, "until_step": 4},
    )
    settings = Settings(deals_per_step=8)
    assert mix_line(rows, settings) == (
        "step 1: laptop; step 2: laptop 25 %, marshal-mini 75 %; step 3: marshal-mini; "
        "step 4: marshal-mini 75 %, mini 25 %; from step 5: marshal-mini"
    )
    counts = [Counter(played(rows, 8 * step, 8)) for step in range(5)]
    assert counts == [
        {"laptop": 8},
        {"laptop": 2, "marshal-mini": 6},
        {"marshal-mini": 8},
        {"marshal-mini": 6, "mini": 2},
        {"marshal-mini": 8},
    ]
    chosen = [deal for deal in deals(rows, 0, 40) if deal["env_config"]["preset"] == "marshal-mini"]
    assert [deal["seed"] for deal in chosen] == list(range(28))
    assert [deal["seed"] for deal in deals(rows, 24, 8) if deal["env_config"]["preset"] == "mini"] == [26, 30]


def test_steps_mean_steps_whatever_a_steps_size(tmp_path: Path) -> None:
    rows = [{"until_step": 3}, {"preset": "mini", "from_step": 4}]
    for size in (1, 5, 64):
        found = rows_of(tmp_path, *(dict(row) for row in rows), settings=Settings(deals_per_step=size))
        assert played(found, 3 * size - 1, 2) == ["laptop", "mini"]


def test_a_step_asks_for_the_same_deals_wherever_the_run_starts(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"share": 2, "until_step": 3}, {"preset": "mini"})
    dataset = DealDataset(rows, 6 * 8)
    assert [deal for step in range(6) for deal in step_deals(step, 8)] == list(range(len(dataset)))
    assert [dataset[number] for number in step_deals(2, 8)] == deals(rows, 16, 8)


def test_bad_terms_are_refused_with_line_value_and_what_is_allowed(tmp_path: Path) -> None:
    bad = {
        '"share": 0': "share=0: a share is a number from 0.0001 to 10000, such as 3; leave it out for 1.",
        '"share": -1': "share=-1: a share is",
        '"share": true': "share=True: a share is",
        '"share": "3"': "share='3': a share is",
        '"share": null': "share=None: a share is",
        '"share": 1e999': "share=inf: a share is",
        '"share": NaN': "not JSON",
        f'"share": {10**400}': "share=1000000000000000000000000000000000000000: a share is",
        '"from_step": 0': "from_step=0: must be the number of a step, from 1, or left out.",
        '"from_step": 1.5': "from_step=1.5: must be",
        '"until_step": true': "until_step=True: must be",
        '"until_step": 2147483648': "until_step=2147483648: must be",
        '"from_step": 5, "until_step": 4': "until_step=4: is the row's last step, so it must be 5 (from_step) or",
        '"until_score": 0.9': "unknown key 'until_score'; did you mean until_step?",
    }
    path = tmp_path / "rows.jsonl"
    for typed, problem in bad.items():
        row = '{"messages": [{"role": "u", "content": ""}], "env_config": {"preset": "laptop"}, ' + typed + "}"
        path.write_text("\n" + row)
        with pytest.raises(SettingsError) as caught:
            load_rows(path, Settings())
        assert str(caught.value).startswith(f"{path} line 2: {problem}")


def test_shares_without_a_short_common_block_are_refused_and_the_finest_allowed_is_not(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"rows\.jsonl: shares 0\.123457, 1: .* in 1123457 deals, allowed are 10000"
    ):
        rows_of(tmp_path, {"share": 0.123457}, {"share": 1})
    rows = rows_of(tmp_path, {"share": 0.9999}, {"preset": "mini", "share": 0.0001})
    assert Counter(played(rows, 123, MAX_BLOCK)) == {"laptop": 9999, "mini": 1}


def test_steps_that_no_row_plays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no row plays in steps 1 to 4; let one end later"):
        rows_of(tmp_path, {"from_step": 5})
    with pytest.raises(SettingsError, match="no row plays in steps 11 to 19;"):
        rows_of(tmp_path, {"until_step": 10}, {"from_step": 20})
    rows = rows_of(tmp_path, {"until_step": 10})
    settings = Settings(max_steps=11, dataset="my.jsonl")
    with pytest.raises(
        SettingsError, match=r"MAX_STEPS=11: no row of my\.jsonl plays after step 10\. Set MAX_STEPS=10"
    ):
        num_steps(settings, rows)
    assert num_steps(Settings(max_steps=10), rows) == 10


def test_an_epoch_with_shares_ends_when_every_row_has_played_all_its_seeds(tmp_path: Path) -> None:
    def steps(*rows: dict[str, Any]) -> int:
        return num_steps(Settings(num_train_epochs=1.0, deals_per_step=1), rows_of(tmp_path, *rows))

    seeds = {"env_config": {"seeds": list(range(30))}}
    assert steps({**seeds}, {**seeds}) == 60
    assert steps({**seeds, "share": 3}, {**seeds, "share": 1}) == 120
    assert steps({**seeds, "share": 3}, {"env_config": {"seeds": list(range(10))}}) == 40
    with pytest.raises(
        SettingsError, match=r"NUM_TRAIN_EPOCHS=1: .* count steps, not epochs\. Set MAX_STEPS instead\."
    ):
        steps({**seeds, "until_step": 5}, {**seeds, "from_step": 6})


def test_styles_of_one_board_may_be_mixed_and_are_named_apart(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        {"env_config": {"observation": "compact"}},
        {"env_config": {"observation": "full"}, "share": 3},
        settings=Settings(),
    )
    assert mix_line(rows, Settings()) == "laptop (compact) 25 %, laptop (full) 75 %"


def test_the_seed_of_a_run_chooses_its_fresh_deals_and_no_two_seeds_share_one(tmp_path: Path) -> None:
    def seeds(**given: int) -> list[int]:
        rows = rows_of(tmp_path, {}, settings=Settings(**given))  # type: ignore[arg-type]
        return [deal["seed"] for deal in deals(rows, 0, 50)]

    assert seeds(deal_seed=0) == list(range(50))
    assert seeds(seed=7) == seeds(seed=3, deal_seed=7) == [7 * 2**32 + deal for deal in range(50)]
    assert seeds() == seeds(seed=42)
    fixed = rows_of(tmp_path, {"env_config": {"seeds": [4, 2]}}, settings=Settings(seed=7))
    assert [deal["seed"] for deal in deals(fixed, 0, 4)] == [4, 2, 4, 2]
    assert set(seeds(seed=1)).isdisjoint(seeds(seed=2))
    shuffled_deck(make_spec("laptop"), "train", seeds(seed=2**31 - 1)[-1])
    last = rows_of(tmp_path, {}, settings=Settings(seed=2**31 - 1))
    assert deals(last, 2**32 - 1, 1)[0]["seed"] == 2**63 - 1
    with pytest.raises(SettingsError, match="a run has 4294967296 fresh deals; set another HANABI_DEAL_SEED"):
        deals(last, 2**32, 1)
