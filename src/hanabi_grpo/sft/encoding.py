"""Encoding of a player's conversation in one game as exactly the token ids of a rollout."""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.envs.base import FORFEIT, SKIP, Game, Observation, Setup
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import before_answer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.vocabulary import check_taught_reply
from hanabi_grpo.sft.beliefs import Asked, draw_questions
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.types import ReplyKind, Turn, player_name

_HASH_BYTES = 8
"""Bytes of a start's hash that are used as a sample's `start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a replay shows of one turn."""

    message: str
    """The message to the player."""
    action: str
    """The player's action, in the current wording."""
    asked: Sequence[Asked] = ()
    """Questions about hidden cards before the move, with their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayedTurn:
    """A recorded turn and its message and action in a replay of the game."""

    turn: Turn
    shown: _Shown
    is_taught: bool
    """True if the reply is learned, along with the answers to questions before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Encodes games as samples."""

    setup: Setup[Any]
    """The game, and the wording of its prompts."""
    chat: ChatFormat
    max_model_len: int
    """Most tokens of a conversation; a turn that might not fit ends it, as in a rollout."""
    max_completion_length: int
    """Most tokens of a reply."""
    belief_shares: tuple[float, ...] = ()
    """Per seat, the share of learned replies that answer questions (`beliefs`); (): all 0."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of the encoded games and replies, see `line`."""

    def line(self) -> str:
        """Return the counts as a line of text."""
        counts = self.counts
        learned = counts["recorded"] + counts["encoded"]
        line = f"{counts['games']} games"
        if counts["left out"]:
            line += f", {counts['left out']} left out by the filters"
        line += (
            f"; {learned} of {counts['replies']} replies are learned: {counts['recorded']} from "
            f"recorded tokens, {counts['encoded']} encoded from text"
        )
        if counts["answers"]:
            line += f"; {counts['answers']} answers to questions about hidden cards"
        if counts["cut"]:
            line += f"; {counts['cut']} conversations truncated at HANABI_MAX_MODEL_LEN"
        return line

    def samples(self, game: Recording, is_taught: Sequence[bool]) -> list[Sample]:
        """Return a sample for each player with a learned reply.

        If players remember only a window of turns, each turn is a separate sample.

        Args:
            game: A recorded game.
            is_taught: For each turn, whether its reply is learned; other replies are only context.

        Raises:
            SettingsError: The game's prompts differ from this setup's, or it violates the rules.
        """
        turns = game.episode.turns
        started, start_id = self.setup.environment.recorded(self.setup.config, game)
        learners = {turn.player for turn, taught in zip(turns, is_taught, strict=True) if taught}
        shown = _replay(started, game, self.setup.config.window, learners, self.belief_shares)
        turns_of_player: dict[int, list[_ReplayedTurn]] = defaultdict(list)
        for turn, seen, taught in zip(turns, shown, is_taught, strict=True):
            replayed = _ReplayedTurn(turn=turn, shown=seen, is_taught=taught)
            turns_of_player[turn.player].append(replayed)
        start = int.from_bytes(hashlib.sha256(start_id.encode()).digest()[:_HASH_BYTES])
        self.counts.update(games=1, replies=len(turns))
        samples = []
        for player in range(self.setup.spec.num_players):
            for sample in self._conversations(player, start, turns_of_player[player], game.where):
                if any(sample.is_reply):
                    samples.append(sample)
        return samples

    def _conversations(
        self, player: int, start: int, turns: Sequence[_ReplayedTurn], where: str
    ) -> Iterator[Sample]:
        """Yield a player's whole game, or each turn if there is a window, and each question.

        Args:
            player: The player.
            start: See `Sample.start`.
            turns: The player's turns.
            where: The game, for errors.
        """
        window = self.setup.config.window
        system = self.setup.environment.system_message(self.setup.config, player)
        conversation = Conversation(self.chat, system, window)
        marks = array("b")
        # End of the last learned reply; nothing after it is needed.
        end = 0
        for replayed in turns:
            follows_call = replayed.turn.follows_call
            message = replayed.shown.message
            for asked in replayed.shown.asked if replayed.is_taught else ():
                yield self._answered(player, start, conversation, message, asked)
            added = conversation.ask(message, follows_call=follows_call)
            if len(conversation.ids) + self.max_completion_length > self.max_model_len:
                self.counts["cut"] += 1
                break
            whole_prompt = conversation.ids
            if window and replayed.turn.reply_ids and not follows_call:
                # A game that was recorded without a window has the prompt ids that extended its
                # conversations.
                whole_prompt = self.chat.follow(self.chat.eos_id, message)
            reply, is_recorded = self._reply_ids(replayed, (added, whole_prompt))
            if replayed.is_taught and len(reply) > self.max_completion_length:
                raise SettingsError(
                    f"{where}: {replayed.turn.reply[:60]!r} has {len(reply)} tokens in this "
                    "model's vocabulary, but rollouts generate at most "
                    f"MAX_COMPLETION_LENGTH={self.max_completion_length}; raise it."
                )
            conversation.answer(reply)
            marks.extend([0] * len(added))
            marks.extend([int(replayed.is_taught)] * len(reply))
            if replayed.is_taught:
                self.counts["recorded" if is_recorded else "encoded"] += 1
                end = len(marks)
            if window is not None and not replayed.turn.is_call:
                ids = array("i", conversation.ids[:end])
                yield Sample(player=player, start=start, ids=ids, is_reply=marks[:end])
                marks = array("b")
                end = 0
        ids = array("i", conversation.ids[:end])
        yield Sample(player=player, start=start, ids=ids, is_reply=marks[:end])

    def _answered(
        self, player: int, start: int, conversation: Conversation, message: str, asked: Asked
    ) -> Sample:
        """Return a question appended to a turn's message with its answer; only that is learned."""
        prompt = conversation.ids_before_answer(message + asked.text)
        answer = self.chat.said(asked.answer)
        is_fresh = self.setup.config.window is not None
        if len(prompt) + self.max_completion_length > self.max_model_len:
            # Too long for a rollout: return an empty sample.
            return Sample(player=player, start=start, ids=array("i"), is_reply=array("b"))
        self.counts["answers"] += 1
        return Sample(
            player=player,
            start=start,
            ids=array("i", [*prompt, *answer]),
            is_reply=array("b", [0] * len(prompt) + [1] * len(answer)),
            question_start=0 if is_fresh else len(conversation.ids),
        )

    def _reply_ids(
        self, replayed: _ReplayedTurn, prompts: Sequence[list[int]]
    ) -> tuple[list[int], bool]:
        """Return the ids of a reply, and whether they are the recorded ones.

        The recorded ids are used if this model's tokenizer reproduces the recorded prompt ids, and
        decodes the reply ids to the recorded text.

        Args:
            replayed: The turn.
            prompts: Ids from this model's tokenizer: of this message, and of the whole sequence.
        """
        tokenizer: Any = self.chat.tokenizer
        turn = replayed.turn
        recorded = list(turn.reply_ids)
        if recorded and list(turn.prompt_ids) in prompts:
            is_known = max(recorded) < len(tokenizer)
            if is_known and self.chat.decode(recorded) == turn.reply:
                return recorded, True
        # Scripts and people choose an action, whose wording comes from the environment. A script's
        # thought stays in front of it.
        is_action = not recorded and turn.kind is ReplyKind.LEGAL
        text = turn.reply
        if is_action:
            text = before_answer(turn.reply) + replayed.shown.action
        ids = list(self.chat.said(text))
        if replayed.is_taught:
            check_taught_reply(text, ids, tokenizer)
        return ids, False


def _replay(
    game: Game,
    recording: Recording,
    window: int | None,
    learners: Collection[int],
    belief_shares: Sequence[float],
) -> list[_Shown]:
    """Replay a game from its start.

    If a model's replies are learned, the recorded prompts must equal the current ones. A person or
    a script chose among actions, independently of the wording, and the prompts of players that are
    not learned from are part of no sample.

    Args:
        game: The game at its start.
        recording: The recorded game.
        window: Number of turns that players remember; None: the whole game.
        learners: Players with a learned reply.
        belief_shares: See `Encoder.belief_shares`.

    Returns:
        The message and action of each turn.

    Raises:
        SettingsError: The record is damaged, or its prompts have a different wording.
    """
    replayed: list[_Shown] = []
    episode = recording.episode
    for _, group in groupby(recording.episode.turns, lambda turn: turn.step):
        turns = list(group)
        actions = {}
        num_moves = sum(not turn.is_call for turn in turns)
        results: dict[int, str] = {}
        for turn in turns:
            where = f"{recording.where}, turn {len(replayed)}"
            if turn.player not in game.to_act() or num_moves != len(game.to_act()):
                raise SettingsError(
                    f"{where}: it is not {player_name(turn.player)}'s turn to act; the record is "
                    "damaged."
                )
            observation = Observation(game, turn.player, window)
            # Results of tools come from the record; no tool is called again.
            message = results.get(turn.player, observation.message())
            is_read = turn.player in learners and bool(turn.reply_ids)
            if is_read and turn.prompt and turn.prompt != message:
                raise SettingsError(
                    f"{where}: recorded with the prompt {turn.prompt[:60]!r}, but the prompt is "
                    f"now {message[:60]!r}; set the game's variables to their values at that time, "
                    "such as HANABI_OBSERVATION and HANABI_LEGAL_MOVES."
                )
            if turn.call is not None and turn.is_call:
                results[turn.player] = turn.call.result
                replayed.append(_Shown(message=message, action=turn.action))
                continue
            action = _action_of(game, turn, observation.legal())
            if action is None:
                raise SettingsError(
                    f"{where}: {turn.action[:40]!r} is not legal here; the record is damaged."
                )
            actions[turn.player] = action
            asked: list[Asked] = []
            # No question can be appended to the result of a tool.
            if belief_shares and turn.player in learners and not turn.follows_call:
                key = (recording.where, episode.suite, episode.seed, turn.step, turn.player)
                share = belief_shares[turn.player]
                asked = draw_questions(game, turn.player, share, key)
            replayed.append(_Shown(message=message, action=action, asked=asked))
        game.step(actions)
    return replayed


def _action_of(game: Game, turn: Turn, legal: Sequence[str] | None) -> str | None:
    """Return the action of a turn in the current wording; None if it is not legal.

    Args:
        game: The game at this turn.
        turn: The recorded turn.
        legal: Legal actions; None if any text is legal.
    """
    if legal is None or turn.action in (FORFEIT, SKIP):
        return turn.action
    action = game.parse(turn.player, turn.action)
    return action if action in legal else None
