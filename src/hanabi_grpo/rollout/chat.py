"""The text that a chat template puts around messages, so that conversations grow by token ids.

Re-rendering a conversation with a chat template at every turn changes its past (Qwen3 drops the
think blocks of earlier replies), so training would not see the sequence that was sampled.
`ChatFormat` extracts the text around messages from the tokenizer's own template, and from then on
each turn only appends ids. The conversations themselves are in `agents.conversation`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hanabi_grpo.envs.texts import OPEN_THINK, split_reply
from hanabi_grpo.envs.tools.calls import ROLE
from hanabi_grpo.errors import SettingsError

_FIRST = "HANABIFIRST"
_REPLY = "HANABIREPLY"
_SECOND = "HANABISECOND"
_SYSTEM = "HANABISYSTEM"
"""Texts that no template contains: everything rendered around them is the template's."""
_HASH_LENGTH = 16
"""Hexadecimal digits of a format's hash."""
_END_OF_THINK = "</think>"
_MAX_CACHED_CHARS = 20_000
"""Maximum length of a game's first messages whose ids are kept: clients choose some of them."""
_MAX_CACHED_REPLY_CHARS = 256
"""Maximum length of a reply whose ids are kept."""


class Exchange(NamedTuple):
    """A message to a player, and its reply as later turns see it."""

    message: str
    reply: str
    follows_call: bool = False
    """Whether the message is a tool's result, which many templates have a role for."""


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
    """Text between the end of a reply (after its eos) and the next user message."""
    tail: str
    """Text between the end of a user message and the reply."""
    result_glue: str | None = None
    """Text between the end of a reply that calls a tool (after its eos) and the tool's result.

    None: the template has no role for results, so they are sent as user messages."""
    result_tail: str = ""
    """Text between the end of a result and the reply."""
    end_ids: frozenset[int] = frozenset()
    """Ids that end a reply.

    These are the eos token and the ids that the model's files list (Qwen3: also <|endoftext|>).
    """

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, thinking: bool = False) -> "ChatFormat":
        """Read the format from a tokenizer's chat template.

        Args:
            tokenizer: A transformers tokenizer.
            thinking: Whether the template lets the model think before it answers.

        Raises:
            SettingsError: There is no template, or it ends a reply with a token other than eos.
        """
        if not tokenizer.chat_template:
            raise SettingsError(
                f"MODEL={tokenizer.name_or_path}: the tokenizer has no chat template; choose an "
                "instruction-tuned one."
            )
        eos = tokenizer.eos_token
        messages = [("user", _FIRST), ("assistant", _REPLY), ("user", _SECOND)]
        text = _render(tokenizer, messages, thinking)
        between = ""
        if _REPLY in text and _SECOND in text:
            after_reply = text.split(_REPLY, 1)[-1]
            between = after_reply.split(_SECOND, 1)[0]
        if not between.startswith(eos):
            raise SettingsError(
                f"MODEL={tokenizer.name_or_path}: its chat template ends a reply with "
                f"{between[:20]!r}, not with the eos token {eos!r}; conversations could not grow "
                "token by token. Choose another model."
            )
        result_glue, result_tail = _result_format(tokenizer, eos, thinking)
        end_ids = {int(tokenizer.eos_token_id)} | _listed_ends(Path(tokenizer.name_or_path))
        return cls(
            tokenizer=tokenizer,
            thinking=thinking,
            eos=eos,
            glue=between.removeprefix(eos),
            tail=text.split(_SECOND, 1)[1],
            result_glue=result_glue,
            result_tail=result_tail,
            end_ids=frozenset(end_ids),
        )

    @property
    def opens_thought(self) -> bool:
        """Whether the template starts the think block of a reply, before the reply's first token.

        So do the templates of models that always think, such as Qwen3's Thinking-2507.
        """
        return OPEN_THINK in self.tail.rpartition(_END_OF_THINK)[2]

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a reply in the chat template."""
        return int(self.tokenizer.eos_token_id)

    @property
    def hash(self) -> str:
        """Short sha256 over the text that the template puts around messages.

        `handshake.tokenizer_hash` covers the vocabulary.
        """
        from jinja2 import TemplateError

        head = _render(self.tokenizer, [("user", _FIRST)], self.thinking)
        try:
            messages = [("system", _SYSTEM), ("user", _FIRST)]
            with_system = _render(self.tokenizer, messages, self.thinking)
        except TemplateError as error:
            # Some templates reject system messages; games without one can still be played.
            with_system = f"refused: {error}"
        parts = (self.eos, self.eos_id, self.glue, self.tail, self.thinking, head, with_system)
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return digest[:_HASH_LENGTH]

    def open(self, system: str, user: str, earlier: Sequence[Exchange] = ()) -> list[int]:
        """Return all ids before a reply, rendered by the chat template.

        Args:
            system: System message; "" for none.
            user: The message to reply to.
            earlier: Past messages, including tool results, and the reply to each as `spoken`
                returns it.
        """
        if earlier or len(system) + len(user) > _MAX_CACHED_CHARS:
            return _encode(self, system, user, earlier)
        return list(_encode_opening(self, system, user))

    def follow(self, last_id: int, user: str, *, is_result: bool = False) -> list[int]:
        """Return the ids between a reply and the next one.

        A reply that was cut off by its token limit is closed here, outside the loss.

        Args:
            last_id: Last id of the reply.
            user: The next user message.
            is_result: Whether the message is a tool's result instead.
        """
        text = self.glue + user + self.tail
        if is_result and self.result_glue is not None:
            text = self.result_glue + user + self.result_tail
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if last_id == self.eos_id:
            return [*ids]
        return [self.eos_id, *ids]

    def said(self, text: str) -> tuple[int, ...]:
        """Return the ids of a whole reply with this text, including its end token.

        Where the template `opens_thought`, the ids continue that thought, and a text without a
        thought ends it first.
        """
        if self.opens_thought:
            text = text.removeprefix(OPEN_THINK)
            if _END_OF_THINK not in text:
                text = f"\n{_END_OF_THINK}\n\n{text}"
        if len(text) > _MAX_CACHED_REPLY_CHARS:
            return _ids_of_reply(self, text)
        return _encode_reply(self, text)

    def spoken(self, ids: list[int]) -> str:
        """Return a reply as later turns see it: without its thoughts, even if they are cut off."""
        return split_reply(self.decode(ids))[1]

    def decode(self, ids: list[int]) -> str:
        """Return the text of a reply, without the token that ended it.

        Where the template `opens_thought`, the text begins with that tag: without it, a thought
        that was cut off would look like an answer.
        """
        has_end = bool(ids) and ids[-1] in self.end_ids
        kept = ids[:-1] if has_end else ids
        text = str(self.tokenizer.decode(kept, skip_special_tokens=False))
        return OPEN_THINK + text if self.opens_thought else text


def _result_format(tokenizer: Any, eos: str, thinking: bool) -> tuple[str | None, str]:
    """Return the text before and after a tool's result; (None, "") without a role for it.

    A template counts as having no role for results if it omits a result, rejects it, or changes the
    reply before it.
    """
    from jinja2 import TemplateError

    messages = [("user", _FIRST), ("assistant", _REPLY), (ROLE, _SECOND)]
    try:
        text = _render(tokenizer, messages, thinking)
    except TemplateError:
        return None, ""
    _, _, behind_reply = text.partition(_REPLY)
    between, found, tail = behind_reply.partition(_SECOND)
    if not found or not between.startswith(eos):
        return None, ""
    return between.removeprefix(eos), tail


def _listed_ends(folder: Path) -> set[int]:
    """Return the ids at which vLLM stops in addition to the tokenizer's eos token.

    The lookup is that of vLLM's `try_get_generation_config` (0.32).
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if ids is None:
                return set()
            return {ids} if isinstance(ids, int) else set(ids)
    return set()


@lru_cache(maxsize=256)
def _encode_opening(chat: ChatFormat, system: str, user: str) -> tuple[int, ...]:
    # The games of a task begin with the same messages, and the rules in them are the longest text
    # of a game.
    return tuple(_encode(chat, system, user, ()))


@lru_cache(maxsize=4096)
def _encode_reply(chat: ChatFormat, text: str) -> tuple[int, ...]:
    # Games have few distinct actions.
    return _ids_of_reply(chat, text)


def _ids_of_reply(chat: ChatFormat, text: str) -> tuple[int, ...]:
    return (*chat.tokenizer.encode(text, add_special_tokens=False), chat.eos_id)


def _encode(chat: ChatFormat, system: str, user: str, earlier: Sequence[Exchange]) -> list[int]:
    messages = []
    if system:
        messages.append(("system", system))
    for past in earlier:
        is_result = past.follows_call and chat.result_glue is not None
        messages.append((ROLE if is_result else "user", past.message))
        messages.append(("assistant", past.reply))
    messages.append(("user", user))
    text = _render(chat.tokenizer, messages, chat.thinking)
    return [*chat.tokenizer.encode(text, add_special_tokens=False)]


def _render(tokenizer: Any, messages: Sequence[tuple[str, str]], thinking: bool) -> str:
    rows = [{"role": role, "content": content} for role, content in messages]
    return str(
        tokenizer.apply_chat_template(
            rows, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
    )
