"""The interface of samplers, which reply to a prompt with token ids and their log-probabilities.

The rollout server uses its engine only through `Sampler`. `server.engine.VllmSampler` is the
default implementation; the fake engines of the tests implement the same protocol. To serve with
another engine, write a class with these methods and construct it in
`server.assembly.rollout_server`.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter

AdapterHandle: TypeAlias = object
"""Return value of a sampler's `load_adapter`, opaque to everything but that sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Sampling parameters."""

    max_tokens: int
    """Longest reply, in tokens."""
    temperature: float = 1.0
    """Divides the logits before the softmax; 0 is greedy."""
    token_filter: TokenFilter = ALL_TOKENS
    """Which tokens may be drawn."""
    seed: int | None = None
    """Random seed; None: replies differ each time.

    In the games of a request, each reply's seed is derived from it, see `rollout.seeds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled reply."""

    ids: tuple[int, ...]
    """Sampled token ids, including the end token."""
    logprobs: tuple[float, ...]
    """Log-probability of each id, in nats, after the temperature.

    It refers to the whole distribution, i.e. the policy that is trained, even if a filter excludes
    tokens."""
    finish_reason: str
    """E.g. "stop" or "length"."""
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache."""


class EngineHealth(Protocol):
    """The health of an engine, or of several together, available at any time."""

    @property
    def is_dead(self) -> bool:
        """True once the engine has failed or hung; it does not recover."""

    @property
    def state(self) -> str:
        """The engine's health as text: "ok" unless it is dead."""

    @property
    def silence(self) -> float:
        """Seconds since the engine last answered; a long step is one possible reason."""


class Sampler(EngineHealth, Protocol):
    """An engine that samples replies and holds LoRA adapters.

    All calls come from one event loop. A call that fails raises; after a fatal failure `is_dead` is
    true as well.
    """

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        """Sample one reply to a whole conversation.

        Args:
            prompt_ids: Token ids of the conversation so far.
            sampling: Length limit and temperature.
            adapter: A loaded adapter; None samples from the base model.
            game: Number of the game. With several copies of the model, requests of one game go to
                the same copy, whose prefix cache has the earlier turns. None: any copy.

        Returns:
            The reply with the log-probability of each of its ids.
        """

    @property
    def num_copies(self) -> int:
        """Copies of the model that share the games."""

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        """Return the log-probability of each id of a given reply, in nats, at temperature 1.

        Args:
            prompt_ids: Token ids before the reply.
            reply_ids: Token ids of the reply.
            adapter: A loaded adapter; None: the base model.
            copy: Number of the copy of the model to use; None: any.
        """

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        """Load a PEFT folder.

        Args:
            name: Name of the adapter with its version, e.g. "player_0@7"; never used before.
            number: Id of the adapter, also never used before.
            path: Folder with `adapter_model.safetensors` and `adapter_config.json`. It stays in
                place until after `unload_adapter`.

        Returns:
            The handle that `generate` and `score` take.
        """

    async def unload_adapter(self, number: int) -> None:
        """Unload an adapter that no request uses anymore."""

    def stop(self) -> None:
        """End the engine and its processes."""
