"""Words that share parts learn together.

A tokenizer of whole words may have thousands of rare ones, such as Hanabi's `fit2.cRY.r1`, whose
parts are all common. While a model learns, the embedding of such a word is a vector of its own plus
those of its parts, E = D + C·P, with

- D, a vector per word, (words, hidden),
- P, a vector per part, (parts, hidden),
- C, how often a word has a part, (words, parts).

So a word that never came yet has the sum of its parts, and one that came often what it needs. Only
the sums E are kept in the model, which stays a plain one: with G the gradient of the loss for E,
that for D is G and that for P is Cᵀ·G; the optimizer updates E by the first and P by the second,
and `WordParts.move_words` adds what the second means for E.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


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
        """Begin with vectors of parts that are zero, which changes no word.

        Args:
            embedding: The model's input embeddings, (words, hidden).
            parts: Per word its parts; empty for a word that shares none.
        """
        names: dict[str, int] = {}
        word_numbers = []
        part_numbers = []
        for word, own_parts in enumerate(parts):
            for part in own_parts:
                word_numbers.append(word)
                part_numbers.append(names.setdefault(part, len(names)))
        indices = torch.tensor([word_numbers, part_numbers])
        counts = torch.sparse_coo_tensor(
            indices,
            torch.ones(len(word_numbers)),
            (len(parts), len(names)),
            check_invariants=True,
        )
        self._embedding = embedding
        self._counts = counts.coalesce().to(embedding.device)
        self._counts_transposed = counts.t().coalesce().to(embedding.device)
        hidden = embedding.shape[1]
        self.vectors = torch.nn.Parameter(torch.zeros(len(names), hidden, device=embedding.device))
        """What was learned of each part since the start, (parts, hidden)."""
        self._added = self.vectors.detach().clone()
        """The vectors that are in the embeddings of words already."""

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any, word_parts: Mapping[str, Sequence[str]]
    ) -> "WordParts | None":
        """Return the parts of a model's words; None where no word has any.

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
        """Give each word with parts the sum of vectors that are drawn for them, and nothing else.

        Args:
            standard_deviation: Of each number of a part's vector.
        """
        vectors = torch.randn_like(self.vectors) * standard_deviation
        words = torch.sparse.mm(self._counts, vectors)
        has_parts = self._counts.indices()[0].unique()
        self._embedding[has_parts] = words[has_parts]

    def collect_gradient(self) -> None:
        """Work out the gradient of the parts from that of the words."""
        gradient = self._embedding.grad
        if gradient is not None:
            gradient = torch.sparse.mm(self._counts_transposed, gradient)
        self.vectors.grad = gradient

    @torch.no_grad()
    def move_words(self) -> None:
        """Add to the words' embeddings what their parts have learned since the last call."""
        change = self.vectors - self._added
        self._embedding += torch.sparse.mm(self._counts, change)
        self._added.copy_(self.vectors)

    def restored(self) -> None:
        """Take note that vectors and embeddings were restored together."""
        self._added.copy_(self.vectors.detach())
