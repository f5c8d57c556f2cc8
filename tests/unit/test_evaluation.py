import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.client.rollout_client import RolloutClient, RolloutResult
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import (
    evaluate_line_up,
    evaluate_scripted,
    paired_difference,
    summarise,
)
from hanabi_grpo.evaluation.game_facts import GameFacts
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.handshake import game_claims
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.rollout.resolver import SeatResolver
from hanabi_grpo.runs.evaluation_result import (
    EvaluationResult,
    read_result,
    result_to_json,
    write_document,
    write_result,
)
from hanabi_grpo.settings import Settings
from server_app import PEFT_CONFIG, PLAYERS, RANK, RunningApp, adapter_bytes, running_app

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
IGGI = parse_line_up("iggi", 2)
MIXED = parse_line_up("iggi,random", 2)


def facts(score: int, kept: int | None = None, **other: int) -> GameFacts:
    given = {name: 0 for name in GameFacts._fields} | {"turns": 6, "score": score, "kept": score, **other}
    if kept is not None:
        given |= {"kept": kept, "bombed": 1}
    return GameFacts(**given)


def result_of(label: str, *scores: int) -> EvaluationResult:
    return summarise(IGGI, LAPTOP, [[facts(score)] for score in scores], label=label)


def served_by(app: RunningApp, client: Any = None, temperature: float = 1.0) -> Served:
    client = client or RolloutClient(app.url)
    return Served(client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=temperature)


class Interrupting:
    """A real client that is interrupted at its n-th request for games."""

    def __init__(self, url: str, at: int) -> None:
        self._client = RolloutClient(url)
        self.left = at
        self.asked: list[int] = []

    def identity(self) -> dict[str, Any]:
        return self._client.identity()

    def lend(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        return self._client.lend(version, weights, config)

    def play(
        self, deals: Sequence[Mapping[str, Any]], *, num_games: int, max_tokens: int, temperature: float
    ) -> RolloutResult:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.asked += [deal["seed"] for deal in deals]
        return self._client.play(deals, num_games=num_games, max_tokens=max_tokens, temperature=temperature)


def test_a_summary_counts_what_the_games_hold() -> None:
    games = [
        [facts(0, kept=2, turns=4, hints=2, misplays=1, unparsable=1)],
        [facts(4, turns=6, hints=3, perfect=1, illegal=3)],
        [facts(2, turns=10, hints=1, misplays=1, truncated=1)],
    ]
    result = summarise(IGGI, LAPTOP, games, temperature=0.0, label="three")
    assert (result.seeds, result.decks) == ((0, 1, 2), (0, 1, 2))
    assert (result.scores, result.scores_kept) == ((0, 4, 2), (2, 4, 2))
    assert result.mean == pytest.approx(2.0)
    assert result.mean_kept == pytest.approx(8 / 3)
    assert result.standard_error == pytest.approx(2 / 3**0.5)
    assert (result.bomb_share, result.truncated_share, result.perfect_share) == pytest.approx((1 / 3,) * 3)
    assert (result.illegal_per_game, result.unparsable_per_game) == pytest.approx((1.0, 1 / 3))
    assert (result.hints_per_turn, result.misplays_per_turn, result.turns_per_game) == pytest.approx((0.3, 0.1, 20 / 3))
    assert (result.preset, result.num_players, result.reachable_max, result.temperature) == ("laptop", 2, 4, 0.0)
    assert result.env_config == LAPTOP.model_dump(mode="json")


def test_a_deals_score_is_the_mean_over_its_seat_orders() -> None:
    games = [[facts(1), facts(4)], [facts(3), facts(2)], [facts(2), facts(0, kept=2)]]
    result = summarise(MIXED, LAPTOP, games)
    assert result.scores == (2.5, 2.5, 1.0)
    assert result.scores_kept == (2.5, 2.5, 2.0)
    assert result.bomb_share == pytest.approx(1 / 6)
    assert [order.words for order in result.orders] == [("iggi", "random"), ("random", "iggi")]
    assert [order.mean for order in result.orders] == pytest.approx([2.0, 2.0])
    assert [order.standard_error for order in result.orders] == pytest.approx([1 / 3**0.5, 2 / 3**0.5])
    assert result.standard_error == pytest.approx(0.5), "the deal is the unit: three scores, not six"


def test_a_line_up_without_rotation_keeps_its_seats() -> None:
    result = evaluate_line_up(MIXED, LAPTOP, 20, rotate=False)
    assert result.seats == (("iggi", "random"),)
    rotated = evaluate_line_up(MIXED, LAPTOP, 20)
    assert rotated.seats == (("iggi", "random"), ("random", "iggi"))
    assert rotated.orders[0].mean == result.mean
    assert rotated.mean == pytest.approx((rotated.orders[0].mean + rotated.orders[1].mean) / 2)


def test_differences_know_that_deals_share_decks() -> None:
    one, other = (evaluate_scripted(bot, LAPTOP, 1000, "split-eval") for bot in ("hint-bot", "iggi"))
    difference = paired_difference(one, other)
    assert (difference.num_deals, difference.num_decks) == (1000, 451)
    values = [b - a for a, b in zip(one.scores, other.scores, strict=True)]
    naive = (sum((value - difference.mean) ** 2 for value in values) / 999 / 1000) ** 0.5
    assert difference.standard_error > 1.3 * naive


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"seeds": (0, 2)}, "deals"),
        ({"suite": "test"}, "suites"),
        ({"spec_hash": "0" * 12}, "boards"),
    ],
)
def test_other_games_are_not_compared(changed: dict[str, Any], what: str) -> None:
    one = result_of("one", 1, 3)
    other = dataclasses.replace(result_of("other", 1, 3), **changed)
    with pytest.raises(SettingsError, match=f"one and other played different {what}"):
        paired_difference(one, other)


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    for name, result in {"team": evaluate_scripted("random", LAPTOP, 20), "mixed": result_of("é ↔", 1, 2)}.items():
        write_result(tmp_path / "new" / f"{name}.json", result)
        assert read_result(tmp_path / "new" / f"{name}.json") == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an evaluation"),
        ('{"label": "x"}', r"\(line_up: "),
        ("[]", "not an evaluation"),
        ("", "not an evaluation"),
        ('{"results": 3}', "not an evaluation"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_result(path)


def test_a_file_of_several_line_ups_says_so(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_document(path, {"results": [result_to_json(result_of(name, 1, 2)) for name in ("iggi", "x")]})
    with pytest.raises(SettingsError, match=r"holds 2 line-ups \(iggi, x\)"):
        read_result(path)


@pytest.mark.parametrize("field", ["seeds", "decks", "scores", "scores_kept"])
def test_lists_of_different_lengths_are_refused(tmp_path: Path, field: str) -> None:
    path = tmp_path / "result.json"
    data = result_to_json(evaluate_scripted("blind", LAPTOP, 3))
    path.write_text(json.dumps({**data, field: [*data[field], 9]}))
    with pytest.raises(SettingsError, match="they need the same number"):
        read_result(path)


def test_an_evaluation_on_training_deals_is_refused() -> None:
    with pytest.raises(SettingsError, match="training may have seen"):
        evaluate_line_up(IGGI, LAPTOP, 10, suite="train")


def test_models_and_mixed_line_ups_play_on_a_server_in_every_seat_order() -> None:
    with running_app() as app:
        done: list[int] = []
        served = served_by(app)
        team = evaluate_line_up(parse_line_up("base", 2), LAPTOP, 120, served=served, progress=done.append)
        mixed = evaluate_line_up(parse_line_up("base,iggi", 2), LAPTOP, 30, served=served)
    assert done == [0, 100, 120]
    assert team.seats == (("base", "base"),)
    assert (team.temperature, team.policies["base"][:16]) == (1.0, "f" * 16)
    assert mixed.seats == (("base", "iggi"), ("iggi", "base"))
    assert mixed.mean > team.mean, "a partner that keeps to the rules helps an engine of hashed words"
    assert team.illegal_per_game > 0


def test_an_interrupted_evaluation_of_a_model_goes_on_and_asks_for_no_deal_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.part.jsonl"
    team = parse_line_up("base,iggi", 2)
    with running_app() as app:
        undisturbed = evaluate_line_up(team, LAPTOP, 130, served=served_by(app))
        first = Interrupting(app.url, at=2)
        with pytest.raises(KeyboardInterrupt):
            evaluate_line_up(team, LAPTOP, 130, served=served_by(app, first), ledger=path)
        second = Interrupting(app.url, at=-1)
        result = evaluate_line_up(team, LAPTOP, 130, served=served_by(app, second), ledger=path)
    assert sorted(set(first.asked)) == list(range(100))
    assert sorted(set(second.asked)) == list(range(100, 130))
    assert result == undisturbed


def test_other_weights_of_the_same_name_are_other_work(tmp_path: Path) -> None:
    path = tmp_path / "x.part.jsonl"
    team = parse_line_up("base", 2)
    with running_app() as app, pytest.raises(KeyboardInterrupt):
        evaluate_line_up(team, LAPTOP, 130, served=served_by(app, Interrupting(app.url, at=1)), ledger=path)
    with running_app(model_fingerprint="e" * 16) as app:
        with pytest.raises(SettingsError, match="holds the finished part of other work"):
            evaluate_line_up(team, LAPTOP, 130, served=served_by(app), ledger=path)
        with pytest.raises(SettingsError, match="temperature"):
            evaluate_line_up(team, LAPTOP, 130, served=served_by(app, temperature=0.5), ledger=path)


def test_adapters_are_named_by_their_weights_as_well(tmp_path: Path) -> None:
    path = tmp_path / "x.part.jsonl"
    team, apart = parse_line_up("player_1@latest,iggi", 2), parse_line_up("served", 2)
    first, second = adapter_bytes(0.5), adapter_bytes(0.25)

    def serve(app: RunningApp, client: RolloutClient, *bodies: bytes) -> None:
        identity = app.identity.model_dump(include={"model_fingerprint", "tokenizer_hash", "chat_hash", "dtype"})
        client.open_session(
            run_id="outputs/run",
            adapters=PLAYERS,
            lora_rank=RANK,
            games=game_claims([Setup(HANABI, LAPTOP)]),
            **identity,
        )
        client.push(7, {name: (body, PEFT_CONFIG) for name, body in zip(PLAYERS, bodies, strict=True)})

    with running_app() as app, RolloutClient(app.url) as client:
        serve(app, client, first, second)
        result = evaluate_line_up(apart, LAPTOP, 20, served=served_by(app))
        assert result.seats == (("player_0@7", "player_1@7"),)
        digests = {name: hashlib.sha256(body).hexdigest() for name, body in zip(PLAYERS, (first, second), strict=True)}
        assert result.policies == {"base": result.policies["base"], **digests}
        with pytest.raises(KeyboardInterrupt):
            evaluate_line_up(team, LAPTOP, 130, served=served_by(app, Interrupting(app.url, at=1)), ledger=path)
    with running_app() as app, RolloutClient(app.url) as client:
        serve(app, client, second, first)
        with pytest.raises(SettingsError, match=r"other work .*policies"):
            evaluate_line_up(team, LAPTOP, 130, served=served_by(app), ledger=path)


def test_a_model_without_a_server_is_an_error_that_says_how_to_get_one() -> None:
    with pytest.raises(SettingsError, match="--own-server"):
        evaluate_line_up(parse_line_up("base", 2), LAPTOP, 10)
