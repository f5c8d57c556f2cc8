"""TOP_P and TOP_K: how training, its mismatch check and evaluations take them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import ParityError, SettingsError
from hanabi_grpo.evaluation.comparison.kinds import TaskKey
from hanabi_grpo.evaluation.tables import _name
from hanabi_grpo.runs.evaluation_result import read_result, result_of_json
from hanabi_grpo.runs.resume_settings import check_compatible
from hanabi_grpo.settings import Settings, batch_plan, settings_values
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter
from hanabi_grpo.training.evidence import (
    LIMIT,
    STEPS,
    count_repeats,
    repeat_score,
    surprise_score,
    surprise_sums,
)
from hanabi_grpo.training.link import GamesRequest, ServerLink
from hanabi_grpo.training.mismatch import CheckedGames
from hanabi_grpo.training.model.output_head import (
    FilteredSampling,
    TokenLaw,
    law_of_logits,
    token_law,
)
from hanabi_grpo.types import Episode
from loop_parts import RunOfATest
from made_games import made_episode, made_turn
from server_app import running_app
from training_runs import made_evaluation

TOP_P = TokenFilter(top_p=0.9)
TOP_K = TokenFilter(top_k=5)
BOTH = TokenFilter(top_p=0.8, top_k=10)


def sampling(token_filter: TokenFilter, rounding: float = 1e-3) -> FilteredSampling:
    return FilteredSampling(token_filter=token_filter, rounding=rounding)


def law_with(logits: torch.Tensor, token_filter: TokenFilter, rounding: float = 1e-3) -> TokenLaw:
    tokens = torch.zeros(len(logits), 1, dtype=torch.long)
    return law_of_logits(logits, tokens, 1.0, 5.0, sampling(token_filter, rounding))


def test_what_a_filter_keeps_is_a_choice_of_its_own() -> None:
    assert ALL_TOKENS.keeps_all
    assert not TOP_P.keeps_all and not TOP_K.keeps_all
    assert str(BOTH) == "top-p 0.8, top-k 10"
    assert TOP_K.within(4) == ALL_TOKENS
    assert BOTH.within(10) == TokenFilter(top_p=0.8)
    assert TOP_K.within(6) == TOP_K


def test_the_law_of_what_is_drawn_is_that_of_the_tokens_that_pass() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    whole = law_with(logits, ALL_TOKENS)
    assert whole.drawn is not None
    assert whole.drawn.mean.tolist() == pytest.approx(whole.mean.tolist())
    # .5 and .3 make .8; the third is needed for .9.
    law = law_with(logits, TOP_P)
    assert law.drawn is not None
    surprises = [-math.log(probability) for probability in (0.5, 0.3, 0.15)]
    shares = [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95]
    mean = sum(share * own for share, own in zip(shares, surprises, strict=True))
    variance = sum(share * (own - mean) ** 2 for share, own in zip(shares, surprises, strict=True))
    assert law.drawn.mean.tolist() == pytest.approx([mean])
    assert law.drawn.variance.tolist() == pytest.approx([variance])
    # The law of the whole distribution, by which temperatures are told apart, stays.
    assert law.mean.tolist() == pytest.approx(whole.mean.tolist())
    assert law.logprobs.tolist() == [[pytest.approx(math.log(0.5))]]
    # Of two tokens .5 makes .625, so that top-p .6 keeps the first alone.
    two = law_with(logits, TokenFilter(top_k=2, top_p=0.6))
    assert two.drawn is not None
    assert two.drawn.mean.tolist() == pytest.approx([math.log(2)])
    assert two.drawn.variance.tolist() == pytest.approx([0.0], abs=1e-6)


def test_a_place_at_which_rounding_decides_who_passes_is_not_sure() -> None:
    # The least likely two make .1 or almost .1: whether the third passes is not known.
    logits = torch.tensor(
        [[0.6, 0.3, 0.06, 0.04], [0.6, 0.29999, 0.06001, 0.04], [0.6, 0.25, 0.09, 0.06]]
    ).log()
    for rounding, expected in ((1e-6, [False, True, True]), (1e-3, [False, False, True])):
        law = law_with(logits, TOP_P, rounding)
        assert law.drawn is not None
        assert law.drawn.is_sure.tolist() == expected
    # The likeliest passes whatever the others are, and top-k has no such place.
    law = law_with(torch.tensor([[0.9, 0.1]]).log(), TokenFilter(top_p=0.05), 1e-3)
    assert law.drawn is not None and law.drawn.is_sure.tolist() == [True]
    ties = law_with(torch.zeros(1, 4), TokenFilter(top_k=2))
    assert ties.drawn is not None and ties.drawn.is_sure.tolist() == [True]


def test_a_law_in_chunks_is_that_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    head = torch.nn.Linear(6, 20)
    hidden = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(7, 1, dtype=torch.long)
    whole = token_law(head, hidden, tokens, 1.0, 5.0, sampling(BOTH))
    monkeypatch.setattr("hanabi_grpo.training.model.output_head.CHUNK", 3)
    monkeypatch.setattr("hanabi_grpo.training.model.output_head.LAW_CHUNK", 2)
    chunks = token_law(head, hidden, tokens, 1.0, 5.0, sampling(BOTH))
    assert whole.drawn is not None and chunks.drawn is not None
    for name in ("mean", "variance", "is_sure"):
        torch.testing.assert_close(
            getattr(whole.drawn, name), getattr(chunks.drawn, name), rtol=1e-5, atol=1e-5
        )
    part = whole.at(slice(2, 4), slice(2, 4))
    assert part.drawn is not None
    assert torch.equal(part.drawn.mean, whole.drawn.mean[2:4])


def step_of(judged_by: TokenFilter, drawn_with: TokenFilter, seed: int) -> list[float]:
    """Return a step's dropped games and surprises of tokens that some filter has let pass."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(1000, 40, generator=generator)
    probabilities = logits.softmax(-1)
    if drawn_with.top_k:
        least = probabilities.topk(drawn_with.top_k, -1).values[:, -1:]
        probabilities = probabilities.where(probabilities >= least, torch.tensor(0.0))
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    ordered, order = probabilities.sort(-1, descending=True)
    # A token passes where those before it do not reach the sum.
    passes = ordered.cumsum(-1) - ordered < drawn_with.top_p
    chosen = torch.multinomial(ordered * passes, 1, generator=generator)
    tokens = order.gather(-1, chosen)
    law = law_of_logits(logits, tokens, 1.0, 5.0, sampling(judged_by))
    own = law.logprobs[:, 0].double()
    drawn = law.drawn
    assert drawn is not None
    sure = drawn.is_sure
    sums = surprise_sums(own[sure], own[sure], drawn.mean[sure], drawn.variance[sure].double())
    return [0.0, *sums]


@pytest.mark.parametrize("token_filter", [TOP_P, TOP_K, BOTH], ids=str)
def test_tokens_that_pass_are_as_surprising_as_the_filtered_law_says(
    token_filter: TokenFilter,
) -> None:
    steps = [step_of(token_filter, token_filter, seed) for seed in range(150)]
    largest = max(surprise_score(steps[max(0, end - STEPS) : end]).z for end in range(1, 151))
    assert largest < 4.5


@pytest.mark.parametrize(
    ("judged_by", "drawn_with", "num_steps", "sign"),
    [
        (ALL_TOKENS, TOP_P, 4, -1),
        (TOP_P, ALL_TOKENS, 4, 1),
        (TOP_K, ALL_TOKENS, 1, 1),
        (TOP_P, TokenFilter(top_p=0.6), 2, -1),
        (BOTH, TOP_P, 4, 1),
    ],
    ids=str,
)
def test_a_server_that_filters_otherwise_than_it_was_asked_to_is_seen(
    judged_by: TokenFilter, drawn_with: TokenFilter, num_steps: int, sign: int
) -> None:
    score = surprise_score([step_of(judged_by, drawn_with, seed) for seed in range(num_steps)])
    assert score.z > LIMIT
    assert score.sign == sign


def likely_episode(number: int, logprob: float) -> Episode:
    """Return an episode of one reply of 20 tokens, the first of which is its number."""
    turn = made_turn(0, number, *range(19))
    return made_episode(replace(turn, logprobs=(logprob,) * 20))


def test_equal_episodes_that_top_p_makes_likely_do_not_stop_a_run() -> None:
    # Each token has .9 of the whole distribution, and nothing else passes top-p .9: every episode
    # is the same, which without the filter has a probability of .12.
    episodes = [likely_episode(0, math.log(0.9))] * 16
    assert repeat_score([count_repeats([episodes])]).z > LIMIT
    assert repeat_score([count_repeats([episodes], top_p=0.9)]).z == 0.0
    # With a filter that leaves most tokens a choice, they are still seen.
    unlikely = [likely_episode(0, math.log(0.5))] * 16
    assert repeat_score([count_repeats([unlikely], top_p=0.9)]).z > LIMIT


@pytest.mark.parametrize(("top_k", "stops"), [(0, True), (3, False), (1000, True)])
def test_with_top_k_equal_episodes_are_counted_and_stop_nothing(
    tmp_path: Path, top_k: int, stops: bool
) -> None:
    made = RunOfATest(tmp_path, top_k=top_k)
    games = [[likely_episode(0, math.log(0.1))] * 16]
    check = made.run._mismatch
    played = _checked(games)
    if stops:
        with pytest.raises(ParityError, match="token by token equal"):
            check.check_games(played, {})
        return
    _, metrics = check.check_games(played, {})
    assert metrics["repeated_episode_share"] == 15 / 16


def _checked(games: list[list[Episode]]) -> CheckedGames:
    return CheckedGames(samples={}, groups=games, num_dropped=0, version=0, sampled_by=0)


@pytest.mark.parametrize(("field", "value"), [("top_p", 0.0), ("top_p", 1.1), ("top_k", -1)])
def test_values_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        Settings(**{field: value})


def test_training_refuses_a_filter_that_makes_all_games_the_same() -> None:
    with pytest.raises(SettingsError, match=r"TOP_K=1: only the most likely token .* 2 or more"):
        batch_plan(Settings(top_k=1))
    batch_plan(Settings(top_k=2, top_p=0.99))


def test_a_resumed_run_keeps_its_filter() -> None:
    saved = {"settings": settings_values(Settings(top_p=0.99, top_k=100))}
    with pytest.raises(SettingsError, match=r"TOP_P: was 0\.99, is 1"):
        check_compatible(saved, Settings(top_k=100))


def test_results_under_another_filter_are_another_kind_and_say_so(tmp_path: Path) -> None:
    plain = made_evaluation(tmp_path / "plain.json", [1.0, 2.0])
    filtered = made_evaluation(tmp_path / "filtered.json", [1.0, 2.0], top_p=0.9, top_k=5)
    assert TaskKey.of(filtered) != TaskKey.of(plain)
    assert _name(filtered) == f"{filtered.label} (T=1, top-p 0.9, top-k 5)"
    assert _name(plain) == f"{plain.label} (T=1)"
    assert read_result(tmp_path / "filtered.json") == filtered
    # What versions before this wrote has no filter.
    document = json.loads((tmp_path / "plain.json").read_text())
    del document["top_p"], document["top_k"]
    assert result_of_json(document) == plain


def test_an_evaluation_asks_for_the_filter_of_the_settings_and_greedy_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOP_P", "0.9")
    monkeypatch.setenv("TOP_K", "7")
    options = ["base", "--preset", "laptop", "--tasks", "2", "--out"]
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        invoke("evaluate", *options, "sampled.json")
        assert server.engine.filters == {TokenFilter(top_p=0.9, top_k=7)}
        server.engine.filters.clear()
        invoke("evaluate", *options, "greedy.json", "--temperature", "0")
        assert server.engine.filters == {ALL_TOKENS}
        server.engine.filters.clear()
        invoke("cross-play", "base", "iggi", "--preset", "laptop", "--tasks", "2", "--out", "cross")
        assert server.engine.filters == {TokenFilter(top_p=0.9, top_k=7)}
    sampled = read_result(tmp_path / "sampled.json")
    assert (sampled.top_p, sampled.top_k) == (0.9, 7)
    assert read_result(tmp_path / "greedy.json").token_filter == ALL_TOKENS


def invoke(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output


def test_training_asks_for_the_filter_of_its_settings() -> None:
    asked: dict[str, Any] = {}

    class Client:
        def play(self, tasks: Any, **options: Any) -> None:
            asked.update(options)

    link = ServerLink.__new__(ServerLink)
    link.client = cast(Any, Client())
    link.settings = Settings(top_p=0.99, top_k=100)
    request = GamesRequest(tasks=[], own=(), version=0, instance_id="", sampling_seed=1)
    link.fetch(request)
    assert asked["token_filter"] == TokenFilter(top_p=0.99, top_k=100)
    assert asked["temperature"] == 1.0
