"""Recorded games: read, written, chosen, replayed and shown, of Hanabi and of any environment."""

import html
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.cli import app
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rules import make_spec, shuffled_deck
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.envs.texts import before_answer, split_reply
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.games import games_page, turn_advantages
from hanabi_grpo.report.games_screen import print_game
from hanabi_grpo.report.played import frames_of
from hanabi_grpo.rollout.recordings import (
    Selection,
    num_bad_replies,
    read_recordings,
    recording_files,
    write_episodes,
    write_recordings,
)
from hanabi_grpo.texts import visible
from hanabi_grpo.training.estimators import ESTIMATORS, Pool, make_estimator
from hanabi_grpo.types import Episode, ReplyKind, ToolCall
from made_games import play_episodes_sync
from tracked_runs import scripted_games

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def group(*, config: EnvConfig = LAPTOP, seed: int = 0, num_games: int = 4) -> list[Episode]:
    return scripted_games("", *[seed] * num_games, config=config, noise=0.4)


def with_reply(episode: Episode, number: int, reply: str) -> Episode:
    """Return a game one of whose replies was no move."""
    turns = list(episode.turns)
    rewards = tuple(
        {**parts, "unparsable": -0.5} if player == turns[number].player else parts
        for player, parts in enumerate(turns[number].rewards)
    )
    turns[number] = replace(turns[number], reply=reply, kind=ReplyKind.UNPARSABLE, rewards=rewards)
    return replace(episode, turns=tuple(turns))


def printed(recording: Recording, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_game(console, recording, {}, None, **options)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_thoughts_are_told_from_what_is_said() -> None:
    for reply, expected in (
        ("Play 0", ("", "Play 0")),
        ("<think>The 1s\nare safe.</think>\n\nPlay 0", ("The 1s\nare safe.", "Play 0")),
        ("The prompt opened it.</think>Play 0", ("The prompt opened it.", "Play 0")),
        ("<think>cut off", ("cut off", "")),
        ("<THINK>a</Think>x<think>b</think>Play 1", ("a\nb", "x\nPlay 1")),
        ("x<think>a</think>y</think>Play 0", ("a\nx\ny", "Play 0")),
        ("", ("", "")),
    ):
        assert split_reply(reply) == expected


def test_what_stands_before_the_answer_of_a_reply() -> None:
    for reply, expected in (
        ("Play 0", ""),
        ("<think>fits</think>\n\nPlay 0", "<think>fits</think>\n\n"),
        ("<think> fits </think> Play 0 \n", "<think> fits </think> "),
        ("<think></think>Play 0", "<think></think>"),
        ("The prompt opened it.</think>Play 0", "The prompt opened it.</think>"),
        ("<think>cut off", ""),
        ("Play 0<think>said too early</think>", ""),
        ("x<think>a</think>Play 0", ""),
        ("", ""),
    ):
        assert before_answer(reply) == expected


def test_no_character_does_more_than_be_seen() -> None:
    for text, expected in (
        ("Play 0\n\tyes", "Play 0\n\tyes"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("\x1b[2J\x00\x7f\x9b", "␛[2J␀␡[U+009B]"),
        ("abc\u202edef\u2066\u200f\u200b\u2028", "abc[U+202E]def[U+2066][U+200F][U+200B][U+2028]"),
        ("\ud83d", "\ufffd"),
        ("שלום 😀 é", "שלום 😀 é"),
    ):
        assert visible(text) == expected


def test_games_are_written_and_read_with_deck_and_names(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    deck = shuffled_deck(make_spec("laptop"), "train", 0)
    episode = replace(group()[0], suite="hanab.live")
    write_recordings(
        path, [Recording(episode=episode, start=" ".join(map(str, deck)), names=("Ann", "Bö"))]
    )
    assert json.loads(path.read_text())["start"] == " ".join(map(str, deck))
    [one], notes = read_recordings([path])
    assert (one.episode, one.names, one.source, notes) == (episode, ("Ann", "Bö"), "games", [])
    assert one.players == ("Ann", "Bö") and make_timeline(one).boards[0].hands[0][0] == deck[0]
    with pytest.raises(SettingsError, match="already exists"):
        write_recordings(path, [])


def test_a_run_folder_stands_for_its_last_recorded_step(tmp_path: Path) -> None:
    for step in (0, 10, 100):
        write_episodes(tmp_path, step, [group()])
    assert [path.name for path in recording_files(tmp_path)] == ["step_000100.jsonl"]
    assert [path.name for path in recording_files(tmp_path, 10)] == ["step_000010.jsonl"]
    with pytest.raises(SettingsError, match=r"--step 7: not recorded in .*; recorded: 0, 10, 100"):
        recording_files(tmp_path, 7)
    with pytest.raises(SettingsError, match="is a single file"):
        recording_files(tmp_path / "episodes" / "step_000010.jsonl", 10)
    with pytest.raises(SettingsError, match="no such file or folder"):
        recording_files(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="contains no"):
        recording_files(tmp_path / "empty")


def test_a_last_line_that_was_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    write_recordings(path, [Recording(episode=one) for one in group()])
    whole = path.read_text()
    path.write_text(whole + whole[:100])
    recordings, notes = read_recordings([path])
    assert len(recordings) == 4 and notes == [
        f"{path}: the last line is truncated and was skipped."
    ]
    path.write_text(whole[:100] + "\n" + whole)
    with pytest.raises(SettingsError, match=r"line 1 is not JSON"):
        read_recordings([path])
    path.write_text('{"schema": 2, "preset": "laptop"}\n')
    with pytest.raises(SettingsError, match=r"line 1 is not a game of this version: .*env"):
        read_recordings([path])
    path.write_text("\n")
    with pytest.raises(SettingsError, match="contains no games"):
        read_recordings([path])


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Python's default; a library that an earlier test imported may have raised it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion_limit")
@pytest.mark.parametrize(
    "deep", ["[" * 100_000, '{"a": ' * 600 + "1" + "}" * 600], ids=["lists", "objects"]
)
def test_a_line_that_is_nested_too_deeply_is_refused(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "games.jsonl"
    write_recordings(path, [Recording(episode=one) for one in group()])
    path.write_text(f"{path.read_text()}{deep}\n")
    with pytest.raises(SettingsError, match=r"line 5 is nested too deeply to be a game\."):
        read_recordings([path])


@pytest.mark.parametrize(
    ("preset", "players"), [("laptop", 2), ("mini", 5), ("full", 3), ("hle-small", 2)]
)
@pytest.mark.parametrize("script", ["hint-bot", "random"])
def test_a_timeline_has_the_hands_of_the_deal_and_one_board_more_than_moves(
    preset: str, players: int, script: str
) -> None:
    config = EnvConfig(preset=preset, players=players)
    hand_size = config.spec().hand_size
    for episode in scripted_games(script, 0, 1, 2, config=config):
        timeline = make_timeline(Recording(episode=episode))
        deck = shuffled_deck(config.spec(), "train", episode.seed)
        for seat in range(players):
            first_card = seat * hand_size
            hand = deck[first_card : first_card + hand_size]
            assert timeline.boards[0].hands[seat] == hand
        assert len(timeline.moves) == len(episode.turns)
        assert len(timeline.boards) == len(timeline.moves) + 1
        last_board = timeline.boards[-1]
        assert sum(last_board.fireworks) == episode.result["score_kept"]
        assert last_board.lives == 0 or episode.status.value == "finished"
        for move in timeline.moves:
            assert move.prompt.startswith(("The game begins.", "So far", "From your"))


def test_a_record_that_does_not_fit_its_deal_is_refused() -> None:
    episode = group()[0]
    first, *rest = episode.turns
    illegal_move = replace(episode, turns=(replace(first, action="Play 7"), *rest))
    unreadable_move = replace(episode, turns=(replace(first, action="pass"), *rest))
    wrong_player = replace(episode, turns=(replace(first, player=1), *rest))
    move_after_the_end = replace(episode, turns=(*episode.turns, first))
    other_score = replace(episode, result={**episode.result, "score_kept": 9})
    other_board = replace(episode, spec_hash="0" * 12)
    broken = [
        (illegal_move, "turn 1: the record does not fit"),
        (unreadable_move, "'pass' is not a move"),
        (wrong_player, "a move by player_1, but it is player_0"),
        (move_after_the_end, "after the end of the game"),
        (other_score, "recorded with 9 points on the table"),
        (other_board, "recorded on board laptop with hash 000000000000"),
        (replace(episode, preset="nothing"), "no such board"),
        (replace(episode, suite="no suite"), "suite='no suite': must be 1 to 64"),
    ]
    for record, message in broken:
        with pytest.raises(SettingsError, match=re.escape(message)):
            make_timeline(Recording(episode=record))
    with pytest.raises(SettingsError, match="a deck must be a permutation"):
        make_timeline(Recording(episode=episode, start="R1"))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages_are_those_of_training_in_the_order_of_turns(name: str) -> None:
    games = group(num_games=4)
    games[1] = with_reply(games[1], 0, "hm")
    other = group(seed=5, num_games=1)
    recordings = [
        Recording(episode=one, number=number, source="step_000000")
        for number, one in enumerate(games + other)
    ]
    estimator = make_estimator(name)
    found = turn_advantages(recordings, estimator)
    if estimator.pool is Pool.GROUP:
        assert found[4] is None, (
            "a game that is alone with its task has nothing to be compared with"
        )
    else:
        games = games + other
    expected = [estimator.advantages(games, player) for player in range(2)]
    for number, episode in enumerate(games):
        values = found[number]
        assert values is not None
        for player in range(2):
            own = [
                value
                for value, turn in zip(values, episode.turns, strict=True)
                if turn.player == player
            ]
            assert own == expected[player][number]


def test_games_are_chosen_by_returns_replies_and_number() -> None:
    games = group(num_games=6)
    for number, points in enumerate((2.0, 0.0, 4.0, 0.0, 1.0, 4.0)):
        turns = [replace(turn, rewards=({}, {})) for turn in games[number].turns]
        turns[0] = replace(turns[0], rewards=({"score": points},) * 2)
        games[number] = replace(games[number], turns=tuple(turns))
    games[4] = with_reply(games[4], 1, "hm")
    recordings = [Recording(episode=one, number=number) for number, one in enumerate(games)]

    def numbers(**choice: object) -> list[int]:
        return [one.number for one in Selection(**choice).apply(recordings)]  # type: ignore[arg-type]

    assert numbers() == [0, 1, 2, 3, 4, 5]
    assert numbers(worst=3) == [1, 3, 4]
    assert numbers(best=2) == [2, 5]
    assert numbers(illegal=True) == [4] and num_bad_replies(recordings[4]) == 1
    assert numbers(illegal=True, player=1) == [4] and numbers(illegal=True, player=0) == []
    assert numbers(game=5) == [5]
    for choice, message in (
        ({"worst": 1, "best": 1}, "--worst and --best: choose one"),
        ({"worst": 0}, "at least 1"),
        ({"game": 6}, "there are games 0 to 5"),
        ({"player": 4}, "no game here has that many players"),
    ):
        with pytest.raises(SettingsError, match=message):
            numbers(**choice)


def test_the_terminal_shows_what_was_seen_thought_said_done_and_earned() -> None:
    episode = group()[0]
    turns = (replace(episode.turns[0], version=30, prompt="It is your turn."), *episode.turns[1:])
    episode = with_reply(
        replace(episode, turns=turns), 0, "<think>Hm \x1b[31m.</think>I \x1b[2J[bold]pass[/bold]."
    )
    text = printed(Recording(episode=episode), prompts=True)
    for part in (
        "· v30",
        "Hm ␛[31m.",
        "I ␛[2J[bold]pass[/bold].",
        "played instead: ",
        "unparsable -0.5",
        "It is your turn.",
        "lives 1  hints 3  deck 2",
    ):
        assert part in text
    assert "\x1b" not in text
    assert "It is your turn." not in printed(Recording(episode=episode))
    second_player = printed(Recording(episode=episode), player=1)
    assert "turn 2" in second_player
    assert "turn 1\n" not in second_player


@pytest.mark.parametrize(
    ("env", "preset"), [("connect_four", "connect_four-4x5"), ("sokoban", "sokoban-2")]
)
def test_boards_are_shown_in_either_style_without_the_settings_of_a_run(
    env: str, preset: str
) -> None:
    config = registry.get(env).presets[preset]
    for style in ("full", "compact"):
        setup = registry.setup(env, {**config.model_dump(), "style": style})
        players = [make_script(setup, "random")] * setup.spec.num_players
        [episode] = play_episodes_sync(setup, players, "train", [3])
        frames = frames_of(Recording(episode=episode), {})
        assert len(frames) == len(episode.turns) + 1 and frames[0].text != frames[-1].text


def test_a_call_of_a_tool_is_shown_beside_its_result() -> None:
    setup = registry.setup(
        "vote", {"preset": "vote-calculator", "tools": "calculator", "style": "compact"}
    )
    scripts = {player: setup.environment.policies["noisy"]() for player in range(3)}
    episode = play_scripts(setup.task("train", 1), scripts)
    [first, *_] = [turn for turn in episode.turns if turn.call is not None]
    assert first.call is not None
    call = f"calls calculator({first.call.argument})"
    recording = Recording(episode=episode)
    text = printed(recording)
    assert call in text
    assert re.search(rf"  result +{re.escape(first.call.result)}\b", text)
    page = games_page([recording], [recording], title="t", settings={})
    assert call in html.unescape(page)
    assert f'<div class="r">{first.call.result}</div>' in page
    assert page.count('<li class="c">') == sum(turn.is_call for turn in episode.turns)


def test_a_board_shows_calls_in_what_was_said() -> None:
    [episode] = group(num_games=1)
    call = ToolCall(tool="lookup", argument="R1", result="playable")
    looked_up = replace(
        episode.turns[1], reply="lookup R1", action="lookup R1", rewards=({}, {}), call=call
    )
    turns = (episode.turns[0], looked_up, *episode.turns[1:])
    with_call = Recording(episode=replace(episode, turns=turns))
    assert len(make_timeline(with_call).moves) == len(episode.turns)
    page = games_page([with_call], [with_call], title="t", settings={})
    assert "calls lookup(R1) -&gt; playable" in page
    assert page.count("<li>") == len(episode.turns)


def test_games_of_any_environment_are_listed_printed_and_a_page(tmp_path: Path) -> None:
    setup = registry.setup("kuhn", {"preset": "kuhn"})
    scripts = [make_script(setup, "random")] * 2
    write_episodes(tmp_path, 0, [play_episodes_sync(setup, scripts, "train", range(4))])

    def view(*arguments: str) -> str:
        return CliRunner().invoke(app, ["view", str(tmp_path), *arguments]).output

    table = view()
    assert "played to the end" in table
    assert "4 of 4 games" in table
    recordings, _ = read_recordings(recording_files(tmp_path))
    first_action = recordings[0].episode.turns[0].action
    game = view("--game", "0")
    positions = [
        game.index("task\nplayer_0 holds "),
        game.index(f"did      {first_action}"),
        game.index("end\n"),
    ]
    assert positions == sorted(positions)
    view("--html", str(tmp_path / "games.html"))
    page = (tmp_path / "games.html").read_text()
    assert page.count("<pre>player_0 holds ") == 4
    assert "<script" not in page
    other = tmp_path / "other.html"
    assert "--player player_1 with --html: a page shows the turns of every player" in " ".join(
        view("--player", "player_1", "--html", str(other)).split()
    )
    assert not other.exists()
