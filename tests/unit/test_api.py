"""`import hanabi_grpo as hg`: what its functions take, return and refuse, without a model."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import hanabi_grpo as hg
from doctor_machines import ROOT, answering
from hanabi_grpo.api import training
from hanabi_grpo.api.servers import needs_own_server
from hanabi_grpo.api.settings import read_given
from hanabi_grpo.cli import app
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import RunFolderError, ServerError, SettingsError, TrainingError
from toy_environments import GUESS
from waiting import wait_until

RECORDED = ROOT / "tests" / "data" / "version-0.2" / "run"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("HANABI_", "VLLM_SERVER")):
            monkeypatch.delenv(name)


def test_an_environment_has_the_settings_that_training_would_give_it() -> None:
    env = hg.make_env("hanabi", preset="laptop")
    plain = hg.Trainer(preset="laptop").settings.setup()
    assert env == plain
    assert hg.make_env("hanabi", preset="mini", players=3).spec.num_players == 3
    assert hg.make_env("kuhn_poker").spec.env == "kuhn_poker"


def test_an_environment_obeys_variables_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_REWARD_ILLEGAL", "-0.75")
    assert hg.make_env("hanabi", preset="laptop").config.reward_illegal == -0.75
    chosen = hg.make_env("hanabi", preset="laptop", reward_illegal=-0.25)
    assert chosen.config.reward_illegal == -0.25


def test_an_environment_object_needs_no_entry_point() -> None:
    env = hg.make_env(GUESS, highest=5)
    assert (env.environment, env.config.highest, env.config.preset) == (GUESS, 5, "toy")
    episodes = hg.play("random", env, tasks=2, games=2)
    assert [(episode.seed, episode.game) for episode in episodes] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    evaluation = hg.evaluate("random", env, tasks=4)
    assert evaluation.results[0].num_tasks == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "hanabbi"}, "no such environment; did you mean 'hanabi'"),
        ({"preset": "lapptop"}, "lapptop"),
        ({"playerz": 2}, "not a setting of this environment; did you mean 'players'"),
        ({"players": 9}, "9"),
        ({"max_steps": 5}, "not a setting of this environment"),
    ],
)
def test_an_environment_that_there_is_not_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        hg.make_env(**arguments)


def test_episodes_are_those_of_the_command_that_records_games(tmp_path: Path) -> None:
    env = hg.make_env("hanabi", preset="laptop")
    episodes = hg.play("iggi,random", env, tasks=4, suite="collect", rotate=True)
    command = ["collect", "iggi,random", "--preset", "laptop", "--tasks", "4", "--out", "games"]
    assert CliRunner().invoke(app, command).exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "games/games_000000.jsonl").open()]
    assert [row["seats"] for row in rows] == [list(episode.seats) for episode in episodes]
    for row, episode in zip(rows, episodes, strict=True):
        assert [turn["action"] for turn in row["turns"]] == [turn.action for turn in episode.turns]


def test_settings_of_the_game_hold_beside_the_name_of_its_environment() -> None:
    evaluation = hg.evaluate("iggi", "hanabi", tasks=2, preset="simple", players=3)
    assert evaluation.results[0].preset == "simple"
    [episode] = hg.play("iggi", "hanabi", preset="mini", players=4)
    assert (episode.preset, len(episode.seats)) == ("mini", 4)


def test_an_evaluation_is_that_of_the_command(tmp_path: Path) -> None:
    env = hg.make_env("hanabi", preset="laptop")
    evaluation = hg.evaluate(["iggi", "hint-bot"], env, tasks=20, out=tmp_path / "result.json")
    command = ["evaluate", "iggi", "hint-bot", "--preset", "laptop", "--tasks", "20", "--json"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0
    printed = json.loads(answer.stdout)
    assert json.loads((tmp_path / "result.json").read_text()) == printed
    frame = evaluation.frame()
    assert frame["label"].tolist() == ["iggi", "hint-bot", "random", "blind"]
    assert frame["mean"].tolist()[:2] == [
        result["summary"]["mean"] for result in printed["results"]
    ]
    # Nothing is left of how far it was.
    assert not Path("outputs").exists()


def test_an_evaluation_says_what_it_replaces_and_replaces_nothing_but_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    hg.evaluate("iggi", "hanabi", tasks=2, out=out)
    assert "replaced" not in capsys.readouterr().err
    hg.evaluate("hint-bot", "hanabi", tasks=2, out=out)
    said = " ".join(capsys.readouterr().err.split())
    assert "which held iggi" in said
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(SettingsError, match=r"out=.*notes\.txt: exists, but holds no result"):
        hg.evaluate("iggi", "hanabi", tasks=2, out=notes)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hg.play("igggi", "hanabi"), "igggi"),
        (lambda: hg.play("iggi", "hanabi", tasks=0), r"play\(tasks=0\): give at least 1"),
        (lambda: hg.play("iggi,iggi,iggi", "hanabi", preset="laptop"), "3 policy specs for 2"),
        (lambda: hg.play("human", "hanabi"), "only in hanabi-grpo play"),
        (lambda: hg.play("iggi", "hanabi", tasks="3"), r"play\(tasks='3'\): give a whole number"),
        (lambda: hg.play("iggi", "hanabi", games=1.5), r"play\(games=1\.5\): give a whole number"),
        (lambda: hg.play(["iggi", "random"], "hanabi"), r"play\(lineup=\['iggi', 'random'\]\): "),
        (lambda: hg.play("iggi", "hanabi", suite=5), r"play\(suite=5\): give the name of a suite"),
        (lambda: hg.play("iggi", 5), "env=5: give the name of an environment"),
        (
            lambda: hg.play("iggi", "hanabi", temperature=float("nan")),
            r"play\(temperature=nan\): must be a number, 0 \(greedy\) or more",
        ),
        (lambda: hg.evaluate([], "hanabi"), r"evaluate\(lineups=\[\]\): give a lineup"),
        (lambda: hg.evaluate(["iggi", 3], "hanabi"), r"lineups=\['iggi', 3\]\): give a lineup"),
        (lambda: hg.evaluate("iggi", "hanabi", tasks=1), r"evaluate\(tasks=1\): give at least 2"),
        (
            lambda: hg.evaluate("iggi", "hanabi", suite="train"),
            r"evaluate\(suite='train'\): training may have seen",
        ),
        (
            lambda: hg.evaluate("iggi", "hanabi", suite="eval-all-starts"),
            "give all_starts=True to play all of them",
        ),
        (
            lambda: hg.evaluate(["iggi", "random"], "hanabi", label="one"),
            r"evaluate\(label='one'\): names a single lineup, but 2 are given",
        ),
        (
            lambda: hg.evaluate("iggi", hg.make_env("hanabi", preset="simple"), all_starts=True),
            r"^all_starts=True: .*at most 100000 can be played",
        ),
        (lambda: hg.evaluate(["iggi", "iggi"], "hanabi"), "is given twice"),
        (
            lambda: hg.evaluate("iggi", "hanabi", temperature=-1),
            r"evaluate\(temperature=-1\): must",
        ),
        (lambda: hg.evaluate("iggi", "hanabi", max_stepz=1), "did you mean 'max_steps'"),
    ],
)
def test_what_cannot_be_played_is_refused(call, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        call()
    # Python has no options of a command line.
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"preset": "full"},
            "preset='full' with env=mini: this environment has preset='mini'; give",
        ),
        ({"HANABI_PRESET": "full"}, "HANABI_PRESET='full' with env=mini: .* preset='mini'"),
        ({"players": 2}, "players=2 with env=mini: this environment has players=3"),
        ({"reward_illegal": "-1"}, "reward_illegal='-1' with env=mini: .* reward_illegal=-0.25"),
        ({"env": "kuhn_poker"}, "env='kuhn_poker' with env=mini: .* env='hanabi'"),
    ],
)
def test_a_setting_of_the_game_must_not_contradict_the_environment(
    settings: dict, message: str
) -> None:
    env = hg.make_env("hanabi", preset="mini", players=3, reward_illegal=-0.25)
    calls: list[Callable[[], object]] = [lambda: hg.Trainer(settings, env=env)]
    if "env" not in settings:
        calls.append(lambda: hg.play("iggi", env, **settings))
        calls.append(lambda: hg.evaluate("iggi", env, tasks=2, **settings))
    for call in calls:
        with pytest.raises(SettingsError, match=message):
            call()
    with pytest.raises(SettingsError, match="HANABI_PRESET='full' with env=mini"):
        hg.Trainer(hg.Settings(preset="full"), env=env)


def test_a_setting_of_the_game_may_repeat_what_the_environment_has() -> None:
    env = hg.make_env("hanabi", preset="mini", players=3, reward_illegal=-0.25)
    same = {"HANABI_PRESET": "mini", "players": "3", "reward_illegal": -0.25, "tools": ""}
    [episode] = hg.play("iggi", env, **same)
    assert (episode.preset, len(episode.seats)) == ("mini", 3)
    assert hg.Trainer({**same, "env": "hanabi"}, env=env).settings.setup() == env
    two = hg.make_env("kuhn_poker")
    assert hg.Trainer(env=two, players=2).settings.setup() == two


def test_an_environment_takes_no_settings_of_another_game() -> None:
    with pytest.raises(SettingsError, match="colors=3 with env=kuhn_poker: not a setting of kuhn"):
        hg.play("random", hg.make_env("kuhn_poker"), colors=3)
    with pytest.raises(SettingsError, match=r"preset='other' with env=toy: .* preset='toy'"):
        hg.play("random", GUESS, preset="other")
    with pytest.raises(SettingsError, match="env='hanabi': given twice"):
        hg.Trainer({"env": "kuhn_poker"}, env="hanabi")


def test_settings_have_the_names_of_variables_in_either_form() -> None:
    named = hg.Trainer({"MAX_STEPS": 7, "HANABI_PRESET": "mini", "HANABI_PARTNERS": ["iggi"]})
    plain = hg.Trainer(max_steps=7, preset="mini", partners=("iggi",))
    typed = hg.Trainer(hg.Settings(max_steps=7, preset="mini", partners=("iggi",)))
    assert named.settings == plain.settings == typed.settings
    assert plain.settings.max_steps == 7


def test_an_environment_gives_a_trainer_only_what_differs_from_its_defaults() -> None:
    env = hg.make_env("hanabi", preset="mini", players=3, reward_illegal=-0.25)
    assert read_given(env=env).environ == {
        "HANABI_ENV": "hanabi",
        "HANABI_PRESET": "mini",
        "HANABI_PLAYERS": "3",
        "HANABI_REWARD_ILLEGAL": "-0.25",
    }
    assert hg.Trainer(env=env).settings.setup() == env


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_step": 2}, "no such setting; did you mean 'max_steps'"),
        ({"hanabi_preset": "laptop"}, "did you mean 'preset'"),
        ({"max_steps": "many"}, "MAX_STEPS='many': a whole number"),
        ({"max_steps": 1, "MAX_STEPS": 2}, "given twice"),
        ({"learning_rate": 0}, "LEARNING_RATE"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_before_anything_starts(
    given: dict, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        hg.Trainer(**given)


def test_a_server_is_started_only_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needs_own_server(read_given(), None)
    assert not needs_own_server(read_given(vllm_server_port=8001), None)
    assert not needs_own_server(read_given(), hg.Server(host="127.0.0.1", port=8001))
    monkeypatch.setenv("VLLM_SERVER_HOST", "elsewhere")
    assert not needs_own_server(read_given(), None)


def test_a_named_server_that_is_not_there_ends_the_call_with_its_address() -> None:
    with answering(401, {}) as port, pytest.raises(ServerError, match=f":{port} refuses this key"):
        hg.play("base", "hanabi", vllm_server_port=port, vllm_server_host="127.0.0.1")


def test_a_trainer_that_refuses_raises_with_its_last_lines(tmp_path: Path) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / "other.txt").write_text("x")
    trainer = hg.Trainer(output_dir=folder, model=str(ROOT / "data/tiny-model"), preset="laptop")
    lines: list[str] = []
    with pytest.raises(
        TrainingError, match=r"exit code 2; its last lines:(?s:.*)holds another run"
    ):
        trainer.train(server=hg.Server(host="127.0.0.1", port=1), say=lines.append)
    assert any("holds another run" in line for line in lines)


def test_a_resume_of_a_run_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no-such-run"):
        hg.Trainer(resume=str(tmp_path / "no-such-run")).train()


INTERRUPTED = """
import signal
import sys
# A shell lets what it starts in the background ignore interrupts, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
import hanabi_grpo as hg
from hanabi_grpo.api import training
training.ENTRY = (sys.executable, "-c", {child!r})
server = hg.Server(host="127.0.0.1", port=1)
hg.Trainer(model={model!r}).train(server=server, options=[{mark!r}])
"""
CHILD = """
import os, signal, sys, time
from pathlib import Path
def stop(*_):
    Path(sys.argv[-1]).write_text("stopped in order")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("pid", os.getpid(), flush=True)
# As a trainer does. An interrupt that comes just before Python waits for a line is seen with the
# next line.
for step in range(200):
    time.sleep(0.5)
    print("step", step, flush=True)
"""


def test_an_interrupt_ends_the_trainer_in_order(
    tmp_path: Path, start_process: Callable[..., "subprocess.Popen[str]"]
) -> None:
    mark = tmp_path / "mark"
    code = INTERRUPTED.format(child=CHILD, model=str(ROOT / "data/tiny-model"), mark=str(mark))
    process = start_process(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("pid ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert mark.read_text() == "stopped in order"
    child = Path("/proc") / first.split()[1]
    assert wait_until(lambda: not child.exists(), 5)


def test_a_run_is_read_as_frames_and_typed_episodes() -> None:
    run = hg.load_run(RECORDED)
    assert run.metrics.index.name == "step"
    assert run.metrics.index.tolist() == [1, 2]
    assert run.metrics.loc[2, "score/mean"] == 1.5
    assert run.settings["HANABI_PRESET"] == "laptop"
    assert list(run.checkpoints) == [1, 2]
    assert run.steps == (0, 1)
    episodes = run.episodes(step=1)
    assert isinstance(episodes[0], hg.Episode)
    games = run.games()
    assert len(games) == len(run.episodes()) == 4
    assert games["recorded_step"].tolist() == [0, 0, 1, 1]
    assert games["result/score"].tolist() == [episode.result["score"] for episode in run.episodes()]
    turns = run.turns(step=1)
    assert len(turns) == sum(len(episode.turns) for episode in episodes)
    first = episodes[0].turns[0]
    assert turns.loc[0, ["action", "prompt", "version"]].tolist() == [
        first.action,
        first.prompt,
        first.version,
    ]
    parts = turns.filter(like="reward/").fillna(0).sum(axis=1)
    assert parts.tolist() == pytest.approx(turns["reward"].tolist())
    results = run.evaluations[run.evaluations["role"] == "results"]
    assert results["label"].tolist() == ["outputs/golden"]


def test_a_folder_that_is_no_run_is_refused_and_a_young_run_is_empty(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"neither settings\.json nor metrics\.jsonl"):
        hg.load_run(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    run = hg.load_run(tmp_path)
    assert run.metrics.empty and run.evaluations.empty and run.games().empty and run.turns().empty
    assert isinstance(run.turns(), pandas.DataFrame)
    with pytest.raises(SettingsError, match=r"^step=3: not recorded in .*; recorded: none"):
        run.episodes(step=3)


def test_it_can_be_called_from_a_thread() -> None:
    seen: list[int] = []
    env = hg.make_env("hanabi", preset="laptop")
    thread = threading.Thread(target=lambda: seen.append(len(hg.play("iggi", env, tasks=3))))
    thread.start()
    thread.join(30)
    assert seen == [3]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src/hanabi_grpo/py.typed").is_file()
    assert training.ENTRY[1:] == ("-m", "hanabi_grpo.cli")
    assert registry.names()
