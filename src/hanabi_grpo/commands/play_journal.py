"""A game on disk after every move.

The file holds what the game needs to be played again up to where it stopped: the deal, who sits where, and every reply
so far. It is not for the eyes of the person who plays: prompts of models show the person's cards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import Policy, Seat
from hanabi_grpo.envs.hanabi.prompts import parse_reply
from hanabi_grpo.envs.hanabi.rules import Event, GameSpec, PlayerView
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.refs import HUMAN, is_scripted
from hanabi_grpo.types import MAX_PLAYERS, Reply, player_name

SUFFIX = ".unfinished.json"

_Count = Annotated[int, Field(ge=0)]
_Words = Annotated[tuple[str, ...], Field(min_length=2, max_length=MAX_PLAYERS)]


class SavedReply(BaseModel):
    """One reply of a game, in turn order; the fields are those of `types.Reply`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    player: _Count
    text: str
    prompt: str = ""
    prompt_ids: tuple[_Count, ...] = ()
    reply_ids: tuple[_Count, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int | None = None


class SavedGame(BaseModel):
    """A game that is being played."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: Literal["hanabi-grpo play 1"] = "hanabi-grpo play 1"
    env_config: EnvConfig
    spec_hash: str
    words: _Words
    """Per seat, as it was typed, see `lineups`."""
    seats: _Words
    """Per seat, who really sits there, see `refs`; "human" for the person."""
    suite: str
    seed: _Count
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0)]
    out: str
    """Where the game goes when it is over."""
    replies: tuple[SavedReply, ...] = ()


@dataclass(slots=True, kw_only=True)
class Journal:
    """The replies of one game, written after each."""

    path: Path
    game: SavedGame
    replies: list[SavedReply] = field(default_factory=list)

    def save(self) -> None:
        """Write the file.

        Raises:
            SettingsError: It cannot be written; an earlier version of it is untouched.
        """
        row = self.game.model_dump(mode="json")
        row["replies"] = [reply.model_dump(mode="json") for reply in self.replies]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(self.path, row)
        except OSError as error:
            raise SettingsError(
                f"{self.path}: the game cannot be written ({error.strerror}); make room there, or choose another "
                "place by --out."
            ) from error

    def add(self, player: int, reply: Reply) -> None:
        """Keep one reply."""
        kept = {name: getattr(reply, name) for name in SavedReply.model_fields if name != "player"}
        self.replies.append(SavedReply(player=player, **kept))
        self.save()

    def said(self, player: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return a player's conversation so far: prompts and the ids of replies."""
        return tuple((one.prompt, one.reply_ids) for one in self.replies if one.player == player)

    def note(self, number: int, event: Event) -> str:
        """Tell of a past move that it was not what its player had answered."""
        num_players = len(self.game.seats)
        meant = parse_reply(self.replies[number].text, num_players=num_players, player=event.player)
        return "" if meant == event.action else "(Its reply was no legal move; this one was drawn in its place.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledPolicy:
    """Writes down what another policy replies, and plays again what was written before."""

    policy: Policy
    journal: Journal
    word: str
    """Who sits there, see `SavedGame.seats`."""

    @property
    def name(self) -> str:
        """The other policy's name."""
        return self.policy.name

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "JournaledSeat":
        """Return the seat of one game."""
        inner = self.policy.seat(player, spec=spec, suite=suite, seed=seed, game=game)
        return JournaledSeat(inner, self)


class JournaledSeat:
    """One seat of the game that the journal holds."""

    def __init__(self, seat: Seat, policy: JournaledPolicy) -> None:
        self._seat, self._policy = seat, policy

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        """Return the reply that is written for this turn, else a new one.

        Raises:
            SettingsError: What is written does not fit the game.
        """
        journal, turn = self._policy.journal, len(view.events)
        if turn < len(journal.replies):
            return await self._again(journal.replies[turn], view, prompt, f"{journal.path}: reply {turn + 1}")
        reply = await self._seat.reply(view, prompt)
        # A lone surrogate can be in a `str` but not in UTF-8.
        reply = replace(reply, text=reply.text.encode("utf-8", "replace").decode("utf-8"))
        if not reply.out_of_tokens:
            journal.add(view.player, reply)
        return reply

    async def _again(self, saved: SavedReply, view: PlayerView, prompt: Callable[[], str], where: str) -> Reply:
        if saved.player != view.player:
            raise SettingsError(f"{where} is {player_name(saved.player)}'s, but {player_name(view.player)} is to move.")
        if is_scripted(self._policy.word):
            # Asked again, so that its random numbers are where they were.
            now = (await self._seat.reply(view, prompt)).text
            if now != saved.text:
                raise SettingsError(
                    f"{where} is {saved.text[:40]!r}, but {self._policy.word} now plays {now!r}: the file is of "
                    "another version of hanabi_grpo, or was changed. Go on with that version, or start another game."
                )
        elif self._policy.word == HUMAN:
            move = parse_reply(saved.text, num_players=view.num_players, player=view.player)
            if move not in view.legal_actions:
                raise SettingsError(f"{where}, {saved.text[:40]!r}, is no legal move there; the file was changed.")
        return Reply(**{name: value for name, value in dict(saved).items() if name != "player"})


def journal_policies(policies: Sequence[Policy], journal: Journal) -> list[JournaledPolicy]:
    """Return policies whose replies the journal keeps, one per seat."""
    return [
        JournaledPolicy(policy=policy, journal=journal, word=word)
        for policy, word in zip(policies, journal.game.seats, strict=True)
    ]


def read_journal(path: Path) -> Journal:
    """Return a game to go on with.

    Raises:
        SettingsError: The file cannot be read, is no such game, or is of another board of that name.
    """
    try:
        game = SavedGame.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"--resume {path}: cannot be read ({error.strerror}).") from error
    except ValidationError as error:
        raise SettingsError(
            f"--resume {path}: no unfinished game ({_first(error.errors()[0])}); such a file ends in {SUFFIX}."
        ) from error
    spec = game.env_config.spec()
    players = {len(game.words), len(game.seats), spec.num_players}
    if len(players) != 1 or game.seats.count(HUMAN) != 1:
        raise SettingsError(f"--resume {path}: one seat per player and one person; it has {', '.join(game.seats)}.")
    if spec.hash != game.spec_hash:
        raise SettingsError(
            f"--resume {path}: begun on a board {spec.preset} with hash {game.spec_hash}; here that board is "
            f"{spec.hash}. Go on with the version of hanabi_grpo that began it."
        )
    return Journal(path=path, game=game, replies=list(game.replies))


def _first(problem: Any) -> str:
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
