"""A player's conversation in one game as exactly the ids of a rollout."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import system_prompt, turn_prompt
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.rules import Action, Game, format_action, parse_action
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.types import ReplyKind, Turn


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of the games that were read."""

    games: int = 0
    games_left_out: int = 0
    """By a filter."""
    replies: int = 0
    replies_learned: int = 0
    recorded: int = 0
    """Learned replies whose recorded ids are used."""
    encoded: int = 0
    """Learned replies whose text was encoded: a script's, a person's, or another tokenizer's."""
    cut: int = 0
    """Conversations that outgrew the model's context and end before it."""

    def line(self) -> str:
        """Return all of it as one line."""
        left_out = f", {self.games_left_out} left out by the filters" if self.games_left_out else ""
        cut = f"; {self.cut} conversations cut at HANABI_MAX_MODEL_LEN" if self.cut else ""
        return (
            f"{self.games} games{left_out}; {self.replies_learned} of {self.replies} replies are learned: "
            f"{self.recorded} by their recorded tokens, {self.encoded} encoded from their text{cut}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Turns games into samples."""

    config: EnvConfig
    """The game, and how it is worded."""
    chat: ChatFormat
    max_model_len: int
    """Tokens of a conversation; as in a rollout, a turn that might not fit ends it."""
    max_completion_length: int
    """Most tokens of a reply."""
    counts: Counts = field(default_factory=Counts)

    def samples(self, recording: Recording, is_taught: Sequence[bool]) -> list[Sample]:
        """Return a sample for each player who has something to teach.

        Args:
            recording: The game.
            is_taught: For each turn whether its reply is learned; the others are only read.

        Raises:
            SettingsError: A game of another board, of other prompts, or one that the rules forbid.
        """
        episode = recording.episode
        shown, moves = self._replay(recording)
        cards = " ".join(map(str, recording.cards()))
        deck = int.from_bytes(hashlib.sha256(cards.encode()).digest()[:8])
        self.counts.games += 1
        self.counts.replies += len(episode.turns)
        samples = []
        for player in range(self.config.players):
            own = [index for index, turn in enumerate(episode.turns) if turn.player == player]
            ids, marks = self._conversation(
                player,
                [(shown[index], episode.turns[index], moves[index], is_taught[index]) for index in own],
                recording.where,
            )
            if any(marks):
                samples.append(Sample(player=player, deck=deck, ids=ids, is_reply=marks))
        return samples

    def _conversation(
        self, player: int, turns: Sequence[tuple[str, Turn, Action, bool]], where: str
    ) -> tuple["array[int]", "array[int]"]:
        system = system_prompt(self.config.spec(), self.config.observation, player, bomb_rule=self.config.bomb_rule)
        conversation = Conversation(self.chat, system)
        marks = array("b")
        end = 0
        for shown, turn, move, taught in turns:
            added = conversation.ask(shown)
            if len(conversation.ids) + self.max_completion_length > self.max_model_len:
                self.counts.cut += 1
                break
            reply, is_recorded = self._reply_ids(turn, move, added)
            if taught:
                self._check_length(reply, turn, where)
                self.counts.replies_learned += 1
                self.counts.recorded += is_recorded
                self.counts.encoded += not is_recorded
            conversation.answer(reply)
            marks.extend([0] * len(added) + [int(taught)] * len(reply))
            if taught:
                end = len(marks)
        return array("i", conversation.ids[:end]), marks[:end]

    def _reply_ids(self, turn: Turn, move: Action, added: list[int]) -> tuple[list[int], bool]:
        """Return the ids of a reply and whether they are the recorded ones.

        The recorded ids are used where our tokenizer makes the recorded ids of the message before, and gives back the
        recorded text: then they are of the same tokenizer, template and system message.
        """
        tokenizer: Any = self.chat.tokenizer
        ids = list(turn.reply_ids)
        if ids and list(turn.prompt_ids) == added and max(ids) < len(tokenizer) and self.chat.decode(ids) == turn.reply:
            return ids, True
        text = turn.reply
        if not ids and turn.kind is ReplyKind.LEGAL:
            # Scripts and people choose a move; its wording is ours.
            text = format_action(move, style=self.config.observation, num_players=self.config.players)
        return [*tokenizer.encode(text, add_special_tokens=False), self.chat.eos_id], False

    def _check_length(self, reply: Sequence[int], turn: Turn, where: str) -> None:
        if len(reply) > self.max_completion_length:
            raise SettingsError(
                f"{where}: {turn.reply[:60]!r} has {len(reply)} tokens in this model's vocabulary, but no rollout can "
                f"say more than MAX_COMPLETION_LENGTH={self.max_completion_length}; raise it."
            )

    def _replay(self, recording: Recording) -> tuple[list[str], list[Action]]:
        """Play a game again; returns what each mover was shown, and the moves."""
        spec, ours = recording.spec(), self.config.spec()
        if spec.rules_hash != ours.rules_hash:
            raise SettingsError(
                f"{recording.where}: a game of {spec.preset} with {spec.num_players} players, wanted {ours.preset} "
                f"with {ours.num_players}; choose by --preset and --players (or HANABI_PRESET and HANABI_PLAYERS)."
            )
        game = Game(spec, recording.cards())
        shown: list[str] = []
        moves: list[Action] = []
        for number, turn in enumerate(recording.episode.turns):
            where = f"{recording.where}, turn {number}"
            if game.is_over or turn.player != game.current_player:
                raise SettingsError(f"{where}: player {turn.player} cannot move here; the record is damaged.")
            text = turn_prompt(
                game.view(turn.player), style=self.config.observation, legal_moves=self.config.legal_moves
            )
            if turn.prompt and turn.prompt != text:
                raise SettingsError(
                    f"{where}: recorded with the prompt {turn.prompt[:60]!r}, here it is {text[:60]!r}; set "
                    "HANABI_OBSERVATION and HANABI_LEGAL_MOVES as they were."
                )
            move = parse_action(turn.action, num_players=spec.num_players, player=turn.player)
            try:
                if move is None:
                    raise IllegalActionError("it is no move")
                game.apply(move)
            except IllegalActionError as error:
                raise SettingsError(f"{where}: {turn.action[:40]!r}: {error}") from error
            shown.append(text)
            moves.append(move)
        return shown, moves
