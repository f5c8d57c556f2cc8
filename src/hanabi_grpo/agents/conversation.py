"""One player's private conversation in one game, as token ids.

Ids are only ever appended to a conversation, so training sees exactly the sequence that was sampled
(`rollout.chat` explains how). The reply ids in it are the sampled ids, never re-encoded:
a thinking model continues to see its thoughts, which count toward the conversation's length.

With a memory of a few turns the conversation is rendered again at each turn, and each turn is a
sequence in training. Earlier replies are only context there, as the chat template writes them and
without their thoughts; the turn's reply has the sampled ids.

A tool call and its result belong to their turn: their ids are appended whatever the memory, and a
remembered turn includes them.
"""

from hanabi_grpo.agents.memory import remembered_turns
from hanabi_grpo.rollout.chat import ChatFormat, Exchange


class Conversation:
    """The messages and replies of one player, as token ids."""

    def __init__(self, chat: ChatFormat, system: str, memory: int | None = None) -> None:
        """Start an empty conversation.

        Args:
            chat: The chat format of the model.
            system: System message, rendered with the first message; "" for none.
            memory: Number of turns kept, including the current one; None: the whole game.
        """
        self.ids: list[int] = []
        """All ids so far; after `ask`, the ids before the next reply."""
        self._chat = chat
        self._system = system
        self._memory = memory
        self._past: list[Exchange] = []
        """With a memory of several turns: past messages, and the reply to each."""
        self._message = ""
        self._follows_call = False

    def ask(self, message: str, *, follows_call: bool = False) -> list[int]:
        """Append a message to the player.

        Args:
            message: A user message, or the result of a tool.
            follows_call: Whether the message is the result of a tool.

        Returns:
            The ids that the message adds; for the first message of a turn with a limited memory,
            all ids before the reply.
        """
        self._message = message
        self._follows_call = follows_call
        if self._memory is None or follows_call:
            return self._append(message, follows_call)
        self.ids = self.ids_before_answer(message)
        return list(self.ids)

    def ids_before_answer(self, message: str) -> list[int]:
        """Return all ids before the reply to a message, without appending the message."""
        if self._memory is None and self.ids:
            return [*self.ids, *self._chat.follow(self.ids[-1], message)]
        earlier = () if self._memory is None else remembered_turns(self._past, self._memory)
        return self._chat.open(self._system, message, earlier)

    def answer(self, reply_ids: list[int]) -> None:
        """Append the sampled ids of the reply to the last message."""
        self.ids.extend(reply_ids)
        if self._memory is not None and self._memory > 1:
            reply = self._chat.spoken(reply_ids)
            self._past.append(Exchange(self._message, reply, self._follows_call))

    def remember(self, message: str, reply_ids: list[int], *, follows_call: bool = False) -> None:
        """Append an earlier turn, with the ids that were sampled at that turn.

        Afterward `ids` has the length of the conversation; with a limited memory, an estimate of
        it.
        """
        self._append(message, follows_call)
        if self._memory is None:
            self.ids.extend(reply_ids)
        elif self._memory > 1:
            reply = self._chat.spoken(reply_ids)
            self._past.append(Exchange(message, reply, follows_call))
            spoken_ids = self._chat.tokenizer.encode(reply, add_special_tokens=False)
            self.ids.extend(spoken_ids)
            self.ids.append(self._chat.eos_id)

    def _append(self, message: str, follows_call: bool) -> list[int]:
        if self.ids:
            added = self._chat.follow(self.ids[-1], message, is_result=follows_call)
        else:
            added = self._chat.open(self._system, message)
        self.ids.extend(added)
        return added
