"""Games as files hold them: an episode a line, and beside it what an episode cannot name.

An episode names its deal by (suite, seed). A game from elsewhere has a deck that no seed deals: its line carries the
deck itself in `deck`, e.g. "R1 Y4 ...", and `names`, the players' own; readers of episodes leave both keys alone.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.deal import HanabiGame
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Card, Game, GameSpec, make_spec, recorded_spec, shuffled_deck
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.types import Episode, player_names

IMPORTED_SUITE = "hanab.live"
"""Suite of games whose deck is written beside them; `seed` is their number at hanab.live, 0 where there is none."""

_CARD = re.compile(rf"([{COLOR_LETTERS}])([1-5])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One game of a file."""

    episode: Episode
    number: int = 0
    """Place among the games that were read together, from 0; people choose a game by it."""
    source: str = ""
    """File it came from, without folder and suffix, e.g. "step_000030"."""
    deck: tuple[Card, ...] | None = None
    """The deck of a game that no (suite, seed) deals."""
    names: tuple[str, ...] = ()
    """What the players are called elsewhere; empty: `player_0`, …"""

    @property
    def players(self) -> tuple[str, ...]:
        """Names of all players, in turn order."""
        return self.names or player_names(self.episode.num_players)

    def spec(self) -> GameSpec:
        """Return the board.

        Raises:
            SettingsError: This version has no such board, or another one of that name.
        """
        episode = self.episode
        try:
            spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
        except GameParameterError as error:
            raise SettingsError(f"{self.where}: {error}") from error
        if spec is None:
            here = make_spec(episode.preset, episode.num_players).hash
            raise SettingsError(
                f"{self.where}: recorded on a board {episode.preset} with hash {episode.spec_hash}; here that board "
                f"is {here}. Watch it with the version of hanabi_grpo that recorded it."
            )
        return spec

    def cards(self) -> tuple[Card, ...]:
        """Return the deck, first card dealt first.

        Raises:
            SettingsError: The deck is missing, or (suite, seed) names none.
        """
        if self.deck is not None:
            return self.deck
        if self.episode.suite == IMPORTED_SUITE:
            raise SettingsError(f"{self.where}: an imported game without its `deck`; import it again.")
        try:
            return shuffled_deck(self.spec(), self.episode.suite, self.episode.seed)
        except GameParameterError as error:
            raise SettingsError(f"{self.where}: {error}") from error

    def start(self, setup: base.Setup[Any]) -> base.Game:
        """Return the game at its start, as `setup` words it; a Hanabi deck is the recorded one.

        Raises:
            SettingsError: The setup plays something else.
        """
        episode, spec = self.episode, setup.spec
        board = self.spec() if episode.env == spec.env == "hanabi" else None
        same_rules = board is not None and board.rules_hash == setup.config.spec().rules_hash
        if not same_rules and (episode.env, episode.spec_hash) != (spec.env, spec.hash):
            raise SettingsError(
                f"{self.where}: a game of {episode.preset} with {episode.num_players} players, wanted {spec.preset} "
                f"with {spec.num_players} ({spec.env}, rules {spec.hash}); choose by --preset and --players (or "
                "HANABI_PRESET and HANABI_PLAYERS)."
            )
        if board is not None:
            return HanabiGame(setup.config, Game(board, self.cards()))
        return setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)

    def start_id(self, setup: base.Setup[Any]) -> str:
        """Return the name of the start, see `Environment.start_id`; of Hanabi that of the recorded deck."""
        if setup.spec.env == "hanabi":
            return hashlib.sha256(" ".join(map(str, self.cards())).encode()).hexdigest()[:16]
        return setup.environment.start_id(setup.config, split=self.episode.suite, seed=self.episode.seed)

    @property
    def where(self) -> str:
        """What errors call this game."""
        return f"{self.source or 'recording'}, game {self.number}"


def read_deck(text: str, where: str) -> tuple[Card, ...]:
    """Return the cards of e.g. "R1 Y4".

    Raises:
        SettingsError: A word is no card.
    """
    cards = []
    for word in text.split():
        match = _CARD.fullmatch(word)
        if match is None:
            raise SettingsError(
                f"{where}: deck: {word[:20]!r} is no card; a card is one of {COLOR_LETTERS} and 1 to 5."
            )
        cards.append(Card(COLOR_LETTERS.index(match[1]), int(match[2]) - 1))
    return tuple(cards)
