"""The board and the deck of a recorded game."""

import re

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Card, GameSpec, make_spec, recorded_spec, shuffled_deck
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import GameParameterError, SettingsError

IMPORTED_SUITE = "hanab.live"
"""Suite of games whose deck is written beside them; `seed` is their number at hanab.live, 0 where there is none."""

_CARD = re.compile(rf"([{COLOR_LETTERS}])([1-5])", re.ASCII)


def recorded_board(recording: Recording) -> GameSpec:
    """Return the board.

    Raises:
        SettingsError: This version has no such board, or another one of that name.
    """
    episode = recording.episode
    try:
        spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
    except GameParameterError as error:
        raise SettingsError(f"{recording.where}: {error}") from error
    if spec is None:
        here = make_spec(episode.preset, episode.num_players).hash
        raise SettingsError(
            f"{recording.where}: recorded on a board {episode.preset} with hash {episode.spec_hash}; here that board "
            f"is {here}. Watch it with the version of hanabi_grpo that recorded it."
        )
    return spec


def recorded_deck(recording: Recording) -> tuple[Card, ...]:
    """Return the deck, first card dealt first.

    Raises:
        SettingsError: The deck is missing or none, or (suite, seed) names none.
    """
    episode = recording.episode
    if recording.start is not None:
        return tuple(_card(word, recording.where) for word in recording.start.split())
    if episode.suite == IMPORTED_SUITE:
        raise SettingsError(f"{recording.where}: an imported game without its deck (`start`); import it again.")
    try:
        return shuffled_deck(recorded_board(recording), episode.suite, episode.seed)
    except GameParameterError as error:
        raise SettingsError(f"{recording.where}: {error}") from error


def _card(word: str, where: str) -> Card:
    match = _CARD.fullmatch(word)
    if match is None:
        raise SettingsError(f"{where}: deck: {word[:20]!r} is no card; a card is one of {COLOR_LETTERS} and 1 to 5.")
    return Card(COLOR_LETTERS.index(match[1]), int(match[2]) - 1)
