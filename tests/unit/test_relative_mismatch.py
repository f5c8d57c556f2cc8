"""The relative mismatch check finds whose logprobs the sampler's are, through noise that is larger
than the change.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from accelerate import Accelerator

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training import mismatch
from hanabi_grpo.training.check_sample import check_rows
from hanabi_grpo.training.evidence import STEPS, Comparison
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow, collate
from hanabi_grpo.training.mismatch import (
    SCALED,
    STALE,
    CheckedGames,
    MismatchCheck,
    check_mismatch,
)
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import EarlierVersions, Policy
from hanabi_grpo.types import Episode
from loop_parts import RunOfATest
from made_games import made_episode, made_turn
from small_models import small_model

NAMES = ("player_0", "player_1")


def _rows(lengths: list[int]) -> list[TokenRow]:
    """Return sequences of different tokens, the first half of each a prompt."""
    rows = []
    for number, length in enumerate(lengths):
        zeros = [0.0] * length
        rows.append(
            TokenRow(
                ids=[(number + position) % 15 + 1 for position in range(length)],
                mask=[position >= length // 2 for position in range(length)],
                logprobs=zeros,
                advantages=zeros,
            )
        )
    return rows


def _talk(*replies: tuple[int, ...], prompt: tuple[int, ...] = (9, 9), **other: Any) -> Episode:
    """Return a game in which player 0 says so and player 1 nothing."""
    turns = [made_turn(0, *reply, prompt_ids=prompt) for reply in replies]
    return made_episode(*turns, **other)


def _kept(episodes: list[Episode], *, first: int = 0, rank: int = 0, ranks: int = 1) -> Any:
    rows = check_rows(episodes, 0, ("",), first=first, rank=rank, world_size=ranks)
    return [row.ids for row in rows]


def test_what_is_computed_again_is_the_beginning_of_the_games_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episodes = [_talk((1, 2), (3,), game=0), _talk((4, 5, 6), game=1), _talk((7,), game=2)]
    everything = [[9, 9, 1, 2, 9, 9, 3], [9, 9, 4, 5, 6], [9, 9, 7]]
    assert _kept(episodes) == everything
    assert _kept(episodes, first=5) == [everything[2], *everything[:2]]
    assert _kept(episodes, rank=1, ranks=2) == [everything[1]]
    # Six replies are seven without the last: the cut is at a number, not at a row that fits.
    monkeypatch.setattr("hanabi_grpo.training.check_sample.TOKENS", 5)
    assert _kept(episodes) == [everything[0], [9, 9, 4, 5]]
    assert _kept(episodes, ranks=2) == [[9, 9, 1, 2]]


def test_a_prompt_that_does_not_fit_ends_the_sample_before_its_reply_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hanabi_grpo.training.check_sample.ALL_TOKENS", 9)
    long = _talk((1, 2, 3), prompt=(9,) * 20)
    # A first turn is taken whatever it costs, and nothing after it.
    assert _kept([long, long]) == [[9] * 20 + [1, 2, 3]]
    # The common beginning of games is computed, and counted, once: 2 + 3 + 3 tokens, and one more.
    short = _talk((1, 2, 3))
    assert _kept([short, short, short]) == [[9, 9, 1, 2, 3]] * 2 + [[9, 9, 1]]


class Checked:
    """The check on a model at version 5 that keeps version 4, and player 0's games."""

    drawn_ids: ClassVar[torch.Tensor | None] = None
    """What was drawn once; the model is the same in every test."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = adapters.add_adapters(
            small_model(num_hidden_layers=2), NAMES, rank=4, alpha=8, seed=1
        )
        for name, value in self.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value, std=0.1)
        self.policy = Policy(self.model, NAMES, temperature=1.0, has_whole_weights=True)
        self.earlier = EarlierVersions(self.model, behind=1)
        for version in (4, 5):
            with torch.no_grad():
                for value in self.model.parameters():
                    if value.requires_grad:
                        value.add_(2e-3 * torch.randn(value.shape).sign())
            self.earlier.keep(version)
        self.incidents: list[tuple[str, str]] = []
        self.check = self.make_check("float32")

    def make_check(self, dtype: str, tolerance: float = 10.0) -> MismatchCheck:
        return MismatchCheck(
            self.policy,
            self.earlier,
            Accelerator(cpu=True),
            tolerance=tolerance,
            dtype=dtype,
            is_relative=True,
            report=lambda kind, message, **_: self.incidents.append((kind, message)),
        )

    def games(
        self,
        sampled_by: str,
        noise: float = 0.0,
        *,
        version: int = 5,
        scale: float = 1.0,
        temperature: float = 1.0,
    ) -> CheckedGames:
        """Return player 0's games with the logprobs of a policy, drawn from none.

        Args:
            sampled_by: An adapter, "stale" for player 0's before, or "base".
            noise: Standard deviation that is added to each logprob.
            version: Number of the step; with it changes who is suspected.
            scale: Of the adapter.
            temperature: At which the logprobs are.
        """
        batch = self.drawn(collate(_rows([96] * 64), NAMES[0], 3072, 0, torch.device("cpu")))
        adapter = sampled_by if sampled_by in NAMES else NAMES[0]
        with self.earlier.using(4 if sampled_by == "stale" else 5):
            policy = Policy(self.model, NAMES, temperature=temperature, has_whole_weights=True)
            if sampled_by == "base":
                logprobs = policy.reference_logprobs(batch)
            else:
                with adapters.scaled_by(self.model, adapter, scale):
                    logprobs = policy.fixed_logprobs(replace(batch, player=adapter))
        noisy = logprobs + noise * torch.randn(logprobs.shape)
        batch = replace(batch, sampler_logprobs=noisy * batch.reply_mask)
        return CheckedGames(
            samples={NAMES[0]: batch}, groups=[], num_dropped=0, version=version, sampled_by=5
        )

    @torch.no_grad()
    def drawn(self, batch: MicroBatch) -> MicroBatch:
        """Return the batch with replies that its own policy has drawn, with a fixed seed."""
        cached = type(self).drawn_ids
        if cached is not None:
            return replace(batch, ids=cached)
        adapters.use_adapter(self.model, NAMES[0])
        generator = torch.Generator().manual_seed(3)
        ids = batch.ids.clone()
        for position in torch.nonzero(batch.reply_mask.any(0)).flatten().tolist():
            logits = self.model(input_ids=ids[:, : position + 1], use_cache=False).logits[:, -1]
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
            ids[:, position + 1] = torch.where(
                batch.reply_mask[:, position], chosen, ids[:, position + 1]
            )
        type(self).drawn_ids = ids
        return replace(batch, ids=ids)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            {"sampled_by": "stale"},
            r"player_0@5: the sampler's logprobs are closer to those of version 4 of its adapter .*"
            r"a stale adapter.* Most likely: version 4 of its adapter, which explains 100%",
        ),
        # Which suspect is looked at besides these changes from step to step.
        (
            {"sampled_by": "player_1"},
            r"closer to those of adapter player_1 .* a swapped adapter.* Most likely: adapter pl",
        ),
        (
            {"sampled_by": "base", "version": 6},
            r"closer to those of the base model without an adapter .* without its adapter",
        ),
        (
            {"sampled_by": "player_0", "scale": 0.9},
            r"closer to those of its own adapter times 0\.9\d* .* was scaled, or not loaded",
        ),
        ({"sampled_by": "player_0", "scale": 0.99}, r"Most likely: its own adapter times 0\.99,"),
        ({"sampled_by": "player_0", "scale": 1.02}, r"Most likely: its own adapter times 1\.02,"),
        (
            {"sampled_by": "player_0", "temperature": 0.97},
            r"its own adapter at 0\.9[67]\d* times TEMPERATURE .* at another temperature",
        ),
        ({"sampled_by": "player_0", "temperature": 1.1}, r"at 1\.\d+ times TEMPERATURE .* of tok"),
    ],
)
def test_a_step_of_another_policys_logprobs_stops_the_run_and_names_it(
    fault: dict[str, Any], message: str
) -> None:
    checked = Checked()
    weights = {name: value.clone() for name, value in checked.model.named_parameters()}
    with pytest.raises(ParityError, match=message):
        checked.check.check_games(checked.games(**fault), {})
    kinds = [kind for kind, _ in checked.incidents]
    assert "mismatch_policy" in kinds
    assert set(kinds) <= {"mismatch_rose", "mismatch_policy"}
    for name, value in checked.model.named_parameters():
        assert torch.equal(value, weights[name])


def test_in_float32_suspects_are_computed_in_the_first_steps_and_where_a_gap_gives_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = Checked()
    checked.check = checked.make_check("float32")
    num_passes = 0
    float32_logprobs = checked.policy.float32_logprobs

    def counted(*args: Any) -> torch.Tensor:
        nonlocal num_passes
        num_passes += 1
        return float32_logprobs(*args)

    monkeypatch.setattr(checked.policy, "float32_logprobs", counted)
    sound = checked.games("player_0")
    evidence: Any = {}
    for passes_so_far in (3, 6, 9, 9, 9):
        evidence, _ = checked.check.check_games(sound, evidence)
        assert num_passes == passes_so_far
    gap = evidence["player_0|gap"][-1][0]
    # An independent noise of the gap's own size makes it larger by half, roughly.
    evidence, metrics = checked.check.check_games(checked.games("player_0", 2 * gap), evidence)
    assert num_passes == 12
    assert metrics["player_0/parity_slope"] == pytest.approx(0.0, abs=1e-3)


def test_a_step_of_the_players_own_games_goes_on_and_leaves_the_weights_alone() -> None:
    checked = Checked()
    weights = {name: value.clone() for name, value in checked.model.named_parameters()}
    _, metrics = checked.check.check_games(checked.games("player_0"), {})
    assert -3 < metrics.pop("player_0/parity_surprise") < 3
    assert metrics == {
        "player_0/parity_slope": pytest.approx(0.0, abs=1e-3),
        "player_0/parity_scale": pytest.approx(1.0, abs=1e-3),
        "player_0/parity_temperature": pytest.approx(1.0, abs=1e-5),
    }
    assert checked.incidents == []
    for name, value in checked.model.named_parameters():
        assert torch.equal(value, weights[name])


def test_the_same_tokens_on_a_second_process_are_no_further_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = Checked()
    games = checked.games("player_0", 0.01)
    one_process, _ = checked.check.check_games(games, {})
    accelerator = checked.check._accelerator
    monkeypatch.setattr(accelerator, "reduce", lambda numbers: 2 * numbers)
    monkeypatch.setattr(mismatch, "gather_object", lambda own: own * 2)
    two_processes, _ = checked.check.check_games(games, {})
    for suspect in (STALE, SCALED):
        [[toward, squares, *_]] = one_process[f"player_0|{suspect}"]
        [[toward_of_both, squares_of_both, *_]] = two_processes[f"player_0|{suspect}"]
        assert toward_of_both == pytest.approx(2 * toward)
        # So that the standard errors, toward / sqrt(squares), stay the same.
        assert squares_of_both == pytest.approx(4 * squares)


def test_tokens_are_told_apart_by_their_logprobs_and_across_processes_by_what_is_before_them() -> (
    None
):
    rows = []
    for ids in ([1, 2, 3, 4], [1, 2, 3, 4], [1, 5, 3, 4]):
        mask = [False, False, True, True]
        rows.append(TokenRow(ids=ids, mask=mask, logprobs=[0.0] * 4, advantages=[0.0] * 4))
    first, second, third = (collate([row], NAMES[0], 2, 0, torch.device("cpu")) for row in rows)
    here = mismatch._different_tokens(torch.tensor([-1.0, -2.0]), first)
    # Rounded otherwise.
    there = mismatch._different_tokens(torch.tensor([-1.0001, -2.0001]), second)
    assert here == there
    assert len(here) == 2
    elsewhere = mismatch._different_tokens(torch.tensor([-1.0, -2.0]), third)
    assert not here & elsewhere
    # Two certain tokens say as little as one.
    assert len(mismatch._different_tokens(torch.zeros(2), first)) == 1


def test_evidence_grows_over_steps_and_over_a_resume() -> None:
    checked = Checked()
    own = checked.games("player_0").samples["player_0"].sampler_logprobs
    before = checked.games("stale").samples["player_0"].sampler_logprobs
    checked.check = checked.make_check("bfloat16")
    noise = 8 * float((own - before)[own != 0].square().mean().sqrt())
    evidence: Any = {}
    num_steps = 0
    with pytest.raises(ParityError, match=r"over \d+ step\(s\)"):
        for step in range(5, 5 + STEPS):
            # As a checkpoint hands it on.
            evidence = json.loads(json.dumps(evidence))
            games = checked.games("stale", noise, version=step)
            evidence, _ = checked.check.check_games(games, evidence)
            num_steps += 1
    assert len(evidence["player_0|stale"]) == num_steps > 2


def test_a_gap_is_an_incident_at_three_times_the_median_and_a_stop_at_six_times() -> None:
    checked = Checked()
    checked.check = checked.make_check("bfloat16")
    evidence: Any = {"player_0|gap": [[0.01]] * 20}
    for noise, kinds in ((0.02, []), (0.05, ["mismatch_rose"])):
        checked.incidents.clear()
        checked.check.check_games(checked.games("player_0", noise), evidence)
        assert [kind for kind, _ in checked.incidents] == kinds
    with pytest.raises(
        ParityError,
        match=r"the median of the last 20 step\(s\) is 0.01; a gap above 0.03 .* above 0.06 s",
    ):
        checked.check.check_games(checked.games("player_0", 0.1), evidence)


def test_in_float32_a_gap_far_below_the_tolerance_stops_once_its_own_noise_is_known() -> None:
    checked = Checked()
    checked.check = checked.make_check("float32", tolerance=0.001)
    # The first step knows the tolerance alone.
    evidence, _ = checked.check.check_games(checked.games("player_0", 5e-5), {})
    assert [kind for kind, _ in checked.incidents] == ["mismatch_rose"]
    assert "in a first step, a gap above 1e-05 is an incident" in checked.incidents[0][1]
    evidence, _ = checked.check.check_games(checked.games("player_0"), {})
    assert evidence["player_0|gap"][0][0] < 1e-6
    with pytest.raises(ParityError, match=r"differ by [34]e?.*e-05 on average.* No suspect expl"):
        checked.check.check_games(checked.games("player_0", 5e-5), evidence)


def test_nobodys_weights_move_before_the_verdict_on_all_players(tmp_path: Path) -> None:
    """In a sequential step player_1's games are learned from when player_0 has moved."""
    made = RunOfATest(tmp_path, update="sequential", parity_tolerance=0.001)
    before = {name: value.clone() for name, value in made.model.named_parameters()}
    version = made.run.push_adapters()
    games = made.run.play(0, version)
    batches = made.run.build_batches(games)
    # The written games say -.5 of every token.
    with pytest.raises(
        ParityError, match=r"player_0@0: .* by \d\.\d+ on .* HANABI_PARITY_TOLERANCE=0\.001"
    ):
        made.run.check_logprobs(batches, games)
    for name, value in made.model.named_parameters():
        assert torch.equal(value, before[name])
    assert {kind for kind, _ in made.incidents} == {"mismatch_rose"}


def test_under_zero_3_nobody_holds_whole_adapters_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = RunOfATest(tmp_path, dtype="bfloat16", has_whole_weights=False)
    assert not made.run._mismatch.is_relative
    assert "under ZeRO-3 no process holds whole adapters" in caplog.text


def test_what_one_process_sees_stops_all_of_them() -> None:
    """One that raised alone would leave the others waiting in a collective operation."""
    fine = torch.full((1, 2), -1.0)
    every_token = torch.ones((1, 2), dtype=torch.bool)
    of_the_other_process: list[float] = [0.3, 0.4, 50.0, -1.0, -1.3]

    def gather(local: torch.Tensor) -> torch.Tensor:
        assert local.tolist() == [[0.0, 0.0, 2.0, -1.0, -1.0]]
        return torch.cat([local, torch.tensor([of_the_other_process], dtype=local.dtype)])

    with pytest.raises(ParityError, match=r"player_1@3: .* differ by 0.3 on average .* 50 tokens"):
        check_mismatch("player_1", 3, fine, fine, every_token, tolerance=0.01, gather=gather)
    of_the_other_process[0] = 0.004
    gaps = check_mismatch("player_1", 3, fine, fine, every_token, tolerance=0.01, gather=gather)
    # Of 2 tokens here and 50 there.
    assert gaps == pytest.approx((50 * 0.004, 52))


@pytest.mark.parametrize("shared", [False, True])
def test_attention_in_float32_never_gets_grouped_heads_or_a_mask(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA only the kernel that holds all scores would take them, and that is out of memory."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    base = small_model(**sizes).to(torch.bfloat16)
    model = adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)
    policy = Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    assert policy.shares_prefixes
    batch = collate(_rows([12, 8]), NAMES[0], 10, 0, torch.device("cpu"), shares_prefixes=shared)
    calls: list[tuple[torch.dtype, int, bool]] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
        assert attn_mask is None
        grouped = bool(options.get("enable_gqa"))
        calls.append((query.dtype, key.shape[1], grouped))
        return attention(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    with policy.in_float32():
        policy.float32_law(batch, NAMES[0], 5.0)
        policy.float32_logprobs(batch, None)
    assert set(calls) == {(torch.float32, 4, False)}
    calls.clear()
    policy.fixed_logprobs(batch)
    # As fast as before elsewhere.
    assert {grouped for _, _, grouped in calls} == {True}


class ServedIn16Bits(Checked):
    """A model in bfloat16, its last update of a given size, and an honest sampler."""

    drawn_ids = None

    def __init__(self, update: float) -> None:
        """Prepare; an element of B moved by `update` in each of the last two steps."""
        torch.manual_seed(0)
        base = small_model(num_hidden_layers=2).to(torch.bfloat16)
        self.model = adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)
        self.policy = Policy(self.model, NAMES, temperature=1.0, has_whole_weights=True)
        self.earlier = EarlierVersions(self.model, behind=1)
        for version in (4, 5):
            with torch.no_grad():
                for name, value in self.model.named_parameters():
                    if "lora_B" in name:
                        value.add_(update * torch.randn(value.shape).sign())
            self.earlier.keep(version)
        self.incidents = []
        self.check = self.make_check("bfloat16")

    def honest_games(self) -> CheckedGames:
        """Return games with the logprobs of the version that should have sampled, as served."""
        batch = self.drawn(collate(_rows([96] * 64), NAMES[0], 3072, 0, torch.device("cpu")))
        served = self.policy.served_logprobs(batch, NAMES[0]).float()
        logprobs = torch.zeros(batch.reply_mask.shape).masked_scatter(batch.reply_mask, served)
        batch = replace(batch, sampler_logprobs=logprobs)
        return CheckedGames(
            samples={NAMES[0]: batch}, groups=[], num_dropped=0, version=5, sampled_by=5
        )

    def metrics_of_steps(self, num_steps: int) -> dict[str, float]:
        """Check the same games in several steps; returns the last one's metrics."""
        games = self.honest_games()
        evidence: Any = {}
        for _ in range(num_steps):
            evidence, metrics = self.check.check_games(games, evidence)
            # The same tokens are no second draw: counted 40 times, one standard error becomes six.
            # And in bfloat16 the draw depends on the machine.
            del evidence[f"{NAMES[0]}|surprise"]
        return metrics


def _lossy(checked: Checked, *, version: int = 5, scale: float = 1.0) -> None:
    """Let the number format of the server lose what distinguishes policies.

    What bfloat16 itself loses of so small a model is noise, which depends on the machine.

    Args:
        checked: The check and its model.
        version: The version whose adapter remains of any other version's.
        scale: The share that remains of an adapter.
    """
    exact = checked.policy.served_logprobs

    def served_logprobs(batch: MicroBatch, adapter: str, served_scale: float = 1.0) -> torch.Tensor:
        with checked.earlier.using(version):
            return exact(batch, adapter, scale * served_scale)

    checked.policy.served_logprobs = served_logprobs  # type: ignore[method-assign, assignment]
    checked.check = checked.make_check("bfloat16")


def test_an_update_that_16_bits_lose_does_not_make_an_honest_sampler_look_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MismatchCheck, "_suspects", lambda *_: [STALE])
    checked = Checked()
    _lossy(checked, version=4)
    games = checked.games("stale")
    _, metrics = checked.check.check_games(games, {})
    assert metrics["player_0/update_kept"] == pytest.approx(0.0, abs=1e-3)
    assert "player_0/parity_slope" not in metrics
    assert not checked.incidents
    # Without the rule the float32 numbers say the opposite.
    monkeypatch.setattr(Comparison, "survives_rounding", True)
    with pytest.raises(ParityError, match="closer to those of version 4 of its adapter"):
        checked.check.check_games(games, {})


def test_what_16_bits_lose_of_a_whole_adapter_makes_an_honest_sampler_look_like_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One H200: of an adapter that kept .36 of its effect, × .9 was told from × 1 well enough."""
    monkeypatch.setattr(MismatchCheck, "_suspects", lambda *_: [SCALED])
    # How much is kept of the distance between × .9 and × 1 alone says nothing.
    monkeypatch.setattr(Comparison, "kept_share", 1.0)
    checked = Checked()
    _lossy(checked, scale=0.36)
    games = checked.games("player_0", scale=0.36)
    checked.check.check_games(games, {})
    assert not checked.incidents
    monkeypatch.setattr(Comparison, "lost_share", 0.0)
    with pytest.raises(ParityError, match="closer to those of its own adapter times"):
        checked.check.check_games(games, {})


UPDATES = (2e-6, 2e-4, 2e-3)
"""Sizes of an update, of which bfloat16 loses much, some and nothing."""


@pytest.mark.rest
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("suspect", [SCALED, STALE])
def test_an_honest_sampler_in_bfloat16_looks_like_nobody(
    suspect: str, update: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In so small a model noise hides an update of this size, too; that is not what is tested.
    monkeypatch.setattr("hanabi_grpo.training.mismatch.is_far_enough", lambda *_, **__: True)
    # How much is kept of the distance between two policies alone says nothing.
    monkeypatch.setattr(Comparison, "kept_share", 1.0)
    monkeypatch.setattr(MismatchCheck, "_suspects", lambda *_: [suspect])
    checked = ServedIn16Bits(update=update)
    checked.metrics_of_steps(40)
    assert not checked.incidents


def test_an_update_that_16_bits_keep_is_compared() -> None:
    metrics = ServedIn16Bits(update=1e-2).metrics_of_steps(1)
    assert metrics["player_0/update_kept"] == pytest.approx(1.0, abs=0.1)
    assert metrics["player_0/parity_slope"] == pytest.approx(0.0, abs=0.1)
