"""Sampled softmax: few output words in a large vocabulary (Jean et al. 2015, arXiv 1412.2007).

A model of whole words may read 33,000 words, such as Hanabi's `fit2.cRY.r1`, but output only
fifteen. Most of an update is then spent on the logits of the other words and their gradients. Here
an update computes the logits of the words that occur in replies, and of a fresh random sample of
the others. Each sampled word is weighted by the number of words that it represents, so that the sum
over all words is estimated without bias.

Words that never occur in replies keep their embeddings for reading. With tied weights, each update
would otherwise move all of them just to make them less likely as output. The hidden states learn
that instead.
"""

import math
from collections.abc import Collection, Iterable
from itertools import compress

import numpy as np
import torch
from torch.nn.functional import embedding, linear

from hanabi_grpo.sft.samples import Sample

NUM_DRAWN = 1024
"""Number of words sampled per update from those that occur in no reply."""
_LEAST_OTHERS = 4 * NUM_DRAWN
"""Fewest words outside replies for sampling; below this, all logits are computed."""


class SampledSoftmax:
    """Logits of the words in replies and of sampled other words.

    Example:
        softmax = SampledSoftmax.of(samples, vocabulary=33131, seed=0)
        logits = softmax.logits(head.weight, hidden, key=step)
        loss = cross_entropy(logits, softmax.positions(targets))
    """

    def __init__(
        self, said: Collection[int], vocabulary: int, seed: int, device: torch.device
    ) -> None:
        """Store the words that occur in replies.

        Args:
            said: Their ids.
            vocabulary: Rows of the output head.
            seed: Seed of the sampled words.
            device: Device of the model.
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
        """Return a sampled softmax for these samples; None if too few words are outside replies.

        Args:
            samples: All training samples.
            vocabulary: Rows of the output head.
            seed: Seed of the sampled words.
            device: Device of the model.
        """
        said: set[int] = set()
        for sample in samples:
            said.update(compress(sample.ids, sample.is_reply))
        if vocabulary - len(said) < _LEAST_OTHERS:
            return None
        return cls(said, vocabulary, seed, device)

    def logits(self, weight: torch.Tensor, hidden: torch.Tensor, key: int) -> torch.Tensor:
        """Return logits whose softmax estimates the softmax over all words.

        Args:
            weight: Weight of the output head, (vocabulary, hidden).
            hidden: Input of the head, (tokens, hidden).
            key: Together with the seed, it determines which words are sampled.

        Returns:
            (tokens, reply words + `NUM_DRAWN`): first the words of replies in the order of their
            ids, then the sampled words, whose rows of the head get no gradient.
        """
        rng = np.random.default_rng([self._seed, key])
        drawn = torch.from_numpy(rng.integers(len(self._others), size=NUM_DRAWN))
        drawn_words = self._others[drawn].to(weight.device)
        # `embedding` instead of indexing: its gradient adds up whole rows, much faster on a CPU.
        logits = linear(hidden, embedding(self._said, weight))
        drawn_logits = linear(hidden, embedding(drawn_words, weight.detach()))
        return torch.cat([logits, drawn_logits + self._log_weight], dim=-1)

    def positions(self, words: torch.Tensor) -> torch.Tensor:
        """Return the positions of reply words among the logits.

        Args:
            words: Their ids, (tokens,).
        """
        return self._position[words]
