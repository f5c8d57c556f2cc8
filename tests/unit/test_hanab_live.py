"""Games of hanab.live become recorded games: cards, seats, ends, variants, and what is refused."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boards import random_move, scripted_episodes
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.hanab_live import (
    LiveRow,
    OtherRulesError,
    import_game,
    live_rows,
)
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rules import (
    COLOR_LETTERS,
    Action,
    Game,
    format_action,
    make_spec,
    parse_action,
    shuffled_deck,
)
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.recordings import read_recordings
from hanabi_grpo.types import Episode, EpisodeStatus
from live_games import live_game
from made_games import made_episode, made_turn

NUM_GAMES = 200
DECK = sorted_deck(5, 5)
"""R1 R1 R1 R2 R2 R3 R3 R4 R4 R5 Y1 Y1 Y1 Y2 …: player 0 has R1 R1 R1 R2 R2, player 1 R3 … R5."""


def row(**changes: Any) -> dict[str, Any]:
    """Return a game of three moves on `DECK`."""
    return {
        "players": ["Ann", "Bo"],
        "deck": [{"suitIndex": card.color, "rank": card.rank + 1} for card in DECK],
        "actions": [
            {"type": 0, "target": 0},
            {"type": 3, "target": 0, "value": 2},
            {"type": 0, "target": 3},
        ],
        **changes,
    }


def imported(data: Any, where: str = "game") -> tuple[Episode, tuple[str, ...]]:
    game = import_game(LiveRow(where=where, data=data))
    return game.recording.episode, game.notes


def careful_episode(num_players: int, seed: int, *, spoils: bool = False) -> Episode:
    """Return a game of random moves without misplays: many of them reach the last card.

    A team that spoils discards the cards that it needs, so that soon nothing can score.
    """
    spec = make_spec("full", num_players)
    game = Game(spec, shuffled_deck(spec, "train", seed))
    rng = random.Random(seed)
    turns = []
    while not game.is_over:
        player = game.current_player
        action = _spoiling_discard(game) if spoils else None
        action = action or random_move(game, rng, careful=True)
        text = format_action(action, style="full", num_players=num_players)
        turns.append(made_turn(player, text=text, num_players=num_players))
        game.apply(action)
    end = {"score": game.score, "score_kept": game.score_kept, "bombed": int(game.is_bombed)}
    return made_episode(
        *turns, preset="full", spec_hash=spec.hash, num_players=num_players, seed=seed, **end
    )


def _spoiling_discard(game: Game) -> Action | None:
    hand = game.hands[game.current_player]
    wanted = [slot for slot, card in enumerate(hand) if card.rank == game.fireworks[card.color]]
    action = Action("discard", slot=wanted[0] if wanted else 0)
    return action if action in game.legal_actions() else None


def played_episodes(num_players: int) -> list[Episode]:
    """Return games that end in every way: by hint bots, random, careful and spoiling players."""
    count = NUM_GAMES // 4
    config = EnvConfig(preset="full", players=num_players)
    episodes = scripted_episodes(config, ["hint-bot"] * num_players, range(count * 2 // 5))
    episodes += scripted_episodes(config, ["random"] * num_players, range(count // 5))
    episodes += [careful_episode(num_players, seed, spoils=True) for seed in range(count // 5)]
    num_left = count - len(episodes)
    return episodes + [careful_episode(num_players, seed) for seed in range(num_left)]


def moves_of(episode: Episode) -> list[tuple[int, Action | None]]:
    num_players = episode.num_players
    moves = []
    for turn in episode.turns:
        action = parse_action(turn.action, num_players=num_players, player=turn.player)
        moves.append((turn.player, action))
    return moves


@pytest.mark.parametrize("num_players", [2, 3, 4, 5])
def test_our_games_come_back_as_they_were(num_players: int) -> None:
    num_shortened = num_bombed = num_last_round = 0
    for episode in played_episodes(num_players):
        exported = json.loads(json.dumps(live_game(episode)))
        game = import_game(LiveRow(where="back", data=exported))
        again = game.recording.episode
        num_moves = len(exported["actions"])
        assert game.notes == ()
        assert again.status is EpisodeStatus.FINISHED
        assert game.recording.start == " ".join(
            map(str, shuffled_deck(make_spec("full", num_players), "train", episode.seed))
        )
        assert moves_of(again) == moves_of(episode)[:num_moves]
        if num_moves == len(episode.turns):
            assert again.result == episode.result
        else:
            # Behind hanab.live's end our engine plays on, and may lose its last life.
            assert again.result["score"] >= episode.result["score"]
        assert live_game_of(again, game.recording.start) == exported["actions"]
        num_shortened += num_moves < len(episode.turns)
        num_bombed += episode.result["bombed"] == 1
        num_last_round += num_moves == len(episode.turns) and not episode.result["bombed"]
    assert min(num_shortened, num_bombed, num_last_round) > 0, "a way to end was not tried"


def live_game_of(episode: Episode, start: str | None) -> list[dict[str, int]]:
    """Return a game's actions by the seed that its deck came from."""
    for seed in range(NUM_GAMES):
        deck = shuffled_deck(make_spec("full", episode.num_players), "train", seed)
        if " ".join(map(str, deck)) == start:
            return list(live_game(replace(episode, suite="train", seed=seed))["actions"])
    raise AssertionError("no such deck")


def test_a_game_replayed_by_hand() -> None:
    """Ann has cards 0 to 4 (R1 R1 R1 R2 R2), Bo 5 to 9 (R3 R3 R4 R4 R5), Y1 Y1 Y1 Y2 follow."""
    actions = [
        # Ann plays card 0, her oldest: R1 scores. She draws card 10, Y1: 1 2 3 4 10.
        {"type": 0, "target": 0},
        # Bo hints rank 2: cards 3 and 4 in slots 2 and 3. Seven hints are left.
        {"type": 3, "target": 0, "value": 2},
        # Card 3 is in slot 2: R2 scores. She draws card 11, Y1: 1 2 4 10 11.
        {"type": 0, "target": 3},
        # Bo plays card 5 in slot 0: R3 scores. He draws card 12, Y1: 6 7 8 9 12.
        {"type": 0, "target": 5},
        # Card 10, a Y1, is in slot 3: discarded, eight hints. She draws card 13, Y2: 1 2 4 11 13.
        {"type": 1, "target": 10},
        # Bo hints yellow (1): slots 3 and 4. Seven hints.
        {"type": 2, "target": 0, "value": 1},
        # Card 4, R2, does not fit on R3: a life is lost, of three.
        {"type": 0, "target": 4},
        # Bo plays card 8, in slot 2 behind 6 and 7: R4 scores.
        {"type": 0, "target": 8},
    ]
    game = import_game(LiveRow(where="game", data=row(actions=actions)))
    episode = game.recording.episode
    assert [(turn.player, turn.action) for turn in episode.turns] == [
        (0, "Play 0"),
        (1, "Hint player_0 2"),
        (0, "Play 2"),
        (1, "Play 0"),
        (0, "Discard 3"),
        (1, "Hint player_0 yellow"),
        (0, "Play 2"),
        (1, "Play 2"),
    ]
    scored = [turn.rewards[0].get("score", 0.0) for turn in episode.turns]
    assert scored == [1, 0, 1, 1, 0, 0, 0, 1]
    assert episode.result == {"score": 4, "score_kept": 4, "bombed": 0}
    assert episode.status is EpisodeStatus.TRUNCATED_TURNS
    assert game.notes == ("game: stops after 8 moves, before its end.",)
    timeline = make_timeline(game.recording)
    assert timeline.moves[1].event.touched == (2, 3)
    assert timeline.moves[5].event.touched == (3, 4)
    last = timeline.boards[-1]
    assert (last.lives, last.hints, last.fireworks) == (2, 7, (4, 0, 0, 0, 0))
    assert game.recording.players == ("Ann", "Bo")
    assert episode.seats == ("human", "human")


def others_game(players: int, deck: str, actions: str) -> tuple[Episode, tuple[str, ...]]:
    cards = []
    for word in deck.split():
        cards.append({"suitIndex": COLOR_LETTERS.index(word[0]), "rank": int(word[1])})
    moves = []
    for word in actions.split():
        numbers = map(int, word.split(":"))
        moves.append(dict(zip(("type", "target", "value"), numbers, strict=False)))
    data = {"players": [f"p{seat}" for seat in range(players)], "deck": cards, "actions": moves}
    return imported(data)


def test_games_that_others_made_are_replayed() -> None:
    """Both were published with other programs' tests; the second ends in an action of type 4."""
    episode, notes = others_game(
        4,
        "R2 W1 Y4 G2 Y3 R3 G1 Y1 R1 B4 B1 W5 G1 R1 R3 W2 G2 B3 B1 B2 G4 G5 B1 B5 G1 Y4 Y2 Y1 R4 "
        "R5 G3 R4 G3 Y1 W3 Y3 W3 W4 W2 W1 W1 B3 Y5 R2 G4 B2 B4 Y2 R1 W4",
        "3:1:3 0:7:0 3:3:1 0:13:0 2:2:4 3:0:2 0:10:0 0:12:0 0:3:0 3:2:4 2:0:3 0:19:0 0:1:0 2:3:3 "
        "3:0:1 0:17:0 0:0:0 1:6:0 0:9:0 2:0:1 1:22:0 2:3:4 0:26:0 0:23:0 3:2:4 0:5:0 0:28:0 "
        "0:15:0 1:24:0 0:4:0 1:8:0 3:0:4 3:2:5 0:34:0 1:18:0 2:2:3 0:2:0 0:30:0 0:37:0 1:14:0 "
        "0:20:0 3:3:5 0:11:0 0:21:0 1:27:0 3:0:5 2:0:1 0:29:0 0:42:0",
    )
    assert (episode.result["score"], len(episode.turns), notes) == (25, 49, ())
    episode, notes = others_game(
        4,
        "Y2 R2 R2 G1 B1 R1 B4 R1 G3 G2 G3 Y1 Y4 W1 R4 Y2 R3 Y3 B5 R1 R5 Y5 B3 B1 G1 Y3 Y1 B2 W2 "
        "G2 W3 W1 B2 G4 W1 G1 B3 W4 W3 Y1 Y4 W5 R3 R4 W2 G4 B1 W4 B4 G5",
        "3:1:1 0:7 2:3:3 0:13 2:2:1 0:5 0:11 3:0:2 3:3:2 0:4 3:3:3 0:15 0:0 2:3:1 2:0:2 0:17 0:3 "
        "1:6 2:1:0 0:12 0:2 0:16 1:8 0:21 0:1 4:0:2",
    )
    assert (episode.result["bombed"], len(episode.turns), notes) == (1, 25, ())


def test_the_player_who_starts_is_our_seat_0() -> None:
    """Of three players Cy starts: his cards 10 to 14 (Y1 Y1 Y1 Y2 Y2) are those of our seat 0."""
    actions = [
        # Cy plays card 11, his second oldest, a Y1, and draws card 15: 10 12 13 14 15.
        {"type": 0, "target": 11},
        # Ann, our seat 1, hints yellow to Cy, our seat 0.
        {"type": 2, "target": 2, "value": 1},
        # Bo, our seat 2, hints rank 1 to Ann, our seat 1.
        {"type": 3, "target": 0, "value": 1},
        {"type": 0, "target": 13},
    ]
    data = row(players=["Ann", "Bo", "Cy"], actions=actions, options={"startingPlayer": 2})
    game = import_game(LiveRow(where="game", data=data))
    assert [(turn.player, turn.action) for turn in game.recording.episode.turns] == [
        (0, "Play 1"),
        (1, "Hint player_0 yellow"),
        (2, "Hint player_1 1"),
        (0, "Play 2"),
    ]
    assert game.recording.players == ("Cy", "Ann", "Bo")
    assert game.recording.start is not None
    assert game.recording.start.startswith("Y1 Y1 Y1 Y2 Y2 R1 R1 R1 R2 R2 R3 R3 R4 R4 R5 Y3")
    assert game.recording.episode.result["score"] == 2
    make_timeline(game.recording)


def test_variants_with_fewer_suits_and_other_hands_are_boards_of_ours() -> None:
    three_suits = [{"suitIndex": card.color, "rank": card.rank + 1} for card in sorted_deck(3, 5)]
    episode, _ = imported(row(deck=three_suits, options={"variant": "3 Suits"}))
    assert (episode.preset, episode.result["score"]) == ("3x5-hand5-info8-life3", 2)
    # With a card more, Bo's are 6 to 11: card 3 is still Ann's fourth, and she draws card 12.
    episode, _ = imported(row(options={"oneExtraCard": True}))
    assert (episode.preset, episode.turns[2].action) == ("5x5-hand6-info8-life3", "Play 2")
    episode, _ = imported(row(options={"oneLessCard": True, "oneExtraCard": False}))
    assert episode.preset == "5x5-hand4-info8-life3"
    both, _ = imported(row(options={"oneLessCard": True, "oneExtraCard": True}))
    assert both.preset == "full"
    small = [{"suitIndex": card.color, "rank": card.rank + 1} for card in sorted_deck(2, 2)]
    actions = [{"type": 2, "target": 1, "value": 1}, {"type": 0, "target": 3}]
    episode, _ = imported(row(deck=small, actions=actions, options={"variant": "laptop"}))
    assert (episode.preset, episode.turns[1].action) == ("laptop", "Play 0")


def test_what_others_add_is_left_alone() -> None:
    actions = [{"type": 0, "target": 0, "value": 0}, {"type": 3, "target": 0, "value": 2, "x": 1}]
    episode, _ = imported(
        row(
            actions=[*actions, {"type": 0, "target": 3, "value": None}],
            options={
                "timed": True,
                "timeBase": 120,
                "speedrun": True,
                "cardCycle": False,
                "variant": "No Variant",
                "numPlayers": 2,
                "startingPlayer": 0,
                "variantID": 0,
                "emptyClues": 0,
            },
            notes=[["a note"], []],
            characters=[],
            id=17,
            seed="p2v0s1",
            extra={"a": 1},
        )
    )
    assert (episode.result["score"], episode.suite, episode.seed) == (2, "hanab.live", 17)
    for absent in (
        {},
        {"options": None},
        {"options": {}},
        {"characters": [{"name": "n/a", "metadata": 0}]},
    ):
        assert imported(row(**absent))[0].result["score"] == 2


def test_games_without_an_id_are_the_same_task_where_they_have_the_same_deck() -> None:
    first, _ = imported(row())
    second, _ = imported(row(actions=[]))
    other, _ = imported(row(deck=list(reversed(row()["deck"])), actions=[]))
    assert first.seed == second.seed != other.seed
    assert 0 <= first.seed < 2**63


def test_a_game_that_its_players_end_stops_there() -> None:
    actions = row()["actions"]
    for kind in (4, 5):
        ended = [*actions, {"type": kind, "target": -1, "value": 10}, *actions]
        episode, notes = imported(row(actions=ended))
        assert len(episode.turns) == 3
        assert episode.status is EpisodeStatus.TRUNCATED_TURNS
        assert notes == ("game: ended by its players or by the clock after 3 moves.",)


def test_cards_that_were_never_dealt_may_be_missing() -> None:
    short = row()["deck"][:12]
    episode, _ = imported(row(deck=short))
    assert episode.result["score"] == 2
    with pytest.raises(SettingsError, match=r"draws card 11 \(from 0\), but deck has 11 cards"):
        imported(row(deck=short[:11]))
    with pytest.raises(SettingsError, match="deck has 9 cards, but 2 players are dealt 10"):
        imported(row(deck=short[:9]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"variant": "Rainbow (6 Suits)"}}, "variant 'Rainbow (6 Suits)': our engine"),
        ({"options": {"variantID": 5}}, "option variantID=5"),
        ({"options": {"cardCycle": True}}, "option cardCycle=True"),
        ({"options": {"allOrNothing": True}}, "option allOrNothing=True"),
        ({"options": {"numPlayers": 3}}, "option numPlayers=3"),
        ({"characters": [{"name": "Fuming", "metadata": 2}]}, "character 'Fuming'"),
        ({"variant": "6 Suits"}, "variant '6 Suits'"),
        ({"players": ["a", "b", "c", "d", "e", "f"]}, "6 players: our engine supports 2 to 5"),
    ],
)
def test_other_rules_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OtherRulesError, match=r"[Ll]eave the game out") as refused:
        imported(row(**changes), "games.json, line 7")
    assert str(refused.value).startswith(f"games.json, line 7: {message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"firstPlayer": 2}, "startingPlayer=2: must be a player from 0 to 1"),
        ({"options": {"startingPlayer": "Bo"}}, "startingPlayer='Bo': must be a player"),
        ({"options": {"startingPlayer": 1.0}}, "startingPlayer=1.0: must be a player"),
        ({"players": ["a"]}, "at least 2 items"),
        ({"players": None}, "players=None"),
        ({"deck": [{"suitIndex": 0, "rank": 1}] * 10}, "7 too many of suitIndex 0"),
        ({"deck": [{"suitIndex": 5, "rank": 1}] * 10}, "10 too many of suitIndex 5"),
        ({"deck": [{"suitIndex": -1, "rank": 1}]}, "deck.0.suitIndex=-1"),
        (
            {"actions": [{"type": 7, "target": 0}]},
            '{"type": 7, "target": 0} is not legal at this point',
        ),
        ({"actions": [{"type": 0, "target": 5}]}, 'allowed: {"type": 0, "target": 0}, '),
        ({"actions": [{"type": 2, "target": 0, "value": 0}]}, "is not legal at this point"),
        ({"actions": [{"type": 3, "target": 1, "value": 1}]}, "is not legal at this point"),
        ({"actions": [{"type": 1, "target": 0}]}, "is not legal at this point"),
        ({"actions": [{"type": 0}]}, "actions.0.target: Field required"),
    ],
)
def test_damaged_games_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        imported(row(**changes), "games.json")
    assert not isinstance(refused.value, OtherRulesError)
    assert str(refused.value).startswith("games.json")
    assert message in str(refused.value)


def test_a_game_without_its_deck_says_where_to_get_it() -> None:
    with pytest.raises(SettingsError, match=r"deck is missing.*hanab.live/export/ID"):
        imported({"players": ["a", "b"], "actions": [], "seed": "p2v0s5"})
    for nothing in ([], {}, 5, None, "text"):
        with pytest.raises(SettingsError, match=r"^game: "):
            imported(nothing)


def test_lists_and_lines_of_games_are_read() -> None:
    one = json.dumps(row())
    for text in (one, f"[{one}]", f"{one}\n\n", "\ufeff" + json.dumps(row(), indent=2)):
        [single] = live_rows(text, "file")
        assert (single.where in ("file", "file, line 1"), single.data) == (True, row())
    names = [live.where for live in live_rows(f"{one}\nbroken\n{one}", "file")]
    assert names == ["file, line 1", "file, line 2", "file, line 3"]
    assert [live.where for live in live_rows(f"[{one}, 7]", "file")] == [
        "file, game 0",
        "file, game 1",
    ]
    with pytest.raises(SettingsError, match="file, line 2: not valid JSON"):
        import_game(list(live_rows(f"{one}\nbroken", "file"))[1])
    for text in ("", " \n", "[]"):
        with pytest.raises(SettingsError, match="file: contains no games"):
            list(live_rows(text, "file"))


def test_a_text_that_is_nested_too_deeply_is_no_json_and_the_other_lines_are_read() -> None:
    deep = "[" * 100_000
    rows = list(live_rows(f"{deep}\n{json.dumps(row())}", "file"))
    assert [live.where for live in rows] == ["file, line 1", "file, line 2"]
    with pytest.raises(SettingsError, match="file, line 1: not valid JSON"):
        import_game(rows[0])
    assert rows[1].data == row()


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_a_note_may_hold_a_separator_of_lines_that_json_leaves_as_it_is(separator: str) -> None:
    data = row(notes=[[f"my{separator}note"], []])
    line = json.dumps(data, ensure_ascii=False)
    first, second = live_rows(f"{line}\r\n \r\n{line}", "file")
    assert (first.data, second.data) == (data, data)
    assert (first.where, second.where) == ("file, line 1", "file, line 3")


# --- The command


def invoke(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["import-hanab-live", *map(str, words)])


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """A folder with six games of two files, two of which cannot be replayed."""
    folder = tmp_path / "exports"
    folder.mkdir()
    config = EnvConfig(preset="full", players=3)
    three = [live_game(game) for game in scripted_episodes(config, ["iggi"] * 3, range(2))]
    lines = [row(id=1), row(options={"variant": "6 Suits"}), *three]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "a.jsonl").write_text(text + "{broken\n")
    (folder / "b.json").write_text(json.dumps(row(id=2, actions=[{"type": 4, "target": 0}])))
    (folder / "readme.txt").write_text("no games")
    return folder


def test_games_are_imported_by_board_and_those_that_cannot_be_replayed_counted(
    exports: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = invoke(exports, "--out", out, "--bad", "skip")
    assert result.exit_code == 0, result.output
    assert "a.jsonl, line 2: variant '6 Suits'" in result.stdout
    assert "skipped: 1 with other rules, 1 damaged" in result.stdout
    assert f"wrote 2 games to {out / 'full-2.jsonl'}, mean score 1.00" in result.stdout
    assert f"wrote 2 games to {out / 'full-3.jsonl'}, mean score" in result.stdout
    two, notes = read_recordings([out / "full-2.jsonl"])
    assert notes == []
    assert [game.episode.seed for game in two] == [1, 2]
    assert two[0].players == ("Ann", "Bo")
    for game in (*two, *read_recordings([out / "full-3.jsonl"])[0]):
        make_timeline(game)
    shown = CliRunner().invoke(app, ["view", str(out / "full-2.jsonl"), "--game", "0"])
    assert shown.exit_code == 0
    assert "Ann (player_0)" in shown.stdout
    page = tmp_path / "games.html"
    assert CliRunner().invoke(app, ["view", str(out), "--html", str(page)]).exit_code == 0
    assert "Ann" in page.read_text()
    again = invoke(exports, "--out", out, "--bad", "skip")
    assert (again.exit_code, "full-2.jsonl already exists" in again.stderr) == (2, True)


def test_a_name_with_half_a_character_is_written_with_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "game.json").write_text(json.dumps(row(players=["Ann", "B\ud83d"])))
    result = invoke(tmp_path / "game.json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    [game], _ = read_recordings([tmp_path / "out" / "full-2.jsonl"])
    assert game.players == ("Ann", "B?")


def test_unfinished_games_can_be_left_out(exports: Path, tmp_path: Path) -> None:
    result = invoke(exports, "--out", tmp_path / "out", "--bad", "skip", "--finished")
    assert result.exit_code == 0, result.output
    assert "skipped: 2 unfinished" in result.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["full-3.jsonl"]
    only = invoke(exports / "b.json", "--out", tmp_path / "none", "--finished")
    assert only.exit_code == 2
    assert "no game is left: 1 skipped; give other files, or omit --finished." in only.stderr


def test_what_skipped_every_game_is_named(exports: Path, tmp_path: Path) -> None:
    games = tmp_path / "games.json"
    games.write_text(json.dumps([row(options={"variant": "6 Suits"}), {"id": 5}]))
    result = invoke(games, "--out", tmp_path / "out", "--bad", "skip")
    assert result.exit_code == 2
    assert "no game is left: 2 skipped; give other files." in result.stderr
    assert "--finished" not in result.stderr


def test_the_command_that_shows_imported_games_can_be_typed(exports: Path, tmp_path: Path) -> None:
    out = tmp_path / "my games"
    result = invoke(exports, "--out", out, "--bad", "skip")
    assert f"watch them: hanabi-grpo view '{out / 'full-2.jsonl'}'" in result.stdout


def test_a_bad_game_stops_an_import_and_leaves_no_file(exports: Path, tmp_path: Path) -> None:
    result = invoke(exports, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "a.jsonl, line 2: variant '6 Suits'" in result.stderr
    assert "Use --bad skip to skip such games" in result.stderr
    assert not (tmp_path / "out").exists()
    for missing in (tmp_path / "nothing.json", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        result = invoke(missing, "--out", tmp_path / "out")
        assert (result.exit_code, str(missing) in result.stderr) == (2, True)


def test_conventions_are_counted_on_imported_games(tmp_path: Path) -> None:
    config = EnvConfig(preset="full", players=2)
    games = scripted_episodes(config, ["hint-bot"] * 2, range(6))
    file = tmp_path / "exports.json"
    file.write_text(json.dumps([live_game(game) for game in games]))
    assert invoke(file, "--out", tmp_path / "out").exit_code == 0
    result = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--conventions"])
    assert result.exit_code == 0, result.output
    assert "6 games" in result.output
