"""What an evaluation counts in one game: from the moves themselves, so that scripts and models are counted alike."""

from collections.abc import Sequence
from typing import NamedTuple

from hanabi_grpo.evaluation.matches import PlayedGame
from hanabi_grpo.types import ReplyKind


class GameFacts(NamedTuple):
    """One game in numbers; shares and rates are sums of these."""

    score: int
    """OpenSpiel's scoring: 0 on a bomb."""
    kept: int
    """Points on the table at the end, kept on a bomb."""
    perfect: int
    """1 when the score is the most that the board allows."""
    bombed: int
    truncated: int
    """1 when a limit of ours, not the rules, ended the game."""
    illegal: int
    """Replies that were a move, but not a legal one; a fallback move was made instead, and counts below."""
    unparsable: int
    """Replies in which no move could be read; likewise."""
    turns: int
    hints: int
    misplays: int
    """Plays of a card that did not fit."""


def game_facts(played: PlayedGame) -> GameFacts:
    """Count one game."""
    game = played.game
    hints = misplays = 0
    for event in game.events:
        action = event.action
        if action.slot < 0:
            hints += 1
        elif action.kind == "play" and not event.scored:
            misplays += 1
    kinds = [turn.kind for turn in played.episode.turns] if played.episode else []
    score = game.score
    return GameFacts(
        score=score,
        kept=game.score_kept,
        perfect=int(score >= game.spec.reachable_max),
        bombed=int(game.is_bombed),
        truncated=int(not game.is_over),
        illegal=kinds.count(ReplyKind.ILLEGAL),
        unparsable=kinds.count(ReplyKind.UNPARSABLE),
        turns=game.num_turns,
        hints=hints,
        misplays=misplays,
    )


def totals(games: Sequence[GameFacts]) -> GameFacts:
    """Return the sum of each fact over some games, at least one."""
    return GameFacts(*map(sum, zip(*games, strict=True)))
