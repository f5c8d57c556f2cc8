"""`hanabi-grpo evaluate`: lineups on held-out tasks: games, figures, interruptions, files."""

import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.cli import app
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, SettingsError
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
from hanabi_grpo.evaluation.matches import Served, Table, check_replay, play_tables, start_numbers
from hanabi_grpo.rollout.handshake import game_claims
from hanabi_grpo.runs.evaluation_result import (
    EvaluationResult,
    read_result,
    result_of_json,
    result_to_json,
    write_document,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import DroppedGame, Episode, EpisodeStatus, ReplyKind
from made_games import made_episode, made_turn, play_episodes_sync
from server_app import PEFT_CONFIG, PLAYERS, RANK, RunningApp, adapter_bytes, running_app
from toy_kuhn import KUHN
from training_runs import LAPTOP, evaluate_scripted

POKER = Setup(KUHN, KUHN.presets["kuhn"])
IGGI = parse_lineup("iggi", 2)
MIXED = parse_lineup("iggi,random", 2)
_WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result_of(label: str, *scores: float) -> EvaluationResult:
    tasks = [
        TaskFigures(seed=seed, scores=[score], figures={}) for seed, score in enumerate(scores)
    ]
    return summarise(IGGI, LAPTOP, tasks, key=lineup_key(IGGI, LAPTOP), label=label)


def served_by(server: RunningApp, client: Any = None, temperature: float = 1.0) -> Served:
    client = client or RolloutClient(server.url)
    return Served(
        client=client,
        resolver=SeatResolver(client, Settings()),
        max_tokens=4,
        temperature=temperature,
    )


def played(
    text: str, setup: Setup[Any], num_tasks: int, served: Served | None = None
) -> list[tuple[Episode, ...]]:
    orders = parse_lineup(text, setup.spec.num_players, env=setup.env).orders()
    tables = [Table(seed, order) for seed in range(num_tasks) for order in orders]
    played = play_tables(
        tables, setup, suite="eval", label=text, together=len(orders), served=served
    )
    games = [game for groups in played for [game] in groups]
    return [
        tuple(games[start : start + len(orders)]) for start in range(0, len(games), len(orders))
    ]


class Interrupting(RolloutClient):
    """A real client that is interrupted at its n-th request for games, or loses a game of every
    request.
    """

    def __init__(self, url: str, at: int = -1, *, drops: bool = False) -> None:
        super().__init__(url)
        self.left, self.drops = at, drops
        self.asked: list[int] = []

    def play(self, tasks: Sequence[Mapping[str, Any]], **options: Any) -> RolloutResult:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.asked += [task["seed"] for task in tasks]
        result = super().play(tasks, **options)
        lost = result.groups[0].pop() if self.drops else result.groups[0][0]
        gone = DroppedGame(suite=lost.suite, seed=lost.seed, game=0, reason="lightning")
        return dataclasses.replace(result, dropped=(gone,) if self.drops else ())


def test_scripts_play_every_deal_in_every_seat_order() -> None:
    setup = Setup(HANABI, EnvConfig(preset="mini", players=3))
    tasks = played("iggi,random,hint-bot", setup, 60)
    assert [[game.seed for game in task] for task in tasks] == [[seed] * 3 for seed in range(60)]
    orders = [
        ("iggi", "random", "hint-bot"),
        ("random", "hint-bot", "iggi"),
        ("hint-bot", "iggi", "random"),
    ]
    for number, order in enumerate(orders):
        alone = play_episodes_sync(
            setup, [make_script(setup, name) for name in order], "eval", range(60)
        )
        assert [task[number] for task in tasks] == alone


def test_a_model_and_a_script_change_seats_over_a_real_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    with running_app() as server:
        tasks = played("base,hint-bot", LAPTOP, 25, served=served_by(server))
        done: list[int] = []
        team = evaluate_lineup(
            parse_lineup("base", 2), LAPTOP, 50, served=served_by(server), progress=done.append
        )
    assert [task[0].seed for task in tasks] == list(range(25))
    for task in tasks:
        assert [game.seats for game in task] == [("base", "hint-bot"), ("hint-bot", "base")]
        for game in task:
            assert all(
                bool(turn.reply_ids) == (game.seats[turn.player] == "base") for turn in game.turns
            )
    assert done == [0, 20, 40, 50]
    assert (team.seats, team.temperature, team.policies["base"][:16]) == (
        (("base", "base"),),
        1.0,
        "f" * 16,
    )
    assert team.figures["illegal_per_game"] > 0


def test_a_dropped_game_is_no_figure() -> None:
    message = r"1 of 3 games were not played \(task eval 0: lightning\)"
    with running_app() as server, pytest.raises(ServerError, match=message):
        played("base", LAPTOP, 3, served=served_by(server, Interrupting(server.url, drops=True)))


@pytest.mark.parametrize("setup", [LAPTOP, POKER])
def test_an_episode_whose_actions_do_not_fit_its_deal_is_refused(setup: Setup[Any]) -> None:
    [episode] = play_episodes_sync(setup, [make_script(setup, "random")] * 2, "eval", [5])
    check_replay(setup, episode)
    name, value = next(iter(episode.result.items()))
    for forged in (
        dataclasses.replace(episode, result={**episode.result, name: value + 1}),
        dataclasses.replace(episode, turns=episode.turns[1:]),
        dataclasses.replace(
            episode,
            turns=(dataclasses.replace(episode.turns[0], action="Sing"), *episode.turns[1:]),
        ),
    ):
        with pytest.raises(ServerError, match="task eval 5, game 0"):
            check_replay(setup, forged)


def test_deals_of_one_start_are_one_cluster_where_a_suite_has_only_some_of_the_starts() -> None:
    numbers = start_numbers(LAPTOP, "split-eval", range(1000))
    assert (len(set(numbers)), numbers[0]) == (451, 0)
    decks = [
        LAPTOP.environment.start_id(LAPTOP.config, split="split-eval", seed=seed)
        for seed in range(60)
    ]
    assert len(set(zip(numbers, decks, strict=False))) == len(set(numbers[:60])) == len(set(decks))
    assert (
        start_numbers(LAPTOP, "eval", (3, 5, 3000))
        == start_numbers(POKER, "eval", range(3))
        == (0, 1, 2)
    )


def test_the_figures_of_a_deal_are_what_its_games_hold() -> None:
    turns = [
        made_turn(kind=kind)
        for kind in (ReplyKind.ILLEGAL, ReplyKind.UNPARSABLE, ReplyKind.UNPARSABLE)
    ]
    cut = made_episode(
        *turns, score=0, score_kept=2, bombed=1, status=EpisodeStatus.TRUNCATED_TOKENS
    )
    whole = made_episode(made_turn(), score=4)
    assert task_figures(LAPTOP.spec, [cut, whole]) == TaskFigures(
        seed=0,
        scores=[0, 4],
        figures={
            **{"score": 2, "score_kept": 3, "bombed": 0.5, "truncated": 0.5, "perfect": 0.5},
            **{"illegal_per_game": 0.5, "unparsable_per_game": 1, "turns_per_game": 2},
        },
    )


def test_a_deals_score_is_the_mean_over_its_seat_orders() -> None:
    tasks = [
        TaskFigures(seed=seed, scores=list(scores), figures={"bombed": bombed})
        for seed, (scores, bombed) in enumerate([((1, 4), 0), ((3, 2), 0), ((2, 0), 0.5)])
    ]
    result = summarise(MIXED, LAPTOP, tasks, key=lineup_key(MIXED, LAPTOP))
    assert (result.seeds, result.starts, result.scores) == ((0, 1, 2), (0, 1, 2), (2.5, 2.5, 1.0))
    assert result.figures == {"bombed": pytest.approx(1 / 6)}
    assert [order.words for order in result.orders] == [("iggi", "random"), ("random", "iggi")]
    assert [order.standard_error for order in result.orders] == pytest.approx(
        [1 / 3**0.5, 2 / 3**0.5]
    )
    assert result.standard_error == pytest.approx(0.5), (
        "the task is the unit: three scores, not six"
    )
    assert (result.env, result.preset, result.num_players, result.score) == (
        "hanabi",
        "laptop",
        2,
        "score",
    )
    assert (result.score_range, result.attainable, result.temperature) == ((0, 4), 3.87, None)
    assert {"env": result.env, "env_config": result.env_config} == LAPTOP.row()


def test_where_one_wins_what_the_other_loses_the_score_is_the_first_words_return() -> None:
    texts = ("equilibrium-0,random", "random,equilibrium-0")
    one, other = (evaluate_lineup(parse_lineup(text, 2, env="kuhn"), POKER, 200) for text in texts)
    assert one.mean == pytest.approx(-other.mean) and one.mean > 0.1
    assert (one.score, one.score_range, "perfect" in one.figures) == ("return", (-2.0, 2.0), False)
    [task] = played("equilibrium-0,random", POKER, 1)
    scores = [lineup_score(POKER.spec, game, number) for number, game in enumerate(task)]
    assert scores == [task[0].reward(0), task[1].reward(1)]


def test_differences_know_that_deals_share_starts() -> None:
    one, other = (evaluate_scripted(bot, LAPTOP, 600, "split-eval") for bot in ("hint-bot", "iggi"))
    difference = paired_difference(one, other)
    assert difference.num_tasks == 600 and difference.num_starts < 400 and one.attainable is None


def test_other_games_are_not_compared() -> None:
    one, other = result_of("one", 1, 3), result_of("other", 1, 3)
    for field, value, what in (
        ("seeds", (0, 2), "tasks"),
        ("suite", "test", "suites"),
        ("spec_hash", "0", "games"),
    ):
        with pytest.raises(SettingsError, match=f"one and other played different {what}"):
            paired_difference(one, dataclasses.replace(other, **{field: value}))


def test_a_result_comes_back_from_its_file_and_a_file_that_is_none_is_refused_by_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new" / "result.json"
    write_document(path, result_to_json(result_of("é ↔", 1, 2)))
    assert read_result(path) == result_of("é ↔", 1, 2)
    for text, message in (
        ("[]", "not an evaluation"),
        ("[" * 100_000, "not an evaluation"),
        ('{"label": "x"}', r"\(lineup: "),
        ('{"results": [{"label": "iggi"}, {"label": "x"}]}', r"holds 2 lineups \(iggi, x\)"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsError, match=message):
            read_result(path)
    data = result_to_json(evaluate_scripted("blind", LAPTOP, 3))
    with pytest.raises(ValueError, match="they need the same number"):
        result_of_json({**data, "starts": [*data["starts"], 9]})
    with pytest.raises(ValueError, match="no finite number"):
        result_of_json({**data, "scores": [1.0, 2.0, float("nan")]})
    write_document(path, {**data, "scores": [1.0]})
    with pytest.raises(SettingsError, match=r"result\.json: seeds"):
        read_result(path)


def test_an_interrupted_evaluation_goes_on_and_asks_for_no_deal_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    path, team = tmp_path / "x.part.jsonl", parse_lineup("base,iggi", 2)
    with running_app() as server:
        undisturbed = evaluate_lineup(team, LAPTOP, 25, served=served_by(server))
        first, second = Interrupting(server.url, at=2), Interrupting(server.url)
        with pytest.raises(KeyboardInterrupt):
            evaluate_lineup(team, LAPTOP, 25, served=served_by(server, first), ledger=path)
        result = evaluate_lineup(team, LAPTOP, 25, served=served_by(server, second), ledger=path)
    assert (sorted(set(first.asked)), sorted(set(second.asked))) == (
        list(range(20)),
        list(range(20, 25)),
    )
    assert result == undisturbed


def test_adapters_are_named_by_their_weights_and_others_of_the_same_name_are_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "SERVED_GAMES", 20)
    path = tmp_path / "x.part.jsonl"
    team, apart = parse_lineup("player_1@latest,iggi", 2), parse_lineup("served", 2)
    first, second = adapter_bytes(0.5), adapter_bytes(0.25)

    def serve(server: RunningApp, client: RolloutClient, *bodies: bytes) -> None:
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
        client.push(
            7, {name: (body, PEFT_CONFIG) for name, body in zip(PLAYERS, bodies, strict=True)}
        )

    with running_app() as server, RolloutClient(server.url) as client:
        serve(server, client, first, second)
        result = evaluate_lineup(apart, LAPTOP, 20, served=served_by(server))
        assert result.seats == (("player_0@7", "player_1@7"),)
        digests = {
            name: hashlib.sha256(body).hexdigest()
            for name, body in zip(PLAYERS, (first, second), strict=True)
        }
        assert result.policies == {"base": result.policies["base"], **digests}
        with pytest.raises(KeyboardInterrupt):
            evaluate_lineup(
                team,
                LAPTOP,
                30,
                served=served_by(server, Interrupting(server.url, at=1)),
                ledger=path,
            )
        with pytest.raises(SettingsError, match=r"other work .*temperature"):
            evaluate_lineup(
                team, LAPTOP, 30, served=served_by(server, temperature=0.5), ledger=path
            )
    with running_app() as server, RolloutClient(server.url) as client:
        serve(server, client, second, first)
        with pytest.raises(SettingsError, match=r"other work .*policies"):
            evaluate_lineup(team, LAPTOP, 30, served=served_by(server), ledger=path)
    assert (
        json.loads(path.read_bytes().splitlines()[0])["key"]["policies"]["player_1"]
        == digests["player_1"]
    )


def evaluate(*words: str) -> Any:
    return CliRunner().invoke(app, ["evaluate", *words])


def test_tables_stand_on_standard_output_with_every_reference() -> None:
    answer = evaluate("iggi", "iggi,random", "--preset", "laptop", "--tasks", "40")
    assert answer.exit_code == 0, answer.output
    for part in ("40 tasks", "random", "blind", "hint-bot", "iggi,random − iggi", "Seat orders"):
        assert part in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 120


def test_several_lineups_write_one_file_and_json_is_all_that_standard_output_holds(
    tmp_path: Path,
) -> None:
    answer = evaluate(
        "iggi", "blind", "--preset", "laptop", "--tasks", "20", "--out", "a.json", "--json"
    )
    assert answer.exit_code == 0, answer.output
    document = json.loads(Path("a.json").read_text())
    assert document == json.loads(answer.stdout)
    assert [one["label"] for one in document["results"]] == ["iggi", "blind"]
    assert [one["label"] for one in document["references"]] == ["random", "hint-bot"], (
        "blind is there already"
    )
    assert [(one["of"], one["minus"]) for one in document["differences"]] == [("blind", "iggi")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_bad_options_are_one_message() -> None:
    with pytest.raises(
        SettingsError, match="needs a rollout server: start one, or add --own-server"
    ):
        evaluate_lineup(parse_lineup("base", 2), LAPTOP, 10)
    for words, message in (
        (["iggy"], "Did you mean 'iggi'?"),
        (["iggi,iggi,iggi"], "3 policy specs for 2 players"),
        (["iggi", "iggi"], "named twice"),
        (["iggi", "blind", "--label", "x"], "--label 'x': names one lineup, and 2 are given"),
        (["iggi", "--tasks", "1"], "--tasks 1: a mean with an error needs at least 2 tasks"),
        (["iggi", "--suite", "train"], "training may have seen its tasks"),
        (["iggi", "--temperature", "-1"], "--temperature -1.0: must be 0 (greedy) or more"),
        (["iggi", "--players", "9"], "players"),
        (["human,iggi"], "hanabi-grpo play"),
    ):
        answer = evaluate(*words, "--preset", "laptop")
        assert (
            answer.exit_code == 2
            and answer.stderr.startswith("error: ")
            and message in answer.stderr
        )


def test_models_play_on_the_server_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        answer = evaluate(
            "base",
            "base,iggi",
            "--preset",
            "laptop",
            "--tasks",
            "12",
            "--json",
            "--temperature",
            "0",
        )
        nobody = evaluate("served", "--preset", "laptop", "--tasks", "12")
    assert answer.exit_code == 0, answer.output
    results = json.loads(answer.stdout)["results"]
    assert [one["temperature"] for one in results] == [0.0, 0.0]
    assert [order["seats"] for order in results[1]["orders"]] == [
        ["base", "iggi"],
        ["iggi", "base"],
    ]
    assert nobody.exit_code == 2 and "serves no adapter for player_0" in nobody.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_and_goes_on_to_the_same_result(
    start_process: Callable[..., "subprocess.Popen[str]"], number: signal.Signals
) -> None:
    words = ["hint-bot,focus-bot", "--preset", "full", "--tasks", "600", "--out", "a.json"]
    process = start_process(
        [sys.executable, "-m", "hanabi_grpo.cli", "evaluate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    path, end = Path("a.part.jsonl"), time.monotonic() + _WAIT_SECONDS
    while not path.exists() or path.read_bytes().count(b"\n") <= 50:
        assert process.poll() is None and time.monotonic() < end, (
            "it ended, or did nothing, before it was interrupted"
        )
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=_WAIT_SECONDS)
    assert process.returncode == 130, err
    kept = Path("a.part.jsonl").read_bytes().count(b"\n") - 1
    assert 50 <= kept < 600
    assert f"{kept} of 600 tasks are done and kept; run the same command again to continue." in err
    assert "Traceback" not in err and not Path("a.json").exists()
    other = evaluate("hint-bot,iggi", *words[1:])
    assert (
        other.exit_code == 2
        and "other work (lineup: there hint-bot,focus-bot, here hint-bot,iggi" in other.stderr
    )
    assert evaluate(*words).exit_code == 0
    found = read_result(Path("a.json"))
    setup = Setup(HANABI, EnvConfig.parse(found.env_config))
    expected = evaluate_lineup(parse_lineup("hint-bot,focus-bot", 2), setup, 600)
    assert (
        dataclasses.replace(found, label=expected.label) == expected and setup.spec.preset == "full"
    )
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["a.json"]
