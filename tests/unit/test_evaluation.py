"""Line-ups on held-out deals: games, figures, interruptions, files."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver, parse_line_up
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.kuhn import KUHN
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation import matches
from hanabi_grpo.evaluation.evaluate import (
    DealFigures,
    deal_figures,
    evaluate_line_up,
    evaluate_scripted,
    line_up_key,
    line_up_score,
    paired_difference,
    summarise,
)
from hanabi_grpo.evaluation.matches import Served, check_replay, is_held_out, play_line_up, start_numbers
from hanabi_grpo.rollout.handshake import game_claims
from hanabi_grpo.rollout.loop import make_script, play_episodes_sync
from hanabi_grpo.runs.evaluation_result import (
    EvaluationResult,
    read_result,
    result_of_json,
    result_to_json,
    write_document,
    write_result,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import DroppedGame, Episode, EpisodeStatus, ReplyKind
from made_games import made_episode, made_turn
from server_app import PEFT_CONFIG, PLAYERS, RANK, RunningApp, adapter_bytes, running_app
from training_runs import LAPTOP

POKER = Setup(KUHN, KUHN.presets["kuhn"])
IGGI = parse_line_up("iggi", 2)
MIXED = parse_line_up("iggi,random", 2)


def result_of(label: str, *scores: float) -> EvaluationResult:
    deals = [DealFigures(seed=seed, scores=[score], figures={}) for seed, score in enumerate(scores)]
    return summarise(IGGI, LAPTOP, deals, key=line_up_key(IGGI, LAPTOP), label=label)


def served_by(app: RunningApp, client: Any = None, temperature: float = 1.0) -> Served:
    client = client or RolloutClient(app.url)
    return Served(client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=temperature)


def played(text: str, setup: Setup[Any], num_deals: int, **options: Any) -> list[tuple[Episode, ...]]:
    line_up = parse_line_up(text, setup.spec.num_players, env=setup.env)
    return [deal for some in play_line_up(line_up, setup, range(num_deals), suite="eval", **options) for deal in some]


class Interrupting:
    """A real client that is interrupted at its n-th request for games, or loses a game of every request."""

    def __init__(self, url: str, at: int = -1, *, drops: bool = False) -> None:
        self._client = RolloutClient(url)
        self.left, self.drops = at, drops
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
        result = self._client.play(deals, num_games=num_games, max_tokens=max_tokens, temperature=temperature)
        if not self.drops:
            return result
        lost = result.groups[0].pop()
        gone = DroppedGame(suite=lost.suite, seed=lost.seed, game=0, reason="lightning")
        return dataclasses.replace(result, dropped=(gone,))


def test_scripts_play_every_deal_in_every_seat_order() -> None:
    setup = Setup(HANABI, EnvConfig(preset="mini", players=3))
    deals = played("iggi,random,hint-bot", setup, 60)
    assert [[game.seed for game in deal] for deal in deals] == [[seed] * 3 for seed in range(60)]
    orders = [("iggi", "random", "hint-bot"), ("random", "hint-bot", "iggi"), ("hint-bot", "iggi", "random")]
    for number, order in enumerate(orders):
        alone = play_episodes_sync(setup, [make_script(setup, name) for name in order], "eval", range(60))
        assert [deal[number] for deal in deals] == alone


def test_a_model_and_a_script_change_seats_over_a_real_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    with running_app() as app:
        deals = played("base,hint-bot", LAPTOP, 25, served=served_by(app))
        done: list[int] = []
        team = evaluate_line_up(parse_line_up("base", 2), LAPTOP, 50, served=served_by(app), progress=done.append)
    assert [deal[0].seed for deal in deals] == list(range(25))
    for deal in deals:
        assert [game.seats for game in deal] == [("base", "hint-bot"), ("hint-bot", "base")]
        for game in deal:
            assert all(bool(turn.reply_ids) == (game.seats[turn.player] == "base") for turn in game.turns)
    assert done == [0, 20, 40, 50]
    assert (team.seats, team.temperature, team.policies["base"][:16]) == ((("base", "base"),), 1.0, "f" * 16)
    assert team.figures["illegal_per_game"] > 0


def test_a_dropped_game_is_no_figure() -> None:
    with (
        running_app() as app,
        pytest.raises(ServerError, match=r"1 of 3 games were not played \(deal eval/0: lightning\)"),
    ):
        played("base", LAPTOP, 3, served=served_by(app, Interrupting(app.url, drops=True)))


@pytest.mark.parametrize("setup", [LAPTOP, POKER])
def test_an_episode_whose_actions_do_not_fit_its_deal_is_refused(setup: Setup[Any]) -> None:
    [episode] = play_episodes_sync(setup, [make_script(setup, "random")] * 2, "eval", [5])
    check_replay(setup, episode)
    name, value = next(iter(episode.result.items()))
    for forged in (
        dataclasses.replace(episode, result={**episode.result, name: value + 1}),
        dataclasses.replace(episode, turns=episode.turns[1:]),
        dataclasses.replace(episode, turns=(dataclasses.replace(episode.turns[0], action="Sing"), *episode.turns[1:])),
    ):
        with pytest.raises(ServerError, match="deal eval/5, game 0"):
            check_replay(setup, forged)


def test_deals_of_one_start_are_one_cluster_where_a_suite_has_only_some_of_the_starts() -> None:
    numbers = start_numbers(LAPTOP, "split-eval", range(1000))
    assert (len(set(numbers)), numbers[0]) == (451, 0)
    decks = [LAPTOP.environment.start_id(LAPTOP.config, split="split-eval", seed=seed) for seed in range(60)]
    for one in range(60):
        for other in range(one):
            assert (numbers[one] == numbers[other]) == (decks[one] == decks[other])
    assert start_numbers(LAPTOP, "eval", (3, 5, 3000)) == start_numbers(POKER, "eval", range(3)) == (0, 1, 2)
    assert [is_held_out(suite) for suite in ("eval", "test-2", "split-eval", "train", "split-train")] == [True] * 3 + [
        False
    ] * 2


def test_the_figures_of_a_deal_are_what_its_games_hold() -> None:
    turns = [made_turn(kind=kind) for kind in (ReplyKind.ILLEGAL, ReplyKind.UNPARSABLE, ReplyKind.UNPARSABLE)]
    cut = made_episode(*turns, score=0, score_kept=2, bombed=1, status=EpisodeStatus.TRUNCATED_TOKENS)
    whole = made_episode(made_turn(), score=4)
    assert deal_figures(LAPTOP.spec, [cut, whole]) == DealFigures(
        seed=0,
        scores=[0, 4],
        figures={
            **{"score": 2, "score_kept": 3, "bombed": 0.5, "truncated": 0.5, "perfect": 0.5},
            **{"illegal_per_game": 0.5, "unparsable_per_game": 1, "turns_per_game": 2},
        },
    )


def test_a_deals_score_is_the_mean_over_its_seat_orders() -> None:
    deals = [
        DealFigures(seed=seed, scores=list(scores), figures={"bombed": bombed})
        for seed, (scores, bombed) in enumerate([((1, 4), 0), ((3, 2), 0), ((2, 0), 0.5)])
    ]
    result = summarise(MIXED, LAPTOP, deals, key=line_up_key(MIXED, LAPTOP))
    assert (result.seeds, result.starts, result.scores) == ((0, 1, 2), (0, 1, 2), (2.5, 2.5, 1.0))
    assert result.figures == {"bombed": pytest.approx(1 / 6)}
    assert [order.words for order in result.orders] == [("iggi", "random"), ("random", "iggi")]
    assert [order.mean for order in result.orders] == pytest.approx([2.0, 2.0])
    assert [order.standard_error for order in result.orders] == pytest.approx([1 / 3**0.5, 2 / 3**0.5])
    assert result.standard_error == pytest.approx(0.5), "the deal is the unit: three scores, not six"
    assert (result.env, result.preset, result.num_players, result.score) == ("hanabi", "laptop", 2, "score")
    assert (result.score_range, result.attainable, result.temperature) == ((0, 4), 3.78, None)
    assert {"env": result.env, "env_config": result.env_config} == LAPTOP.row()


def test_where_one_wins_what_the_other_loses_the_score_is_the_first_words_return() -> None:
    one, other = (
        evaluate_line_up(parse_line_up(text, 2, env="kuhn"), POKER, 200)
        for text in (
            "equilibrium-0,random",
            "random,equilibrium-0",
        )
    )
    assert one.mean == pytest.approx(-other.mean) and one.mean > 0.1
    assert (one.score, one.score_range, "perfect" in one.figures) == ("return", (-2.0, 2.0), False)
    [deal] = played("equilibrium-0,random", POKER, 1)
    assert [line_up_score(POKER.spec, game, number) for number, game in enumerate(deal)] == [
        deal[0].reward(0),
        deal[1].reward(1),
    ]


def test_a_line_up_without_rotation_keeps_its_seats() -> None:
    result = evaluate_line_up(MIXED, LAPTOP, 20, rotate=False)
    assert result.seats == (("iggi", "random"),)
    rotated = evaluate_line_up(MIXED, LAPTOP, 20)
    assert rotated.seats == (("iggi", "random"), ("random", "iggi"))
    assert rotated.orders[0].mean == result.mean


def test_differences_know_that_deals_share_starts() -> None:
    one, other = (evaluate_scripted(bot, LAPTOP, 600, "split-eval") for bot in ("hint-bot", "iggi"))
    difference = paired_difference(one, other)
    assert difference.num_deals == 600 and difference.num_starts < 400 and one.attainable is None
    values = [b - a for a, b in zip(one.scores, other.scores, strict=True)]
    naive = (sum((value - difference.mean) ** 2 for value in values) / 599 / 600) ** 0.5
    assert difference.standard_error > 1.15 * naive


@pytest.mark.parametrize(
    ("changed", "what"),
    [({"seeds": (0, 2)}, "deals"), ({"suite": "test"}, "suites"), ({"spec_hash": "0" * 12}, "games")],
)
def test_other_games_are_not_compared(changed: dict[str, Any], what: str) -> None:
    other = dataclasses.replace(result_of("other", 1, 3), **changed)
    with pytest.raises(SettingsError, match=f"one and other played different {what}"):
        paired_difference(result_of("one", 1, 3), other)


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    for name, result in {"team": evaluate_scripted("random", LAPTOP, 20), "mixed": result_of("é ↔", 1, 2)}.items():
        write_result(tmp_path / "new" / f"{name}.json", result)
        assert read_result(tmp_path / "new" / f"{name}.json") == result


def test_a_file_that_is_no_result_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for text, message in (
        ("{", "not an evaluation"),
        ("", "not an evaluation"),
        ("[]", "not an evaluation"),
        ("[" * 100_000, "not an evaluation"),
        ('{"label": "x"}', r"\(line_up: "),
        ('{"decks": 3, "scores_kept": "x"}', r"\(label: "),
        ('{"results": [{"label": "iggi"}, {"label": "x"}]}', r"holds 2 line-ups \(iggi, x\)"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsError, match=message):
            read_result(path)
    data = result_to_json(evaluate_scripted("blind", LAPTOP, 3))
    for field in ("seeds", "starts", "scores"):
        with pytest.raises(ValueError, match="they need the same number"):
            result_of_json({**data, field: [*data[field], 9]})
    with pytest.raises(ValueError, match="no finite number"):
        result_of_json({**data, "scores": [1.0, 2.0, float("nan")]})
    write_document(path, {**data, "scores": [1.0]})
    with pytest.raises(SettingsError, match=r"result\.json: seeds"):
        read_result(path)


def test_deals_of_training_and_models_without_a_server_are_refused() -> None:
    with pytest.raises(SettingsError, match="training may have seen"):
        evaluate_line_up(IGGI, LAPTOP, 10, suite="train")
    with pytest.raises(SettingsError, match="--own-server"):
        evaluate_line_up(parse_line_up("base", 2), LAPTOP, 10)


def test_an_interrupted_evaluation_goes_on_and_asks_for_no_deal_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    path, team = tmp_path / "x.part.jsonl", parse_line_up("base,iggi", 2)
    with running_app() as app:
        undisturbed = evaluate_line_up(team, LAPTOP, 25, served=served_by(app))
        first, second = Interrupting(app.url, at=2), Interrupting(app.url)
        with pytest.raises(KeyboardInterrupt):
            evaluate_line_up(team, LAPTOP, 25, served=served_by(app, first), ledger=path)
        result = evaluate_line_up(team, LAPTOP, 25, served=served_by(app, second), ledger=path)
    assert (sorted(set(first.asked)), sorted(set(second.asked))) == (list(range(20)), list(range(20, 25)))
    assert result == undisturbed and not path.exists()


def test_adapters_are_named_by_their_weights_and_others_of_the_same_name_are_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    path = tmp_path / "x.part.jsonl"
    team, apart = parse_line_up("player_1@latest,iggi", 2), parse_line_up("served", 2)
    first, second = adapter_bytes(0.5), adapter_bytes(0.25)

    def serve(app: RunningApp, client: RolloutClient, *bodies: bytes) -> None:
        identity = app.identity.model_dump(include={"model_fingerprint", "tokenizer_hash", "chat_hash", "dtype"})
        client.open_session(
            run_id="outputs/run", adapters=PLAYERS, lora_rank=RANK, games=game_claims([LAPTOP]), **identity
        )
        client.push(7, {name: (body, PEFT_CONFIG) for name, body in zip(PLAYERS, bodies, strict=True)})

    with running_app() as app, RolloutClient(app.url) as client:
        serve(app, client, first, second)
        result = evaluate_line_up(apart, LAPTOP, 20, served=served_by(app))
        assert result.seats == (("player_0@7", "player_1@7"),)
        digests = {name: hashlib.sha256(body).hexdigest() for name, body in zip(PLAYERS, (first, second), strict=True)}
        assert result.policies == {"base": result.policies["base"], **digests}
        with pytest.raises(KeyboardInterrupt):
            evaluate_line_up(team, LAPTOP, 30, served=served_by(app, Interrupting(app.url, at=1)), ledger=path)
        with pytest.raises(SettingsError, match=r"other work .*temperature"):
            evaluate_line_up(team, LAPTOP, 30, served=served_by(app, temperature=0.5), ledger=path)
    with running_app() as app, RolloutClient(app.url) as client:
        serve(app, client, second, first)
        with pytest.raises(SettingsError, match=r"other work .*policies"):
            evaluate_line_up(team, LAPTOP, 30, served=served_by(app), ledger=path)
    assert json.loads(path.read_bytes().splitlines()[0])["key"]["policies"]["player_1"] == digests["player_1"]
