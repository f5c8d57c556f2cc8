"""Games of the board full to hanab.live's two forms and back; what hanab.live itself writes is read as well.

HANAB_LIVE_GAMES sets how many games are tried (200; 1000 before a release).
"""

import json
import os
import random

import pytest

from boards import random_move
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import HintBot, RandomPolicy
from hanabi_grpo.envs.hanabi.replays.compact import compact, expand
from hanabi_grpo.envs.hanabi.replays.hanab_live import export_game, import_game, nothing_can_score
from hanabi_grpo.envs.hanabi.replays.live_game import LiveAction, live_game_from_json, live_game_to_json
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.rules import Action, Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

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
        turns.append(Turn(player=player, prompt="", reply=text, action=text, kind=ReplyKind.LEGAL, rewards={}))
        game.apply(action)
    status = EpisodeStatus.BOMBED if game.is_bombed else EpisodeStatus.FINISHED
    return Episode(
        preset="full", spec_hash=spec.hash, num_players=num_players, suite="train", seed=seed, status=status,
        score=game.score, score_kept=game.score_kept, turns=tuple(turns),
    )  # fmt: skip


def _spoiling_discard(game: Game) -> Action | None:
    hand, fireworks = game.hands[game.current_player], game.view(0).fireworks
    wanted = (slot for slot, card in enumerate(hand) if card.rank == fireworks[card.color])
    action = Action("discard", slot=next(wanted, 0))
    return action if action in game.legal_actions() else None


def episodes(num_players: int) -> list[Episode]:
    """Return this number of players' share: hint-bots, random moves, careful ones, and teams that spoil the game."""
    count = NUM_GAMES // 4
    config = EnvConfig(preset="full", players=num_players)
    played = play_episodes_sync(config, [HintBot()] * num_players, "train", range(count * 2 // 5))
    played += play_episodes_sync(config, [RandomPolicy()] * num_players, "train", range(count // 5))
    played += [careful_episode(num_players, seed, spoils=True) for seed in range(count // 5)]
    return played + [careful_episode(num_players, seed) for seed in range(count - len(played))]


@pytest.mark.parametrize("num_players", [2, 3, 4, 5])
def test_games_come_back_identical_from_both_forms(num_players: int) -> None:
    num_shortened = num_bombed = num_last_round = 0
    for episode in episodes(num_players):
        exported = export_game(Recording(episode=episode)).game
        text = json.dumps(live_game_to_json(exported))
        fragment = compact(exported)
        for back in (live_game_from_json(json.loads(text), "json"), expand(fragment)):
            assert back.deck == exported.deck and back.actions == exported.actions
            imported = import_game(back, "back")
            assert imported.notes == ()
            recording = imported.recording
            again = export_game(recording).game
            assert compact(again) == fragment
            ours, theirs = episode.turns, recording.episode.turns
            kept = ours[: len(theirs)]
            assert [(turn.player, _move(turn, num_players)) for turn in kept] == [
                (turn.player, _move(turn, num_players)) for turn in theirs
            ]
            if len(kept) == len(ours):
                assert recording.episode.score == episode.score
                assert recording.episode.status == episode.status
            else:
                assert recording.episode.status is EpisodeStatus.FINISHED
                assert recording.episode.score >= episode.score
        assert json.dumps(live_game_to_json(again)).split('"deck"')[1] == text.split('"deck"')[1]
        num_shortened += len(exported.actions) < len(episode.turns)
        num_bombed += episode.status is EpisodeStatus.BOMBED
        num_last_round += len(exported.actions) == len(episode.turns) and episode.status is EpisodeStatus.FINISHED
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


def test_games_that_others_made_are_replayed() -> None:
    # Both URLs were published with other programs' tests and notes; the second ends in an action of type 4.
    first = expand(
        "https://hanab.live/replay-json/415bpilhckfaxutkacql-wuvnouykigfdemdmfrhr-sqppwjbnvxgas,03tbeh-"
        "ldenwcpaekemedxcsaet-ebsdlaereafgejkafwwd-e0exxcefe2epfyeefixa-1ce8fsscece4eBfoeu1d-elevf11akae3eG,0,p4v0s9#31"
    )
    assert (len(first.players), len(first.deck), len(first.actions)) == (4, 50, 49)
    assert [str(card) for card in first.deck[:4]] == ["R2", "W1", "Y4", "G2"]
    episode = import_game(first, "first").recording.episode
    assert (episode.status, episode.score, len(episode.turns)) == (EpisodeStatus.FINISHED, 25, 49)
    second = expand(
        "415gbbkuaxamlmfipdgchyaejwukhfvqlrpvnpkwsrfitcdqnusxo,05pbah0danocafalvavdae1dapaaoduaaradbgibamacaqbiavabwa,0"
    )
    assert second.actions[0] == LiveAction(type=3, target=1, value=1)
    assert second.actions[-1] == LiveAction(type=4, target=0, value=2)
    imported = import_game(second, "second")
    assert imported.notes == ()
    episode = imported.recording.episode
    assert (episode.status, episode.score, len(episode.turns)) == (EpisodeStatus.BOMBED, 0, 25)
    # Written again, types are 0 to 3 and the mark of the end is gone.
    assert compact(export_game(imported.recording).game) == (
        "415gbbkuaxamlmfipdgc-hyaejwukhfvqlrpvnpkw-srfitcdqnusxo,03lbah-sdankcafalpapdaetdap-aakdoaaradbggbamacaq-biavab,0"
    )
