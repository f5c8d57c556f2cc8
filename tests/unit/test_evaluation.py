"""`hanabi-grpo evaluate`: lineups on held-out tasks: games, figures, interruptions, files."""

import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.cli import app
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.envs.hanabi.rules.deals import numbered_deck, sorted_deck
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.envs.starts import start_numbers
from hanabi_grpo.errors import GameParameterError, ServerError, SettingsError
from hanabi_grpo.evaluation import matches
from hanabi_grpo.evaluation.evaluate import (
    TaskFigures,
    evaluate_lineup,
    lineup_key,
    lineup_score,
    paired_difference,
    summarise,
    task_figures,
)
from hanabi_grpo.evaluation.matches import Served, Table, check_replay, play_tables
from hanabi_grpo.rollout.handshake import game_claims
from hanabi_grpo.runs.evaluation_result import (
    EvaluationResult,
    read_result,
    result_of_json,
    result_to_json,
    write_document,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import ALL_STARTS, DroppedGame, Episode, EpisodeStatus, ReplyKind
from made_games import made_episode, made_turn, play_episodes_sync
from server_app import PEFT_CONFIG, PLAYERS, RANK, RunningApp, adapter_bytes, running_app
from toy_kuhn import KUHN
from training_runs import LAPTOP, evaluate_scripted

POKER = Setup(KUHN, KUHN.presets["kuhn"])
IGGI = parse_lineup("iggi", 2)
IGGI_AND_RANDOM = parse_lineup("iggi,random", 2)
_WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result_of(label: str, *scores: float) -> EvaluationResult:
    """Return a team's result with these scores, one per task."""
    tasks = []
    for seed, score in enumerate(scores):
        tasks.append(TaskFigures(seed=seed, scores=[score], figures={}))
    return summarise(IGGI, LAPTOP, tasks, key=lineup_key(IGGI, LAPTOP), label=label)


def served_by(
    server: RunningApp, client: RolloutClient | None = None, temperature: float = 1.0
) -> Served:
    client = client or RolloutClient(server.url)
    return Served(
        client=client,
        resolver=SeatResolver(client, Settings()),
        max_tokens=4,
        temperature=temperature,
    )


def play_tasks(
    text: str, setup: Setup[Any], num_tasks: int, served: Served | None = None
) -> list[tuple[Episode, ...]]:
    """Play tasks of suite "eval"; returns per task its games, one per seat order."""
    orders = parse_lineup(text, setup.spec.num_players, env=setup.env).orders()
    num_orders = len(orders)
    tables = [Table(seed, order) for seed in range(num_tasks) for order in orders]
    games: list[Episode] = []
    for groups in play_tables(
        tables, setup, suite="eval", label=text, together=num_orders, served=served
    ):
        games += [game for [game] in groups]
    return [tuple(games[start : start + num_orders]) for start in range(0, len(games), num_orders)]


class Interrupting(RolloutClient):
    """A real client that is interrupted at its n-th request, or loses a game of every request."""

    def __init__(self, url: str, at: int = -1, *, drops: bool = False) -> None:
        super().__init__(url)
        self.requests_left = at
        self.drops = drops
        self.asked_seeds: list[int] = []

    def play(self, tasks: Sequence[Mapping[str, Any]], **options: Any) -> RolloutResult:
        if self.requests_left == 0:
            raise KeyboardInterrupt
        self.requests_left -= 1
        self.asked_seeds += [task["seed"] for task in tasks]
        result = super().play(tasks, **options)
        if not self.drops:
            return result
        lost = result.groups[0].pop()
        dropped = DroppedGame(suite=lost.suite, seed=lost.seed, game=0, reason="lightning")
        return dataclasses.replace(result, dropped=(dropped,))


def test_scripts_play_every_task_in_every_seat_order() -> None:
    setup = Setup(HANABI, EnvConfig(preset="mini", players=3))
    tasks = play_tasks("iggi,random,hint-bot", setup, 60)
    assert [[game.seed for game in task] for task in tasks] == [[seed] * 3 for seed in range(60)]
    orders = [
        ("iggi", "random", "hint-bot"),
        ("random", "hint-bot", "iggi"),
        ("hint-bot", "iggi", "random"),
    ]
    for number, order in enumerate(orders):
        scripts = [make_script(setup, name) for name in order]
        expected = play_episodes_sync(setup, scripts, "eval", range(60))
        assert [task[number] for task in tasks] == expected


def test_a_model_and_a_script_change_seats_over_a_real_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    with running_app() as server:
        tasks = play_tasks("base,hint-bot", LAPTOP, 25, served=served_by(server))
        done: list[int] = []
        team = evaluate_lineup(
            parse_lineup("base", 2), LAPTOP, 50, served=served_by(server), progress=done.append
        )
    assert [task[0].seed for task in tasks] == list(range(25))
    for task in tasks:
        assert [game.seats for game in task] == [("base", "hint-bot"), ("hint-bot", "base")]
        for game in task:
            for turn in game.turns:
                was_sampled = bool(turn.reply_ids)
                assert was_sampled == (game.seats[turn.player] == "base")
    assert done == [0, 20, 40, 50]
    assert team.seats == (("base", "base"),)
    assert team.temperature == 1.0
    assert team.policies["base"][:16] == "f" * 16
    assert team.figures["illegal_per_game"] > 0


def test_an_evaluation_asks_for_the_same_replies_again_and_another_seed_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seeds_of_replies(seed: int | None, *, games_per_request: int = 200) -> list[int | None]:
        monkeypatch.setattr(matches, "SERVED_GAMES", games_per_request)
        with running_app() as server:
            served = dataclasses.replace(served_by(server), seed=seed)
            play_tasks("base,hint-bot", LAPTOP, 12, served=served)
            return sorted(server.engine.seeds, key=str)

    first = seeds_of_replies(42)
    assert len(set(first)) > 12
    assert seeds_of_replies(42, games_per_request=6) == first, "in requests of another size"
    assert not set(seeds_of_replies(43)) & set(first)
    assert set(seeds_of_replies(None)) == {None}


def test_evaluations_of_two_seeds_are_two_jobs() -> None:
    with running_app() as server:
        keys = []
        for seed in (42, 43):
            served = dataclasses.replace(served_by(server), seed=seed)
            keys.append(lineup_key(parse_lineup("base", 2), LAPTOP, served=served))
    assert keys[0] != keys[1]


def test_a_dropped_game_is_no_figure() -> None:
    message = r"1 of 3 games were not played \(task eval 0: lightning\)"
    with running_app() as server, pytest.raises(ServerError, match=message):
        client = Interrupting(server.url, drops=True)
        play_tasks("base", LAPTOP, 3, served=served_by(server, client))


@pytest.mark.parametrize("setup", [LAPTOP, POKER])
def test_an_episode_whose_actions_do_not_fit_its_task_is_refused(setup: Setup[Any]) -> None:
    [episode] = play_episodes_sync(setup, [make_script(setup, "random")] * 2, "eval", [5])
    check_replay(setup, episode)
    name, value = next(iter(episode.result.items()))
    first_turn, *later_turns = episode.turns
    impossible_turn = dataclasses.replace(first_turn, action="Sing")
    for forged in (
        dataclasses.replace(episode, result={**episode.result, name: value + 1}),
        dataclasses.replace(episode, turns=tuple(later_turns)),
        dataclasses.replace(episode, turns=(impossible_turn, *later_turns)),
    ):
        with pytest.raises(ServerError, match="task eval 5, game 0"):
            check_replay(setup, forged)


def test_tasks_of_one_start_are_one_cluster_where_a_suite_has_only_some_of_the_starts() -> None:
    numbers = start_numbers(LAPTOP, "split-eval", range(1000))
    assert len(set(numbers)) == 451
    assert numbers[0] == 0
    starts = []
    for seed in range(60):
        start = LAPTOP.environment.start_id(LAPTOP.config, split="split-eval", seed=seed)
        starts.append(start)
    pairs = set(zip(numbers[:60], starts, strict=True))
    assert len(pairs) == len(set(numbers[:60])) == len(set(starts))
    assert start_numbers(LAPTOP, "eval", (3, 5, 3000)) == (0, 1, 2)
    assert start_numbers(POKER, "eval", range(3)) == (0, 1, 2)


def test_the_figures_of_a_task_are_what_its_games_hold() -> None:
    turns = [
        made_turn(kind=ReplyKind.ILLEGAL),
        made_turn(kind=ReplyKind.UNPARSABLE),
        made_turn(kind=ReplyKind.UNPARSABLE),
    ]
    cut = made_episode(
        *turns, score=0, score_kept=2, bombed=1, status=EpisodeStatus.TRUNCATED_TOKENS
    )
    whole = made_episode(made_turn(), score=4)
    assert task_figures(LAPTOP, [cut, whole]) == TaskFigures(
        seed=0,
        scores=[0, 4],
        figures={
            "score": 2,
            "score_kept": 3,
            "bombed": 0.5,
            "truncated": 0.5,
            "perfect": 0.5,
            "illegal_per_game": 0.5,
            "unparsable_per_game": 1,
            "turns_per_game": 2,
        },
    )


def test_a_tasks_score_is_the_mean_over_its_seat_orders() -> None:
    tasks = [
        TaskFigures(seed=0, scores=[1, 4], figures={"bombed": 0}),
        TaskFigures(seed=1, scores=[3, 2], figures={"bombed": 0}),
        TaskFigures(seed=2, scores=[2, 0], figures={"bombed": 0.5}),
    ]
    key = lineup_key(IGGI_AND_RANDOM, LAPTOP)
    result = summarise(IGGI_AND_RANDOM, LAPTOP, tasks, key=key)
    assert result.seeds == (0, 1, 2)
    assert result.starts == (0, 1, 2)
    assert result.scores == (2.5, 2.5, 1.0)
    assert result.figures == {"bombed": pytest.approx(1 / 6)}
    first, second = result.orders
    assert first.words == ("iggi", "random")
    assert first.standard_error == pytest.approx(1 / 3**0.5)
    assert second.words == ("random", "iggi")
    assert second.standard_error == pytest.approx(2 / 3**0.5)
    assert result.standard_error == pytest.approx(0.5), (
        "the task is the unit: three scores, not six"
    )


def test_a_result_says_what_was_played() -> None:
    result = result_of("iggi", 1, 2)
    assert result.env == "hanabi"
    assert result.preset == "laptop"
    assert result.num_players == 2
    assert result.score == "score"
    assert result.score_range == (0, 4)
    assert result.attainable == 4443 / 1120
    assert result.temperature is None
    assert {"env": result.env, "env_config": result.env_config} == LAPTOP.row()


def test_where_one_wins_what_the_other_loses_the_score_is_the_first_policys_return() -> None:
    first, second = (
        evaluate_lineup(parse_lineup(text, 2, env="kuhn"), POKER, 200)
        for text in ("equilibrium-0,random", "random,equilibrium-0")
    )
    assert first.mean == pytest.approx(-second.mean)
    assert first.mean > 0.1
    assert first.score == "return"
    assert first.score_range == (-2.0, 2.0)
    assert "perfect" not in first.figures
    [task] = play_tasks("equilibrium-0,random", POKER, 1)
    scores = [lineup_score(POKER.spec, game, order) for order, game in enumerate(task)]
    assert scores == [task[0].reward(0), task[1].reward(1)]


def test_differences_know_that_tasks_share_starts() -> None:
    hint_bot = evaluate_scripted("hint-bot", LAPTOP, 600, "split-eval")
    iggi = evaluate_scripted("iggi", LAPTOP, 600, "split-eval")
    difference = paired_difference(hint_bot, iggi)
    assert difference.num_tasks == 600
    assert difference.num_starts < 400
    assert hint_bot.attainable is None, "the best known score is of the whole game alone"


@pytest.mark.parametrize(
    ("change", "what"),
    [({"seeds": (0, 2)}, "tasks"), ({"suite": "test"}, "suites"), ({"spec_hash": "0"}, "games")],
)
def test_other_games_are_not_compared(change: dict[str, Any], what: str) -> None:
    one = result_of("one", 1, 3)
    other = dataclasses.replace(result_of("other", 1, 3), **change)
    with pytest.raises(SettingsError, match=f"one and other played different {what}"):
        paired_difference(one, other)


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    write_document(path, result_to_json(result_of("é ↔", 1, 2)))
    assert read_result(path) == result_of("é ↔", 1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not an evaluation"),
        ("[" * 100_000, "not an evaluation"),
        ('{"label": "x"}', r"\(lineup: "),
        ('{"results": [{"label": "iggi"}, {"label": "x"}]}', r"holds 2 lineups \(iggi, x\)"),
    ],
    ids=["list", "deep", "no lineup", "several"],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_result(path)


def test_a_result_whose_fields_do_not_fit_is_refused(tmp_path: Path) -> None:
    data = result_to_json(evaluate_scripted("blind", LAPTOP, 3))
    with pytest.raises(ValueError, match="they need the same number"):
        result_of_json({**data, "starts": [*data["starts"], 9]})
    with pytest.raises(ValueError, match="a score is not a finite number"):
        result_of_json({**data, "scores": [1.0, 2.0, float("nan")]})
    with pytest.raises(ValueError, match=r"a score is beyond 1e\+100"):
        result_of_json({**data, "scores": [1.0, 2.0, -1e308]})
    with pytest.raises(ValueError, match=r"^3 task\(s\) with 1 start\(s\): .*; play more tasks$"):
        result_of_json({**data, "starts": [0, 0, 0]})
    with pytest.raises(ValueError, match="3 tasks of 3 starts, 1 to 1 of each"):
        result_of_json({**data, "suite": ALL_STARTS})
    order = {"words": ["blind"], "seats": ["blind", "blind"], "mean": 1.0, "standard_error": 0.1}
    with pytest.raises(ValueError, match="an order has 1 words and 2 seats; it needs 2 of each"):
        result_of_json({**data, "orders": [order]})
    path = tmp_path / "result.json"
    write_document(path, {**data, "scores": [1.0]})
    with pytest.raises(SettingsError, match=r"result\.json: seeds"):
        read_result(path)


def test_an_interrupted_evaluation_goes_on_and_asks_for_no_task_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    ledger = tmp_path / "x.part.jsonl"
    team = parse_lineup("base,iggi", 2)
    with running_app() as server:
        undisturbed = evaluate_lineup(team, LAPTOP, 25, served=served_by(server))
        first = Interrupting(server.url, at=2)
        second = Interrupting(server.url)
        with pytest.raises(KeyboardInterrupt):
            evaluate_lineup(team, LAPTOP, 25, served=served_by(server, first), ledger=ledger)
        result = evaluate_lineup(team, LAPTOP, 25, served=served_by(server, second), ledger=ledger)
    assert sorted(set(first.asked_seeds)) == list(range(20))
    assert sorted(set(second.asked_seeds)) == list(range(20, 25))
    assert result == undisturbed


def push_adapters(server: RunningApp, client: RolloutClient, *bodies: bytes) -> None:
    """Open a session as a trainer does, and push version 7 of each player's adapter."""
    identity = server.identity.model_dump(
        include={"model_fingerprint", "tokenizer_hash", "chat_hash", "dtype"}
    )
    client.open_session(
        run_id="outputs/run",
        adapters=PLAYERS,
        lora_rank=RANK,
        games=game_claims([LAPTOP]),
        **identity,
    )
    adapters = {name: (body, PEFT_CONFIG) for name, body in zip(PLAYERS, bodies, strict=True)}
    client.push(7, adapters)


def test_adapters_are_named_by_their_weights_and_others_of_the_same_name_are_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    ledger = tmp_path / "x.part.jsonl"
    served_team = parse_lineup("served", 2)
    mixed_team = parse_lineup("player_1@latest,iggi", 2)
    first_weights = adapter_bytes(0.5)
    second_weights = adapter_bytes(0.25)
    digests = {
        "player_0": hashlib.sha256(first_weights).hexdigest(),
        "player_1": hashlib.sha256(second_weights).hexdigest(),
    }
    with running_app() as server, RolloutClient(server.url) as client:
        push_adapters(server, client, first_weights, second_weights)
        result = evaluate_lineup(served_team, LAPTOP, 20, served=served_by(server))
        assert result.seats == (("player_0@7", "player_1@7"),)
        assert result.policies == {"base": result.policies["base"], **digests}
        interrupting = served_by(server, Interrupting(server.url, at=1))
        with pytest.raises(KeyboardInterrupt):
            evaluate_lineup(mixed_team, LAPTOP, 30, served=interrupting, ledger=ledger)
        cooler = served_by(server, temperature=0.5)
        with pytest.raises(SettingsError, match=r"different job .*temperature"):
            evaluate_lineup(mixed_team, LAPTOP, 30, served=cooler, ledger=ledger)
    with running_app() as server, RolloutClient(server.url) as client:
        push_adapters(server, client, second_weights, first_weights)
        with pytest.raises(SettingsError, match=r"different job .*policies"):
            evaluate_lineup(mixed_team, LAPTOP, 30, served=served_by(server), ledger=ledger)
    first_line = json.loads(ledger.read_bytes().splitlines()[0])
    assert first_line["key"]["policies"]["player_1"] == digests["player_1"]


def evaluate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", *arguments])


def test_tables_stand_on_standard_output_with_every_reference() -> None:
    answer = evaluate("iggi", "iggi,random", "--preset", "laptop", "--tasks", "40")
    assert answer.exit_code == 0, answer.output
    for part in ("40 tasks", "random", "blind", "hint-bot", "iggi,random − iggi", "Seat orders"):
        assert part in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 120


def test_several_lineups_write_one_file_and_json_is_all_that_standard_output_holds(
    tmp_path: Path,
) -> None:
    options = ("--preset", "laptop", "--tasks", "20", "--out", "a.json", "--json")
    answer = evaluate("iggi", "blind", *options)
    assert answer.exit_code == 0, answer.output
    document = json.loads(Path("a.json").read_text())
    assert document == json.loads(answer.stdout)
    assert [result["label"] for result in document["results"]] == ["iggi", "blind"]
    assert [result["label"] for result in document["references"]] == ["random", "hint-bot"], (
        "blind is there already"
    )
    [difference] = document["differences"]
    assert difference["of"] == "blind"
    assert difference["minus"] == "iggi"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_every_start_of_a_board_with_few_is_played_twice(tmp_path: Path) -> None:
    """On 2x1 with hands of two: 6! / (3! 3!) = 20 decks."""
    board = "2x1-hand2-info2-life2"
    answer = evaluate("iggi", "random", "--preset", board, "--all-starts", "--out", "a.json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(Path("a.json").read_text())
    iggi, chance = document["results"]
    spec = make_spec(board, 2)
    decks = set(permutations(sorted_deck(2, 1), 6))
    assert len(decks) == 20
    assert {numbered_deck(spec, number) for number in range(20)} == decks
    assert iggi["seeds"] == list(range(40))
    assert iggi["starts"] == [*range(20), *range(20)]
    scores = iggi["scores"]
    assert scores[:20] == scores[20:]
    config = EnvConfig(preset=board)
    policies = dict.fromkeys((0, 1), HANABI.policies["iggi"]())
    for number in (0, 7, 19, 27):
        task = Setup(HANABI, config).task("eval-all-starts", number)
        game = HANABI.reset(config, split=task.split, seed=number)
        assert game.table.deck == numbered_deck(spec, number % 20)
        assert play_scripts(task, policies).result["score"] == scores[number]
    assert iggi["summary"]["standard_error"] == 0
    assert iggi["summary"]["covers_all_starts"]
    assert iggi["summary"]["mean"] == pytest.approx(sum(scores[:20]) / 20)
    assert 0 < chance["summary"]["standard_error"] < 0.2
    assert " exact " in answer.stdout
    assert "40 tasks (all 20 starts, each equally often)" in " ".join(answer.stdout.split())
    result = result_of_json(iggi)
    assert result.covers_all_starts
    assert result.estimate.is_exact
    # Earlier versions did not record whether anybody drew.
    del iggi["is_sampled"]
    assert not result_of_json(iggi).estimate.is_exact


def test_a_script_that_draws_is_sampled_even_where_its_games_agree() -> None:
    """Each of the six deals of Kuhn poker is played twice, and the random script may repeat."""
    options = ("--no-rotate", "--env", "kuhn_poker", "--all-starts", "--json")
    answer = evaluate("cfr-10,random", "random,cfr-10", *options)
    assert answer.exit_code == 0, answer.output
    for row in json.loads(answer.stdout)["results"]:
        result = result_of_json(row)
        assert result.is_sampled
        agreed = dataclasses.replace(result, scores=(0.0,) * result.num_tasks)
        assert agreed.standard_error == 0
        assert not agreed.estimate.is_exact


def test_which_games_chance_decides_is_known_before_they_are_counted() -> None:
    def drawn_tables(text: str, served: Served | None = None) -> set[Table]:
        found: set[Table] = set()
        tables = [Table(seed, parse_lineup(text, 2).refs) for seed in range(2)]
        list(play_tables(tables, LAPTOP, suite="eval", label=text, served=served, drawn=found.add))
        assert len(found) in (0, 2), "both tables, or none"
        return found

    assert not drawn_tables("hint-bot")
    assert drawn_tables("hint-bot,random")
    with running_app() as server:
        greedy = served_by(server, temperature=0.0)
        assert not drawn_tables("base", greedy)
        assert drawn_tables("base,hint-bot", greedy), "the server does not say whether it drew"
        assert drawn_tables("base", served_by(server))


def test_a_random_move_in_place_of_a_bad_reply_is_chance() -> None:
    legal = made_episode(made_turn(), score=4)
    bad = made_episode(made_turn(kind=ReplyKind.ILLEGAL), score=4)
    assert not task_figures(LAPTOP, [legal], is_sampled=False).is_sampled
    assert task_figures(LAPTOP, [legal, bad], is_sampled=False).is_sampled


def test_a_start_fixes_what_chance_does_later_in_the_game() -> None:
    """In Leduc poker: the public card, beside both private cards; 6 * 5 * 4 = 120."""
    leduc = registry.setup("leduc_poker", {"preset": "leduc_poker"})
    starts = start_numbers(leduc, ALL_STARTS, range(240))
    assert starts == (*range(120), *range(120))


def test_an_interval_ends_where_the_range_of_scores_does() -> None:
    """Two starts of 4 and 4, and 4 and 3, of at most 4: the normal interval would go beyond."""
    result = result_of("iggi", 4.0, 4.0, 4.0, 3.0)
    result = dataclasses.replace(result, suite=ALL_STARTS, starts=(0, 0, 1, 1))
    estimate = result.estimate
    assert estimate.mean == 3.75
    assert estimate.high == 4.0
    assert estimate.low == pytest.approx(3.75 - 1.959964 * 0.25)
    # A file may have any range.
    odd = dataclasses.replace(result, score_range=(9.0, -9.0)).estimate
    assert odd.low <= odd.mean <= odd.high


def test_a_part_of_all_starts_is_refused() -> None:
    with pytest.raises(SettingsError, match="30 tasks are not all of laptop; play 2240"):
        evaluate_lineup(IGGI, LAPTOP, 30, suite="eval-all-starts")
    full = EnvConfig(preset="full").spec()
    with pytest.raises(GameParameterError, match="small enough to deal all their decks; full has"):
        numbered_deck(full, 0)


def test_a_model_without_a_server_is_refused() -> None:
    message = "needs a rollout server: start one, or add --own-server"
    with pytest.raises(SettingsError, match=message):
        evaluate_lineup(parse_lineup("base", 2), LAPTOP, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["iggy"], "Did you mean 'iggi'?"),
        (["iggi,iggi,iggi"], "lineup 'iggi,iggi,iggi': 3 "),
        (["iggi", "iggi"], "lineup 'iggi': is given twice"),
        (["iggi", "iggi,iggi"], "'iggi,iggi' are the same games: they have the same players in"),
        (["iggi,blind", "blind,iggi"], "or play only the given seats with --no-rotate"),
        (["iggi", "blind", "--label", "x"], "--label 'x': names a single lineup, but 2 are given"),
        (["iggi", "--tasks", "1"], "--tasks 1: a standard error needs at least 2 tasks"),
        (["iggi", "--suite", "train"], "training may have seen its tasks"),
        (["iggi", "--suite", "eval-all-starts"], "a part of it is not a fair sample"),
        (["iggi", "--all-starts", "--tasks", "9"], "--tasks 9 with --all-starts, which plays"),
        (["iggi", "--all-starts", "--suite", "test"], "--suite test with --all-starts"),
        (
            ["iggi", "--all-starts", "--preset", "simple"],
            "simple has 2.22e+06 starts, but at most 100000 can be played",
        ),
        (
            ["random", "--all-starts", "--env", "openspiel:liars_dice", "--preset", "liars_dice"],
            "liars_dice does not number its starts",
        ),
        (["iggi", "--temperature", "-1"], "--temperature -1.0: must be 0 (greedy) or more"),
        (["iggi", "--players", "9"], "players"),
        (["human,iggi"], "hanabi-grpo play"),
    ],
)
def test_bad_options_are_one_message(arguments: list[str], message: str) -> None:
    board = [] if "--preset" in arguments else ["--preset", "laptop"]
    answer = evaluate(*arguments, *board)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("error: ")
    assert message in answer.stderr


def test_seat_orders_are_lineups_of_their_own_where_seats_are_not_changed() -> None:
    answer = evaluate(
        "iggi,blind", "blind,iggi", "--no-rotate", "--tasks", "4", "--preset", "laptop", "--json"
    )
    assert answer.exit_code == 0, answer.output
    seats = [result["orders"][0]["seats"] for result in json.loads(answer.stdout)["results"]]
    assert seats == [["iggi", "blind"], ["blind", "iggi"]]


def test_models_play_on_the_server_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--preset", "laptop", "--tasks", "12")
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        answer = evaluate("base", "base,iggi", *options, "--json", "--temperature", "0")
        without_adapters = evaluate("served", *options)
    assert answer.exit_code == 0, answer.output
    team, mixed = json.loads(answer.stdout)["results"]
    assert team["temperature"] == 0.0
    assert mixed["temperature"] == 0.0
    assert [order["seats"] for order in mixed["orders"]] == [["base", "iggi"], ["iggi", "base"]]
    assert without_adapters.exit_code == 2
    assert "serves no adapter for player_0" in without_adapters.stderr


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_and_goes_on_to_the_same_result(
    start_process: Callable[..., "subprocess.Popen[str]"], number: signal.Signals
) -> None:
    num_tasks = 600
    options = ["--preset", "full", "--tasks", str(num_tasks), "--out", "a.json"]
    process = start_process(
        [sys.executable, "-m", "hanabi_grpo.cli", "evaluate", "hint-bot,focus-bot", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    ledger = Path("a.part.jsonl")
    deadline = time.monotonic() + _WAIT_SECONDS
    while not ledger.exists() or ledger.read_bytes().count(b"\n") <= 50:
        assert process.poll() is None, "it ended before it was interrupted"
        assert time.monotonic() < deadline, "it did nothing before it was interrupted"
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=_WAIT_SECONDS)
    assert process.returncode == 130, stderr
    # The first line is the key.
    num_kept = ledger.read_bytes().count(b"\n") - 1
    assert 50 <= num_kept < num_tasks
    message = f"{num_kept} of 600 tasks are done and kept; run the same command again to continue."
    assert message in stderr
    assert "Traceback" not in stderr
    assert not Path("a.json").exists()
    other = evaluate("hint-bot,iggi", *options)
    assert other.exit_code == 2
    difference = "different job (lineup: there hint-bot,focus-bot, here hint-bot,iggi"
    assert difference in other.stderr
    assert evaluate("hint-bot,focus-bot", *options).exit_code == 0
    result = read_result(Path("a.json"))
    setup = Setup(HANABI, EnvConfig.parse(result.env_config))
    assert setup.spec.preset == "full"
    expected = evaluate_lineup(parse_lineup("hint-bot,focus-bot", 2), setup, num_tasks)
    assert dataclasses.replace(result, label=expected.label) == expected
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["a.json"]
