"""TOP_P and TOP_K: which tokens may be sampled. Logprobs always refer to the full distribution."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFilter:
    """The tokens that may be sampled, by their probabilities after the temperature.

    First, the `top_k` most likely tokens are kept and renormalized. Of these, the most likely ones
    are kept until their sum reaches `top_p`. The most likely token is always kept.
    """

    top_p: float = 1.0
    """Share of the probability; 1: all of it."""
    top_k: int = 0
    """Number of tokens; 0: all of them."""

    @property
    def keeps_all(self) -> bool:
        """Whether every token may be sampled."""
        return self.top_p >= 1 and self.top_k <= 0

    def within(self, vocab_size: int) -> "TokenFilter":
        """Return the equivalent filter for a vocabulary: a `top_k` that keeps all tokens is 0."""
        top_k = self.top_k if 0 < self.top_k < vocab_size else 0
        return TokenFilter(top_p=self.top_p, top_k=top_k)

    def __str__(self) -> str:
        parts = []
        if self.top_p < 1:
            parts.append(f"top-p {self.top_p:g}")
        if self.top_k > 0:
            parts.append(f"top-k {self.top_k}")
        return ", ".join(parts)


ALL_TOKENS = TokenFilter()
"""Keeps every token."""
