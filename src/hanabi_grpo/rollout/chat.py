"""Private conversations as token ids that only ever grow, unless players remember a few turns only.

Re-rendering a conversation through a chat template at every turn changes its past (Qwen3 drops the
think blocks of earlier replies), so the sequence that was sampled would not be the sequence that is
trained. `ChatFormat` reads from the tokenizer's own template the text that it puts around messages,
and from then on each turn only appends ids. The reply ids in between are the sampled ones, never
re-encoded: a thinking model goes on seeing what it thought, and its thoughts fill the conversation.

A conversation with a window is rendered anew at each turn, which is a sequence of its own in
training. Earlier replies are only read there, as the template writes them and without their
thoughts; the turn's own reply is as sampled."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from hanabi_grpo.envs.texts import split_reply
from hanabi_grpo.errors import SettingsError

_Turn = TypeVar("_Turn")
_FIRST, _REPLY, _SECOND, _SYSTEM = "HANABIFIRST", "HANABIREPLY", "HANABISECOND", "HANABISYSTEM"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    r"""The text that a chat template puts around messages.

    Example (Qwen3, thinking off):
        eos="<|im_end|>"  glue="\n<|im_start|>user\n"
        tail="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    """

    tokenizer: Any = field(repr=False)
    thinking: bool
    eos: str
    glue: str
    """Between the end of a reply (after its eos) and the next user message."""
    tail: str
    """Between the end of a user message and the reply."""
    end_ids: frozenset[int] = frozenset()
    """Ids that end a reply: the eos token, and those that the model's own files list (Qwen3:
    <|endoftext|> too).
    """

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, thinking: bool = False) -> "ChatFormat":
        """Read the format from the chat template; SettingsError: there is none, or it ends a reply
        by another token.
        """
        if not tokenizer.chat_template:
            raise SettingsError(
                f"MODEL={tokenizer.name_or_path}: the tokenizer has no chat template; choose an "
                "instruction-tuned one."
            )
        eos = tokenizer.eos_token
        text = _render(
            tokenizer, [("user", _FIRST), ("assistant", _REPLY), ("user", _SECOND)], thinking
        )
        between = (
            text.split(_REPLY, 1)[-1].split(_SECOND, 1)[0]
            if _REPLY in text and _SECOND in text
            else ""
        )
        if not between.startswith(eos):
            raise SettingsError(
                f"MODEL={tokenizer.name_or_path}: its chat template ends a reply with "
                f"{between[:20]!r}, not with the "
                f"eos token {eos!r}; conversations could not grow token by token. Choose another "
                "model."
            )
        return cls(
            tokenizer=tokenizer,
            thinking=thinking,
            eos=eos,
            glue=between.removeprefix(eos),
            tail=text.split(_SECOND, 1)[1],
            end_ids=frozenset(
                {int(tokenizer.eos_token_id)} | _listed_ends(Path(tokenizer.name_or_path))
            ),
        )

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a reply in the chat template."""
        return int(self.tokenizer.eos_token_id)

    @property
    def hash(self) -> str:
        """Short sha256 over what is put around messages; the vocabulary has a hash of its own."""
        from jinja2 import TemplateError

        head = _render(self.tokenizer, [("user", _FIRST)], self.thinking)
        try:
            with_system = _render(
                self.tokenizer, [("system", _SYSTEM), ("user", _FIRST)], self.thinking
            )
        except TemplateError as error:
            # Some templates refuse system messages; games whose style has none can still be played.
            with_system = f"refused: {error}"
        parts = repr(
            (self.eos, self.eos_id, self.glue, self.tail, self.thinking, head, with_system)
        )
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def open(self, system: str, user: str, earlier: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Return the ids before a reply: template head, system message if any, earlier turns, the
        user message.

        `earlier` are messages with what was said to each, see `spoken`.
        """
        return (
            _encoded(self, system, user, earlier) if earlier else list(_opened(self, system, user))
        )

    def follow(self, last_id: int, user: str) -> list[int]:
        """Return the ids between a reply that ended with `last_id` and the next reply.

        A reply that was cut by its token limit is closed here, outside the loss.
        """
        ids = self.tokenizer.encode(self.glue + user + self.tail, add_special_tokens=False)
        return [*([] if last_id == self.eos_id else [self.eos_id]), *ids]

    def spoken(self, ids: list[int]) -> str:
        """Return a reply as later turns see it: without what was thought, also where that was cut
        off.
        """
        # Some templates open the thought themselves, after the last message that they close.
        opened = "<think>" * ("<think>" in self.tail.rpartition("</think>")[2])
        return split_reply(opened + self.decode(ids))[1]

    def decode(self, ids: list[int]) -> str:
        """Return the text of a reply, the token that ended it left out."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))


def remembered(said: Sequence[_Turn], window: int | None) -> Sequence[_Turn]:
    """Return the past turns that a player with a memory of `window` turns sees beside its next one;
    None: all.
    """
    return said if window is None else said[max(0, len(said) + 1 - window) :]


class Conversation:
    """One player's private conversation in one game, as ids."""

    def __init__(self, chat: ChatFormat, system: str, window: int | None = None) -> None:
        """Start empty; `system` is rendered with the first message. With a window only its last
        turns are kept.
        """
        self.ids: list[int] = []
        self._chat, self._system, self._window = chat, system, window
        self._said: list[tuple[str, str]] = []
        """With a window of several turns, messages before this one and what was said to each."""
        self._user = ""

    def ask(self, user: str) -> list[int]:
        """Append a user message and return the ids that this turn added: with a window, all before
        the reply.
        """
        self._user = user
        if self._window is None:
            return self._append(user)
        self.ids = self._chat.open(self._system, user, remembered(self._said, self._window))
        return list(self.ids)

    def answer(self, reply_ids: list[int]) -> None:
        """Append the sampled ids of a reply."""
        self.ids.extend(reply_ids)
        if self._window not in (None, 1):
            self._said.append((self._user, self._chat.spoken(reply_ids)))

    def remember(self, user: str, reply_ids: list[int]) -> None:
        """Take in a turn of the past; how long that makes the conversation, `ids` says: with a
        window, about.
        """
        self._append(user)
        if self._window is None:
            self.ids.extend(reply_ids)
        elif self._window > 1:
            self._said.append((user, said := self._chat.spoken(reply_ids)))
            self.ids.extend(
                (*self._chat.tokenizer.encode(said, add_special_tokens=False), self._chat.eos_id)
            )

    def _append(self, user: str) -> list[int]:
        added = (
            self._chat.follow(self.ids[-1], user)
            if self.ids
            else self._chat.open(self._system, user)
        )
        self.ids.extend(added)
        return added


def _listed_ends(folder: Path) -> set[int]:
    """Return the ids at which vLLM (0.32, `try_get_generation_config`) stops beside the tokenizer's
    eos token.
    """
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            return set() if found is None else {found} if isinstance(found, int) else set(found)
    return set()


@lru_cache(maxsize=256)
def _opened(chat: ChatFormat, system: str, user: str) -> tuple[int, ...]:
    # The games of a task begin with the same messages, and the rules in them are the longest text
    # of a game.
    return tuple(_encoded(chat, system, user, ()))


def _encoded(
    chat: ChatFormat, system: str, user: str, earlier: Sequence[tuple[str, str]]
) -> list[int]:
    messages = [("system", system)] if system else []
    for asked, said in earlier:
        messages += [("user", asked), ("assistant", said)]
    text = _render(chat.tokenizer, [*messages, ("user", user)], chat.thinking)
    return [*chat.tokenizer.encode(text, add_special_tokens=False)]


def _render(tokenizer: Any, messages: list[tuple[str, str]], thinking: bool) -> str:
    rows = [{"role": role, "content": content} for role, content in messages]
    return str(
        tokenizer.apply_chat_template(
            rows, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
    )
