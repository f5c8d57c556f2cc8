import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boards import scripted_episodes
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.hanab_live import export_game, import_game
from hanabi_grpo.envs.hanabi.replays.live_game import (
    LiveAction,
    LiveGame,
    live_game_from_json,
    live_game_to_json,
    live_games_from_text,
)
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import read_recordings, write_recordings
from hanabi_grpo.types import Episode, EpisodeStatus

DECK = sorted_deck(5, 5)
"""R1 R1 R1 R2 R2 R3 R3 R4 R4 R5 Y1 ...: with two players R1 R1 R1 R2 R2 and R3 R3 R4 R4 R5 are dealt."""


def row(**changes: Any) -> dict[str, Any]:
    """Return a game as somebody else may write it."""
    return {
        "players": ["Ann", "Bo"],
        "deck": [{"suitIndex": card.color, "rank": card.rank + 1} for card in DECK],
        "actions": [{"type": 0, "target": 0}, {"type": 3, "target": 0, "value": 2}, {"type": 0, "target": 3}],
        **changes,
    }


def imported(**changes: Any) -> tuple[Episode, list[str]]:
    recording, notes = import_game(live_game_from_json(row(**changes), "game"), "game")
    return recording.episode, notes


def full_episode(seed: int = 0) -> Episode:
    return scripted_episodes(EnvConfig(preset="full"), ["hint-bot"] * 2, [seed])[0]


def test_the_json_has_the_four_keys_and_the_numbers_of_the_format() -> None:
    actions = (LiveAction(type=1, target=7), LiveAction(type=2, target=1, value=0))
    written = live_game_to_json(LiveGame(players=("a", "b"), deck=DECK, num_known=50, actions=actions))
    assert list(written) == ["players", "deck", "actions", "options"]
    assert (written["deck"][0], written["deck"][49]) == ({"suitIndex": 0, "rank": 1}, {"suitIndex": 4, "rank": 5})
    assert written["actions"] == [{"type": 1, "target": 7}, {"type": 2, "target": 1, "value": 0}]
    assert written["options"] == {"variant": "No Variant"}


def test_a_game_is_replayed_move_by_move() -> None:
    episode, notes = imported()
    assert [turn.action for turn in episode.turns] == ["Play 0", "Hint player_0 2", "Play 2"]
    assert [turn.player for turn in episode.turns] == [0, 1, 0]
    assert [turn.rewards for turn in episode.turns] == [({"score": 1.0},) * 2, ({}, {}), ({"score": 1.0},) * 2]
    assert (episode.result["score"], episode.status) == (2, EpisodeStatus.TRUNCATED_TURNS)
    assert all(turn.version is None and not turn.reply_ids for turn in episode.turns)
    assert notes == ["game: stops after 3 moves, before its end."]


def test_what_others_add_is_left_alone() -> None:
    actions = [{"type": 0, "target": 0, "value": 0}, {"type": 3, "target": 0, "value": 2, "x": 1}]
    episode, _ = imported(
        actions=[*actions, {"type": 0, "target": 3, "value": None}],
        options={"timed": True, "timeBase": 120, "speedrun": True, "cardCycle": False, "variant": "No Variant",
                 "numPlayers": 2, "startingPlayer": 0, "variantID": 0, "emptyClues": 0},
        notes=[["a note"], []], characters=[], id=17, seed="p2v0s1", extra={"a": 1},
    )  # fmt: skip
    assert (episode.result["score"], episode.suite, episode.seed) == (2, "hanab.live", 17)
    for absent in ({}, {"options": None}, {"options": {}}, {"characters": [{"name": "n/a", "metadata": 0}]}):
        assert imported(**absent)[0].result["score"] == 2


def test_a_game_that_its_players_end_stops_there() -> None:
    actions = row()["actions"]
    for kind in (4, 5):
        episode, notes = imported(actions=[*actions, {"type": kind, "target": -1, "value": 10}, *actions])
        assert len(episode.turns) == 3 and episode.status is EpisodeStatus.TRUNCATED_TURNS
        assert notes == ["game: ended by its players, or by the clock, after 3 moves."]


def test_actions_after_a_bomb_are_left_out_and_said() -> None:
    deck = [*DECK[5:10], *DECK[:5], *DECK[10:]]
    plays = [{"type": 0, "target": target} for target in (0, 6, 1, 7, 2, 5)]
    # R3 misplays, R1 scores, R3 misplays, R1 misplays: the third life.
    episode, notes = imported(deck=[{"suitIndex": card.color, "rank": card.rank + 1} for card in deck], actions=plays)
    assert episode.status is EpisodeStatus.FINISHED
    assert episode.result == {"score": 0, "score_kept": 1, "bombed": 1}
    assert len(episode.turns) == 4 and notes == ["game: 2 actions after the end are left out."]


def test_cards_that_were_never_dealt_may_be_missing() -> None:
    short = row()["deck"][:12]
    episode, _ = imported(deck=short)
    assert episode.result["score"] == 2
    with pytest.raises(SettingsError, match=r"draws card 11 \(from 0\), but `deck` has 11 cards"):
        imported(deck=short[:11])
    with pytest.raises(SettingsError, match="deck has 9 cards; 2 players are dealt 10"):
        imported(deck=short[:9])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"variant": "Rainbow (6 Suits)"}}, "variant=Rainbow (6 Suits): the game has other rules"),
        ({"options": {"variantID": 5}}, "variantID=5"),
        ({"options": {"cardCycle": True}}, "cardCycle=True"),
        ({"options": {"somethingNew": 3}}, "somethingNew=3"),
        ({"options": {"numPlayers": 3}}, "numPlayers=3"),
        ({"characters": [{"name": "Fuming", "metadata": 2}]}, "characters: detrimental characters"),
        ({"firstPlayer": 1}, "firstPlayer=1"),
        ({"players": ["a", "b", "c", "d", "e", "f"]}, "at most 5 items"),
        ({"players": ["a", 5]}, "players.1=5"),
        ({"deck": [{"suitIndex": 5, "rank": 1}]}, "deck.0.suitIndex=5"),
        ({"deck": [{"suitIndex": 0, "rank": 1}] * 4}, "deck has too many R1"),
        ({"actions": [{"type": 7, "target": 0}]}, "action 0: {'type': 7, 'target': 0} is not allowed there"),
        ({"actions": [{"type": 0, "target": 5}]}, "allowed: {'type': 0, 'target': 0}, "),
        ({"actions": [{"type": 1, "target": 0}]}, "is not allowed there"),
        ({"actions": [{"type": 2, "target": 0, "value": 0}]}, "is not allowed there"),
        ({"actions": [{"type": 2, "target": 1, "value": 4}]}, "is not allowed there"),
    ],
)  # fmt: skip
def test_other_rules_and_broken_games_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        imported(**changes)
    assert message in str(refused.value)


def test_a_game_without_its_deck_says_where_to_get_it() -> None:
    with pytest.raises(
        SettingsError, match=r"names its cards by seed 'p2v0s5'; take the JSON of https://hanab.live/exp"
    ):
        live_game_from_json({"players": ["a", "b"], "actions": [], "seed": "p2v0s5"}, "game")
    for nothing in ([], {}, 5, None, "text"):
        with pytest.raises(SettingsError, match="game: "):
            live_game_from_json(nothing, "game")


def test_lists_and_lines_of_games_are_read() -> None:
    one = row()
    for text in (json.dumps(one), json.dumps([one]), json.dumps(one) + "\n\n", "\ufeff" + json.dumps(one, indent=2)):
        assert len(live_games_from_text(text, "file")) == 1
    assert len(live_games_from_text(json.dumps(one) + "\n" + json.dumps(one), "file")) == 2
    with pytest.raises(SettingsError, match="file, game 1: cardCycle"):
        live_games_from_text(json.dumps([one, row(options={"cardCycle": True})]), "file")
    for text in ("", "[]", "{", "no json"):
        with pytest.raises(SettingsError, match="file"):
            live_games_from_text(text, "file")


def test_only_the_real_game_is_exported(tmp_path: Path) -> None:
    laptop = scripted_episodes(EnvConfig(preset="laptop"), ["hint-bot"] * 2, [0])[0]
    with pytest.raises(SettingsError, match=r"board laptop; hanab\.live has only the real game, preset full"):
        export_game(Recording(episode=laptop))
    path = tmp_path / "laptop.jsonl"
    write_recordings(path, [Recording(episode=laptop)])
    answer = CliRunner().invoke(app, ["hanab-live", "export", str(path), "--out", str(tmp_path / "live.jsonl")])
    assert answer.exit_code == 2 and "hanab.live has only the real game" in answer.stderr


def test_the_commands_go_there_and_back(tmp_path: Path) -> None:
    games, live, back = tmp_path / "games.jsonl", tmp_path / "live.jsonl", tmp_path / "back.jsonl"
    write_recordings(games, [Recording(episode=full_episode(seed)) for seed in range(3)])
    runner = CliRunner()
    answer = runner.invoke(app, ["hanab-live", "export", str(games), "--out", str(live)])
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert answer.stderr == (
        f"games, game 2: hanab.live ends where no card can score; 2 moves are left out.\nwrote 3 games to {live}\n"
    )
    answer = runner.invoke(app, ["hanab-live", "import", str(live), "--out", str(back)])
    assert answer.exit_code == 0 and f"wrote 3 games to {back}" in answer.stderr
    recordings, notes = read_recordings([back])
    assert notes == [] and [one.players for one in recordings] == [("player_0", "player_1")] * 3
    assert runner.invoke(app, ["hanab-live", "export", str(back)]).stdout == live.read_text()
    one = runner.invoke(app, ["hanab-live", "export", str(games), "--game", "1"]).stdout
    assert json.loads(one)["players"] == ["player_0", "player_1"]
    refused = runner.invoke(app, ["hanab-live", "import", str(live), "--out", str(back)])
    assert refused.exit_code == 2 and "exists already" in refused.stderr


def test_a_refused_game_leaves_no_file(tmp_path: Path) -> None:
    source, out = tmp_path / "games.json", tmp_path / "out.jsonl"
    source.write_text(json.dumps([row(), row(options={"deckPlays": True})]))
    answer = CliRunner().invoke(app, ["hanab-live", "import", str(source), "--out", str(out)])
    assert answer.exit_code == 2 and f"{source}, game 1: deckPlays=True" in answer.stderr
    assert list(tmp_path.iterdir()) == [source]
    missing = CliRunner().invoke(app, ["hanab-live", "import", str(tmp_path / "no.json"), "--out", str(out)])
    assert missing.exit_code == 2 and "cannot be read" in missing.stderr
