"""Word embeddings that share the vectors of common parts.

A tokenizer of whole words may have thousands of rare words, such as Hanabi's `fit2.cRY.r1`, whose
parts are all common. During training, the embedding of such a word is its own vector plus those of
its parts, E = D + C·P, with

- D, a vector per word, (words, hidden),
- P, a vector per part, (parts, hidden),
- C, how often a part occurs in a word, (words, parts).

A word that has not been seen therefore has the sum of its parts, and a frequent word learns what it
needs. The model stores only the sums E and remains a standard model. With G the gradient of the
loss with respect to E, the gradient for D is G and the gradient for P is Cᵀ·G. The optimizer
updates E with the first and P with the second, and `WordParts.move_words` adds the change of P
to E.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch


class PartCounts(NamedTuple):
    """Which parts words have."""

    counts: torch.Tensor
    """How often a part occurs in a word: sparse, (words, parts)."""
    names: Sequence[str]
    """The parts, in the order of the columns."""

    @classmethod
    def of(cls, parts: Sequence[Sequence[str]]) -> "PartCounts":
        """Count the parts of words.

        Args:
            parts: Parts of each word; empty for a word without shared parts.
        """
        numbers: dict[str, int] = {}
        word_numbers = []
        part_numbers = []
        for word, own_parts in enumerate(parts):
            for part in own_parts:
                word_numbers.append(word)
                part_numbers.append(numbers.setdefault(part, len(numbers)))
        counts = torch.sparse_coo_tensor(
            torch.tensor([word_numbers, part_numbers]),
            torch.ones(len(word_numbers)),
            (len(parts), len(numbers)),
            check_invariants=True,
        )
        return cls(counts.coalesce(), list(numbers))


class WordParts:
    """The parts of a model's words.

    Example:
        parts = WordParts.of(model, tokenizer, environment.word_parts(config))
        optimizer = torch.optim.AdamW([*model.parameters(), parts.vectors])
        loss.backward()
        parts.collect_gradient()
        optimizer.step()
        parts.move_words()
    """

    def __init__(self, embedding: torch.nn.Parameter, parts: Sequence[Sequence[str]]) -> None:
        """Initialize the vectors of parts with zeros, which changes no word.

        Args:
            embedding: The model's input embeddings, (words, hidden).
            parts: Parts of each word; empty for a word without shared parts.
        """
        counts, names = PartCounts.of(parts)
        self._embedding = embedding
        self._counts = counts.to(embedding.device)
        self._counts_transposed = counts.t().coalesce().to(embedding.device)
        hidden = embedding.shape[1]
        self.vectors = torch.nn.Parameter(torch.zeros(len(names), hidden, device=embedding.device))
        """The learned change of each part's vector, (parts, hidden)."""
        self._added = self.vectors.detach().clone()
        """The part vectors that the word embeddings already include."""

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any, word_parts: Mapping[str, Sequence[str]]
    ) -> "WordParts | None":
        """Return the parts of a model's words; None if no word has any.

        Args:
            model: The model.
            tokenizer: Its tokenizer.
            word_parts: See `Environment.word_parts`.
        """
        embedding = model.get_input_embeddings().weight
        # The embeddings may have rows that no word uses.
        parts: list[Sequence[str]] = [()] * embedding.shape[0]
        for word, number in tokenizer.get_vocab().items():
            parts[number] = word_parts.get(word, ())
        return cls(embedding, parts) if any(parts) else None

    @torch.no_grad()
    def draw(self, standard_deviation: float) -> None:
        """Set the embedding of each word with parts to the sum of random vectors of its parts.

        Args:
            standard_deviation: Standard deviation of the vectors' elements.
        """
        vectors = torch.randn_like(self.vectors) * standard_deviation
        words = torch.sparse.mm(self._counts, vectors)
        has_parts = self._counts.indices()[0].unique()
        self._embedding[has_parts] = words[has_parts]

    def collect_gradient(self) -> None:
        """Compute the gradient of the parts from that of the words."""
        gradient = self._embedding.grad
        if gradient is not None:
            gradient = torch.sparse.mm(self._counts_transposed, gradient)
        self.vectors.grad = gradient

    @torch.no_grad()
    def move_words(self) -> None:
        """Add the change of the parts since the last call to the words' embeddings."""
        change = self.vectors - self._added
        self._embedding += torch.sparse.mm(self._counts, change)
        self._added.copy_(self.vectors)

    def restored(self) -> None:
        """Record that vectors and embeddings were restored together."""
        self._added.copy_(self.vectors.detach())
