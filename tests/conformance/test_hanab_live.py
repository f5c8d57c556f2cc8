"""Games of the board full to hanab.live's form and back; what others made there is read as well."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boards import random_move, scripted_episodes
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.hanab_live import export_game, import_game, import_games
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Action, Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import read_recordings, write_recordings
from hanabi_grpo.types import Episode, EpisodeStatus, Turn
from made_games import made_episode, made_turn

NUM_GAMES = 200


def careful_episode(num_players: int, seed: int, *, spoils: bool = False) -> Episode:
    """Return a game of random moves without misplays: many of them reach the last card, few of them a bomb.

    A team that spoils discards the cards that it needs, so that soon nothing can score.
    """
    spec = make_spec("full", num_players)
    game, rng = Game(spec, shuffled_deck(spec, "train", seed)), random.Random(seed)
    turns = []
    while not game.is_over:
        player = game.current_player
        action = (_spoiling_discard(game) if spoils else None) or random_move(game, rng, careful=True)
        text = format_action(action, style="full", num_players=num_players)
        turns.append(made_turn(player, text=text, num_players=num_players))
        game.apply(action)
    end = {"score": game.score, "score_kept": game.score_kept, "bombed": int(game.is_bombed)}
    return made_episode(*turns, preset="full", spec_hash=spec.hash, num_players=num_players, seed=seed, **end)


def _spoiling_discard(game: Game) -> Action | None:
    hand, fireworks = game.hands[game.current_player], game.view(0).fireworks
    wanted = (slot for slot, card in enumerate(hand) if card.rank == fireworks[card.color])
    action = Action("discard", slot=next(wanted, 0))
    return action if action in game.legal_actions() else None


def episodes(num_players: int) -> list[Episode]:
    """Return this number of players' share: hint-bots, random moves, careful ones, and teams that spoil the game."""
    count = NUM_GAMES // 4
    config = EnvConfig(preset="full", players=num_players)
    played = scripted_episodes(config, ["hint-bot"] * num_players, range(count * 2 // 5))
    played += scripted_episodes(config, ["random"] * num_players, range(count // 5))
    played += [careful_episode(num_players, seed, spoils=True) for seed in range(count // 5)]
    return played + [careful_episode(num_players, seed) for seed in range(count - len(played))]


@pytest.mark.parametrize("num_players", [2, 3, 4, 5])
def test_games_come_back_identical(num_players: int) -> None:
    num_shortened = num_bombed = num_last_round = 0
    for episode in episodes(num_players):
        exported, _ = export_game(Recording(episode=episode))
        text = json.dumps(exported)
        recording, notes = import_game(json.loads(text), "back")
        assert notes == []
        again, _ = export_game(recording)
        assert json.dumps(again) == text
        ours, theirs = episode.turns, recording.episode.turns
        kept = ours[: len(theirs)]
        assert [(turn.player, _move(turn, num_players)) for turn in kept] == [
            (turn.player, _move(turn, num_players)) for turn in theirs
        ]
        if len(kept) == len(ours):
            assert recording.episode.result == episode.result
            assert recording.episode.status == episode.status
        else:
            assert recording.episode.status is EpisodeStatus.FINISHED
            assert recording.episode.result["score"] >= episode.result["score"]
        num_shortened += len(exported["actions"]) < len(episode.turns)
        num_bombed += episode.result["bombed"] == 1
        num_last_round += len(exported["actions"]) == len(episode.turns) and not episode.result["bombed"]
    assert min(num_shortened, num_bombed, num_last_round) > 0, "a way to end was not tried"


def _move(turn: Turn, num_players: int) -> str:
    # hint-bots are worded shortly, imported games in full.
    words = turn.action.lower().split()
    letters = {"red": "r", "yellow": "y", "green": "g", "white": "w", "blue": "b"}
    words[-1] = letters.get(words[-1], words[-1])
    return " ".join(word for word in words if num_players > 2 or not word.startswith("player_"))


def others_game(players: int, deck: str, actions: str) -> tuple[Episode, list[str]]:
    cards = [{"suitIndex": COLOR_LETTERS.index(word[0]), "rank": int(word[1])} for word in deck.split()]
    moves = [
        dict(zip(("type", "target", "value"), map(int, word.split(":")), strict=False)) for word in actions.split()
    ]
    row = {"players": [f"p{seat}" for seat in range(players)], "deck": cards, "actions": moves}
    recording, notes = import_game(row, "theirs")
    return recording.episode, notes


def test_games_that_others_made_are_replayed() -> None:
    """Both games were published with other programs' tests and notes; the second ends in an action of type 4."""
    episode, notes = others_game(
        4,
        "R2 W1 Y4 G2 Y3 R3 G1 Y1 R1 B4 B1 W5 G1 R1 R3 W2 G2 B3 B1 B2 G4 G5 B1 B5 G1 Y4 Y2 Y1 R4 R5 G3 R4 G3 Y1 W3 Y3 "
        "W3 W4 W2 W1 W1 B3 Y5 R2 G4 B2 B4 Y2 R1 W4",
        "3:1:3 0:7:0 3:3:1 0:13:0 2:2:4 3:0:2 0:10:0 0:12:0 0:3:0 3:2:4 2:0:3 0:19:0 0:1:0 2:3:3 3:0:1 0:17:0 0:0:0 "
        "1:6:0 0:9:0 2:0:1 1:22:0 2:3:4 0:26:0 0:23:0 3:2:4 0:5:0 0:28:0 0:15:0 1:24:0 0:4:0 1:8:0 3:0:4 3:2:5 0:34:0 "
        "1:18:0 2:2:3 0:2:0 0:30:0 0:37:0 1:14:0 0:20:0 3:3:5 0:11:0 0:21:0 1:27:0 3:0:5 2:0:1 0:29:0 0:42:0",
    )
    assert (episode.result["score"], len(episode.turns), notes) == (25, 49, [])
    episode, notes = others_game(
        4,
        "Y2 R2 R2 G1 B1 R1 B4 R1 G3 G2 G3 Y1 Y4 W1 R4 Y2 R3 Y3 B5 R1 R5 Y5 B3 B1 G1 Y3 Y1 B2 W2 G2 W3 W1 B2 G4 W1 G1 "
        "B3 W4 W3 Y1 Y4 W5 R3 R4 W2 G4 B1 W4 B4 G5",
        "3:1:1 0:7 2:3:3 0:13 2:2:1 0:5 0:11 3:0:2 3:3:2 0:4 3:3:3 0:15 0:0 2:3:1 2:0:2 0:17 0:3 1:6 2:1:0 0:12 0:2 "
        "0:16 1:8 0:21 0:1 4:0:2",
    )
    assert (episode.result["bombed"], len(episode.turns), notes) == (1, 25, [])


# --- What is read and what is refused

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
    recording, notes = import_game(row(**changes), "game")
    return recording.episode, notes


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
        ({"options": {"numPlayers": 3}}, "numPlayers=3"),
        ({"characters": [{"name": "Fuming", "metadata": 2}]}, "characters: detrimental characters"),
        ({"firstPlayer": 1}, "firstPlayer=1"),
        ({"players": ["a", "b", "c", "d", "e", "f"]}, "at most 5 items"),
        ({"deck": [{"suitIndex": 5, "rank": 1}]}, "deck.0.suitIndex=5"),
        ({"deck": [{"suitIndex": 0, "rank": 1}] * 4}, "deck has too many R1"),
        ({"actions": [{"type": 7, "target": 0}]}, "action 0: {'type': 7, 'target': 0} is not allowed there"),
        ({"actions": [{"type": 0, "target": 5}]}, "allowed: {'type': 0, 'target': 0}, "),
        ({"actions": [{"type": 2, "target": 0, "value": 0}]}, "is not allowed there"),
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
        import_game({"players": ["a", "b"], "actions": [], "seed": "p2v0s5"}, "game")
    for nothing in ([], {}, 5, None, "text"):
        with pytest.raises(SettingsError, match="game: "):
            import_game(nothing, "game")


def test_lists_and_lines_of_games_are_read() -> None:
    one = row()
    for text in (json.dumps(one), json.dumps([one]), json.dumps(one) + "\n\n", "\ufeff" + json.dumps(one, indent=2)):
        assert len(import_games(text, "file")) == 1
    assert len(import_games(json.dumps(one) + "\n" + json.dumps(one), "file")) == 2
    with pytest.raises(SettingsError, match="file, game 1: cardCycle"):
        import_games(json.dumps([one, row(options={"cardCycle": True})]), "file")
    for text in ("", "[]", "{", "no json"):
        with pytest.raises(SettingsError, match="file"):
            import_games(text, "file")


def test_the_commands_go_there_and_back(tmp_path: Path) -> None:
    games, live, back = tmp_path / "games.jsonl", tmp_path / "live.jsonl", tmp_path / "back.jsonl"
    played = scripted_episodes(EnvConfig(preset="full"), ["hint-bot"] * 2, range(3))
    write_recordings(games, [Recording(episode=one) for one in played])
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
    laptop = scripted_episodes(EnvConfig(preset="laptop"), ["hint-bot"] * 2, [0])[0]
    write_recordings(tmp_path / "laptop.jsonl", [Recording(episode=laptop)])
    answer = CliRunner().invoke(app, ["hanab-live", "export", str(tmp_path), "--out", str(tmp_path / "live.jsonl")])
    assert answer.exit_code == 2 and "board laptop; hanab.live has only the real game, preset full" in answer.stderr
    (tmp_path / "laptop.jsonl").unlink()
    source, out = tmp_path / "games.json", tmp_path / "out.jsonl"
    source.write_text(json.dumps([row(), row(options={"deckPlays": True})]))
    answer = CliRunner().invoke(app, ["hanab-live", "import", str(source), "--out", str(out)])
    assert answer.exit_code == 2 and f"{source}, game 1: deckPlays=True" in answer.stderr
    assert list(tmp_path.iterdir()) == [source]
