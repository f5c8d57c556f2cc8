"""One player's private conversation in one game, as token ids.

The ids of a conversation only ever grow, so that the sequence that was sampled is the sequence that
is trained (`rollout.chat` says how). The reply ids in it are the sampled ones, never re-encoded: a
thinking model goes on seeing what it thought, and its thoughts fill the conversation.

With a memory of a few turns the conversation is rendered anew at each turn, which is a sequence of
its own in training. Earlier replies are only read there, as the chat template writes them and
without their thoughts; the turn's own reply is as sampled.
"""

from hanabi_grpo.agents.memory import remembered_turns
from hanabi_grpo.rollout.chat import ChatFormat


class Conversation:
    """What one player was shown and what it replied, as token ids."""

    def __init__(self, chat: ChatFormat, system: str, memory: int | None = None) -> None:
        """Start an empty conversation.

        Args:
            chat: The text that goes around messages.
            system: System message, rendered with the first message; "" for none.
            memory: Turns that are kept, the current one included; None: all of the game.
        """
        self.ids: list[int] = []
        """All ids so far: those before the next reply, after `ask`."""
        self._chat = chat
        self._system = system
        self._memory = memory
        self._past: list[tuple[str, str]] = []
        """With a memory of several turns: past messages, and the reply to each."""
        self._message = ""

    def ask(self, message: str) -> list[int]:
        """Append a user message.

        Returns:
            The ids that this turn adds; with a memory of some turns, all ids before the reply.
        """
        self._message = message
        if self._memory is None:
            return self._append(message)
        self.ids = self._chat.open(
            self._system, message, remembered_turns(self._past, self._memory)
        )
        return list(self.ids)

    def answer(self, reply_ids: list[int]) -> None:
        """Append the sampled ids of the reply to the last message."""
        self.ids.extend(reply_ids)
        if self._memory is not None and self._memory > 1:
            self._past.append((self._message, self._chat.spoken(reply_ids)))

    def remember(self, message: str, reply_ids: list[int]) -> None:
        """Append a turn that was played before, with the ids that were sampled then.

        Afterwards `ids` tells how long the conversation is; with a memory of some turns, about.
        """
        self._append(message)
        if self._memory is None:
            self.ids.extend(reply_ids)
        elif self._memory > 1:
            reply = self._chat.spoken(reply_ids)
            self._past.append((message, reply))
            self.ids.extend(self._chat.tokenizer.encode(reply, add_special_tokens=False))
            self.ids.append(self._chat.eos_id)

    def _append(self, message: str) -> list[int]:
        if self.ids:
            added = self._chat.follow(self.ids[-1], message)
        else:
            added = self._chat.open(self._system, message)
        self.ids.extend(added)
        return added
