"""A player's conversation in one game as exactly the ids of a rollout."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.envs.base import FORFEIT, SKIP, Game, Observation, Setup
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.types import ReplyKind, Turn, player_name

_Played = tuple[Turn, tuple[str, str], bool]
"""A turn, what was shown and done in it, and whether its reply is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Turns games into samples."""

    setup: Setup[Any]
    """What was played, and how it is worded."""
    chat: ChatFormat
    max_model_len: int
    """Tokens of a conversation; as in a rollout, a turn that might not fit ends it."""
    max_completion_length: int
    """Most tokens of a reply."""
    counts: Counter[str] = field(default_factory=Counter)
    """What became of the games that were read, see `line`."""

    def line(self) -> str:
        """Return the counts as one line."""
        count = self.counts
        left_out = f", {count['left out']} left out by the filters" if count["left out"] else ""
        cut = f"; {count['cut']} conversations cut at HANABI_MAX_MODEL_LEN" if count["cut"] else ""
        return (
            f"{count['games']} games{left_out}; {count['recorded'] + count['encoded']} of "
            f"{count['replies']} replies "
            f"are learned: {count['recorded']} by their recorded tokens, {count['encoded']} "
            "encoded from their text"
            f"{cut}"
        )

    def samples(self, game: Recording, is_taught: Sequence[bool]) -> list[Sample]:
        """Return a sample for each player who has something to teach.

        `is_taught` says for each turn whether its reply is learned; the others are only read. A
        game of other prompts, or one that the rules forbid, is a SettingsError."""
        turns = game.episode.turns
        begun, start_id = self.setup.environment.recorded(self.setup.config, game)
        played = list(
            zip(turns, _replay(begun, game, self.setup.config.window), is_taught, strict=True)
        )
        start = int.from_bytes(hashlib.sha256(start_id.encode()).digest()[:8])
        self.counts.update(games=1, replies=len(turns))
        samples = []
        for player in range(self.setup.spec.num_players):
            own = [one for one in played if one[0].player == player]
            for ids, marks in self._conversations(player, own, game.where):
                if any(marks):
                    samples.append(Sample(player=player, start=start, ids=ids, is_reply=marks))
        return samples

    def _conversations(
        self, player: int, turns: Sequence[_Played], where: str
    ) -> "Iterator[tuple[array[int], array[int]]]":
        """Yield ids and marks of a player's whole game, or of each turn where it remembers no
        more.
        """
        window = self.setup.config.window
        conversation = Conversation(
            self.chat, self.setup.environment.system(self.setup.config, player), window
        )
        marks, end = array("b"), 0
        for turn, (shown, action), taught in turns:
            added = conversation.ask(shown)
            if len(conversation.ids) + self.max_completion_length > self.max_model_len:
                self.counts["cut"] += 1
                break
            # In a window, a game that was recorded without one has the ids by which its
            # conversations grew.
            grown = (
                self.chat.follow(self.chat.eos_id, shown)
                if window and turn.reply_ids
                else conversation.ids
            )
            reply, is_recorded = self._reply_ids(turn, action, (added, grown))
            if taught and len(reply) > self.max_completion_length:
                raise SettingsError(
                    f"{where}: {turn.reply[:60]!r} has {len(reply)} tokens in this model's "
                    "vocabulary, but no rollout "
                    f"can say more than MAX_COMPLETION_LENGTH={self.max_completion_length}; raise "
                    "it."
                )
            conversation.answer(reply)
            marks.extend([0] * len(added) + [int(taught)] * len(reply))
            if taught:
                self.counts["recorded" if is_recorded else "encoded"] += 1
                end = len(marks)
            if window is not None:
                yield array("i", conversation.ids[:end]), marks[:end]
                marks, end = array("b"), 0
        yield array("i", conversation.ids[:end]), marks[:end]

    def _reply_ids(
        self, turn: Turn, action: str, prompts: Sequence[list[int]]
    ) -> tuple[list[int], bool]:
        """Return the ids of a reply and whether they are the recorded ones.

        The recorded ids are used where our tokenizer makes the recorded ids before them (`prompts`:
        of this message, of the whole sequence), and gives back the recorded text."""
        tokenizer: Any = self.chat.tokenizer
        ids, before = list(turn.reply_ids), list(turn.prompt_ids)
        if (
            ids
            and before in prompts
            and max(ids) < len(tokenizer)
            and self.chat.decode(ids) == turn.reply
        ):
            return ids, True
        # Scripts and people choose an action; its wording is the environment's.
        text = action if not ids and turn.kind is ReplyKind.LEGAL else turn.reply
        return [*tokenizer.encode(text, add_special_tokens=False), self.chat.eos_id], False


def _replay(game: Game, recording: Recording, window: int | None) -> list[tuple[str, str]]:
    """Play a game again from its start; returns what was shown at each turn, and the action in
    today's words.
    """
    played: list[tuple[str, str]] = []
    for _, group in groupby(recording.episode.turns, lambda turn: turn.step):
        actions = {}
        for turn in (turns := list(group)):
            where = f"{recording.where}, turn {len(played)}"
            if turn.player not in game.to_act() or len(turns) != len(game.to_act()):
                raise SettingsError(
                    f"{where}: {player_name(turn.player)} is not to act; the record is damaged."
                )
            seen = Observation(game, turn.player, window)
            shown, legal = seen.message(), seen.legal()
            if turn.prompt and turn.prompt != shown:
                raise SettingsError(
                    f"{where}: recorded with the prompt {turn.prompt[:60]!r}, here it is "
                    f"{shown[:60]!r}; set the "
                    "variables of the game as they were, such as HANABI_OBSERVATION and "
                    "HANABI_LEGAL_MOVES."
                )
            is_known = legal is None or turn.action in (FORFEIT, SKIP)
            action = turn.action if is_known else game.parse(turn.player, turn.action)
            if action is None or not (is_known or action in (legal or ())):
                raise SettingsError(
                    f"{where}: {turn.action[:40]!r} is not legal here; the record is damaged."
                )
            actions[turn.player] = action
            played.append((shown, action))
        game.step(actions)
    return played
