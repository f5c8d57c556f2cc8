"""Games of the board full to hanab.live's form and back; what others made there is read as well.

HANAB_LIVE_GAMES sets how many games are tried (200; 1000 before a release).
"""

import json
import os
import random

import pytest

from boards import random_move, scripted_episodes
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.hanab_live import export_game, import_game, nothing_can_score
from hanabi_grpo.envs.hanabi.replays.live_game import live_game_from_json, live_game_to_json
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Action, Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.types import Episode, EpisodeStatus, Turn
from made_games import made_episode, made_turn

NUM_GAMES = int(os.environ.get("HANAB_LIVE_GAMES", "200"))


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
        text = json.dumps(live_game_to_json(exported))
        back = live_game_from_json(json.loads(text), "json")
        assert back.deck == exported.deck and back.actions == exported.actions
        recording, notes = import_game(back, "back")
        assert notes == []
        again, _ = export_game(recording)
        assert json.dumps(live_game_to_json(again)) == text
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
        num_shortened += len(exported.actions) < len(episode.turns)
        num_bombed += episode.result["bombed"] == 1
        num_last_round += len(exported.actions) == len(episode.turns) and not episode.result["bombed"]
    assert min(num_shortened, num_bombed, num_last_round) > 0, "a way to end was not tried"


def _move(turn: Turn, num_players: int) -> str:
    # hint-bots are worded shortly, imported games in full.
    words = turn.action.lower().split()
    letters = {"red": "r", "yellow": "y", "green": "g", "white": "w", "blue": "b"}
    words[-1] = letters.get(words[-1], words[-1])
    return " ".join(word for word in words if num_players > 2 or not word.startswith("player_"))


def test_the_end_is_where_no_copy_of_a_fitting_card_is_left() -> None:
    spec = make_spec("full", 2)
    for seed in range(10):
        game, rng = Game(spec, shuffled_deck(spec, "train", seed)), random.Random(seed)
        while not game.is_over:
            fireworks, discards = game.view(0).fireworks, game.view(0).discards
            fitting = [card for card in set(game.deck) if card.rank == fireworks[card.color]]
            left = [card for card in fitting if game.deck.count(card) > discards.count(card)]
            assert nothing_can_score(game) == (not left)
            game.apply(random_move(game, rng, careful=True))


def others_game(players: int, deck: str, actions: str) -> tuple[Episode, list[str]]:
    cards = [{"suitIndex": COLOR_LETTERS.index(word[0]), "rank": int(word[1])} for word in deck.split()]
    moves = [
        dict(zip(("type", "target", "value"), map(int, word.split(":")), strict=False)) for word in actions.split()
    ]
    row = {"players": [f"p{seat}" for seat in range(players)], "deck": cards, "actions": moves}
    recording, notes = import_game(live_game_from_json(row, "theirs"), "theirs")
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
