"""Sampled softmax: a few words to say out of thousands to read (Jean et al. 2015, arXiv 1412.2007).

A model of whole words may read 33,000 of them, such as Hanabi's `fit2.cRY.r1`, and say fifteen. The
logits of all others and their gradients are most of an update then. Here an update computes the
logits of the words that replies consist of, and of some others that are drawn anew each time; a
drawn one counts for as many as it stands for, so that the sum over all words is estimated without
bias.

Words that are never said keep their embeddings for reading: with tied weights each update would
otherwise move all of them, only to make them less likely to be said. The hidden states learn that.
"""

import math
from collections.abc import Collection, Iterable
from itertools import compress

import numpy as np
import torch
from torch.nn.functional import embedding, linear

from hanabi_grpo.sft.samples import Sample

NUM_DRAWN = 1024
"""Words that are drawn for an update, of those that no reply has."""
_LEAST_OTHERS = 4 * NUM_DRAWN
"""Words that no reply has, below which all logits are computed."""


class SampledSoftmax:
    """Logits of the words of replies and of some others.

    Example:
        softmax = SampledSoftmax.of(samples, vocabulary=33131, seed=0)
        logits = softmax.logits(head.weight, hidden, key=step)
        loss = cross_entropy(logits, softmax.positions(targets))
    """

    def __init__(
        self, said: Collection[int], vocabulary: int, seed: int, device: torch.device
    ) -> None:
        """Begin with the words that replies have.

        Args:
            said: Their ids.
            vocabulary: Rows of the output head.
            seed: Of the words that are drawn.
            device: Of the model.
        """
        is_said = torch.zeros(vocabulary, dtype=torch.bool)
        is_said[sorted(said)] = True
        self._said = is_said.nonzero()[:, 0].to(device)
        self._others = (~is_said).nonzero()[:, 0]
        self._position = (is_said.cumsum(0) - 1).to(device)
        self._seed = seed
        self._log_weight = math.log(len(self._others) / NUM_DRAWN)

    @classmethod
    def of(
        cls, samples: Iterable[Sample], vocabulary: int, seed: int, device: torch.device
    ) -> "SampledSoftmax | None":
        """Return what fits some samples; None where there are too few words that no reply has.

        Args:
            samples: All that is learned.
            vocabulary: Rows of the output head.
            seed: Of the words that are drawn.
            device: Of the model.
        """
        said: set[int] = set()
        for sample in samples:
            said.update(compress(sample.ids, sample.is_reply))
        if vocabulary - len(said) < _LEAST_OTHERS:
            return None
        return cls(said, vocabulary, seed, device)

    def logits(self, weight: torch.Tensor, hidden: torch.Tensor, key: int) -> torch.Tensor:
        """Return logits whose softmax estimates that over all words.

        Args:
            weight: Of the output head, (vocabulary, hidden).
            hidden: What the head reads, (tokens, hidden).
            key: With the seed it decides which words are drawn.

        Returns:
            (tokens, said words + `NUM_DRAWN`): first the words of replies in the order of their
            ids, then the drawn ones, whose rows of the head get no gradient.
        """
        rng = np.random.default_rng([self._seed, key])
        drawn = torch.from_numpy(rng.integers(len(self._others), size=NUM_DRAWN))
        drawn_words = self._others[drawn].to(weight.device)
        # Not indexed: the gradient of `embedding` adds whole rows up, on a CPU much faster.
        logits = linear(hidden, embedding(self._said, weight))
        drawn_logits = linear(hidden, embedding(drawn_words, weight.detach()))
        return torch.cat([logits, drawn_logits + self._log_weight], dim=-1)

    def positions(self, words: torch.Tensor) -> torch.Tensor:
        """Return where words of replies are among the logits.

        Args:
            words: Their ids, (tokens,).
        """
        return self._position[words]
