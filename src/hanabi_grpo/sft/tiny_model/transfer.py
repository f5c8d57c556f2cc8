"""Start a tiny model from another one that knows other words, e.g. a game with more players.

Two boards of one game differ in some words of their prompts, and what a network has learned of one
of them is of use for the other. The network is copied, and so are the embeddings of the words that
both models know. Words that only the new model knows are sums of the parts that they share with
the others (`sft.word_parts`), as far as these are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.sft.word_parts import PartCounts

_RIDGE = 0.1
"""Weight of the squared norm of the parts' vectors in their fit, so that rare parts stay short."""
_SIZE_FIELDS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
"""Fields of a model's config that decide the shapes of its weights, besides its words."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How many words of a model have got their embeddings from where."""

    num_shared: int
    """Words that both models know: copied."""
    num_composed: int
    """Words that only the new model knows, from parts of words that both know."""
    num_new: int
    """Words without known parts, which keep their random embeddings."""

    def __str__(self) -> str:
        """Return a sentence for a log."""
        return (
            f"the network and {self.num_shared} words are copied, {self.num_composed} words are "
            f"composed of their parts, {self.num_new} are new"
        )


@torch.no_grad()
def transfer(
    model: Any, tokenizer: Any, word_parts: Mapping[str, Sequence[str]], source: Path
) -> Transfer:
    """Give an untrained model the weights of a trained one.

    Args:
        model: The untrained model; changed in place.
        tokenizer: Its tokenizer, with one token per word.
        word_parts: The parts of its words, see `Environment.word_parts`.
        source: Folder of the trained model.

    Raises:
        SettingsError: It is another network.
    """
    trained = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    _check_same_network(model.config, trained.config, source)
    numbers = tokenizer.get_vocab()
    trained_numbers = AutoTokenizer.from_pretrained(source).get_vocab()
    shared = [word for word in numbers if word in trained_numbers]
    known = trained.get_input_embeddings().weight
    # The untrained model's own, for words that are new.
    embeddings = model.get_input_embeddings().weight.clone()
    for word in shared:
        embeddings[numbers[word]] = known[trained_numbers[word]]
    vectors = _part_vectors(
        [word_parts.get(word, ()) for word in shared],
        embeddings[[numbers[word] for word in shared]],
    )
    num_composed = 0
    for word, number in numbers.items():
        known_parts = [part for part in word_parts.get(word, ()) if part in vectors]
        if word in trained_numbers or not known_parts:
            continue
        embeddings[number] = torch.stack([vectors[part] for part in known_parts]).sum(0)
        num_composed += 1
    trained_weights = dict(trained.named_parameters())
    own_embeddings = model.get_input_embeddings().weight
    for name, parameter in model.named_parameters():
        is_embedding = parameter is own_embeddings
        parameter.copy_(embeddings if is_embedding else trained_weights[name])
    return Transfer(len(shared), num_composed, len(numbers) - len(shared) - num_composed)


def _part_vectors(
    parts: Sequence[Sequence[str]], embeddings: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the vector of each part, such that their sums are close to the words' embeddings.

    Args:
        parts: Parts of each word; words without parts do not count.
        embeddings: Of the words, (words, hidden).

    Returns:
        A vector of shape (hidden,) for each part.
    """
    if not any(parts):
        return {}
    sparse, names = PartCounts.of(parts)
    counts = sparse.to_dense()
    squares = counts.T @ counts + _RIDGE * torch.eye(len(names))
    fitted = torch.linalg.solve(squares, counts.T @ embeddings)
    return dict(zip(names, fitted, strict=True))


def _check_same_network(wanted: Any, given: Any, source: Path) -> None:
    """Raise a SettingsError if two configs have weights of different shapes."""
    differences = []
    for field in _SIZE_FIELDS:
        own = getattr(wanted, field, None)
        other = getattr(given, field, None)
        if own != other:
            differences.append(f"{field} {other} instead of {own}")
    if differences:
        raise SettingsError(
            f"{source}: another network than this tiny model's: {', '.join(differences)}; start "
            "from a tiny model of the same game and style."
        )
