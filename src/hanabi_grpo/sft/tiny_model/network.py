"""The architecture of a tiny model and its supervised pretraining."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.settings.defaults import PromptStyle
from hanabi_grpo.sft.learning import measure
from hanabi_grpo.sft.samples import Sample, length_batches, padded, reply_logits
from hanabi_grpo.sft.tiny_model.recipe import Recipe
from hanabi_grpo.sft.tiny_model.transfer import Transfer, transfer
from hanabi_grpo.sft.word_parts import WordParts
from hanabi_grpo.training.model.shared_prefixes import share_prefixes

_BETAS = (0.9, 0.98)
"""Betas of AdamW."""
_MAX_GRAD_NORM = 1.0
_HELD_OUT_GAMES = 100
"""Games of each preset after the training games; small boards have few other starts."""
_HELD_OUT_BATCH = 32


_INITIALIZER_RANGE = 0.07
"""Standard deviation of initial weights.

About 1/sqrt(hidden_size), which a narrow model needs; with the usual 0.02 it learns little for 200
steps.
"""
_UNSCALED_SHARE = 0.5
"""Share of the steps after which the final norm is multiplied by `Recipe.logit_scale`.

In the other steps the network learns to be as unsure as before. Multiplied from the start, it
learns sums less well.
"""
_PARTS_SHARE = 0.4
"""Share of `_INITIALIZER_RANGE` for the vectors of parts.

A word has about six parts, so its initial vector is about as long as that of a word without parts.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a network; all others follow from them."""

    width: int
    """The hidden size, a multiple of `recipe.WIDTH_STEP`."""
    layers: int


_HEAD_WIDTH = 32
_HEADS_PER_KEY = 2
_FEED_FORWARD = 3
"""Width of the feed-forward part, as a multiple of the hidden size."""
_USUAL_SHAPE = Shape(width=128, layers=3)
"""0.6 M parameters without the embeddings."""
_SHAPE_OF_JOINED_WORDS = Shape(width=192, layers=2)
"""0.9 M parameters without the embeddings.

If one word carries the information of several, fewer but wider layers learn faster.
"""
_SHAPE_OF_TEXT = Shape(width=256, layers=3)
"""2.4 M parameters without the embeddings: facts have to be found among hundreds of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A tiny model and its figures on held-out games."""

    model: Any
    held_out: Mapping[str, Mapping[str, Any]]
    """By preset, see `learning.measure`."""
    transfer: Transfer | None
    """What it took from the model that it started from; None: it started from random weights."""


def trained_model(chat: ChatFormat, recipe: Recipe, progress: Progress) -> TrainedModel:
    """Build and train the model of a recipe.

    Args:
        chat: The chat format from `Recipe.chat`.
        recipe: The recipe.
        progress: Shows the games and the steps.

    Raises:
        SettingsError: The model to start from is another network.
    """
    samples: list[Sample] = []
    bar = progress.add_task("games of the teacher", total=recipe.num_games * len(recipe.presets))
    for setup in recipe.setups():
        samples += recipe.samples(setup, chat, recipe.num_games)
        progress.update(bar, advance=recipe.num_games)
    bar = progress.add_task("warm start", total=recipe.steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        word_parts = recipe.word_parts()
        model, parts = untrained_model(chat.tokenizer, word_parts, shape_of(recipe, word_parts))
        taken = None
        if recipe.start is not None:
            taken = transfer(model, chat.tokenizer, recipe.word_parts(), Path(recipe.start))
        for loss in warm_start(model, samples, recipe, parts):
            progress.update(bar, advance=1, description=f"warm start, loss {loss:.3f}")
    model.eval()
    held_out = {}
    for preset, setup in zip(recipe.presets, recipe.setups(), strict=True):
        games = recipe.samples(setup, chat, _HELD_OUT_GAMES, first_game=recipe.num_games)
        held_out[preset] = measure(model, list(games), micro_batch=_HELD_OUT_BATCH)
    return TrainedModel(model=model, held_out=held_out, transfer=taken)


def shape_of(recipe: Recipe, word_parts: Mapping[str, Sequence[str]]) -> Shape:
    """Return the shape of a recipe's network.

    Args:
        recipe: The recipe; its width and layers, if any, replace the usual ones.
        word_parts: See `Recipe.word_parts`.
    """
    shape = usual_shape(word_parts, reads_text=recipe.style == PromptStyle.FULL)
    if recipe.width is not None:
        shape = replace(shape, width=recipe.width)
    if recipe.layers is not None:
        shape = replace(shape, layers=recipe.layers)
    return shape


def usual_shape(word_parts: Mapping[str, Sequence[str]], *, reads_text: bool = False) -> Shape:
    """Return the shape of a network for such words.

    Args:
        word_parts: See `Recipe.word_parts`.
        reads_text: Whether it reads prompts in the full style.
    """
    if reads_text:
        return _SHAPE_OF_TEXT
    return _SHAPE_OF_JOINED_WORDS if word_parts else _USUAL_SHAPE


def untrained_model(
    tokenizer: Any, word_parts: Mapping[str, Sequence[str]], shape: Shape | None = None
) -> tuple[Any, WordParts | None]:
    """Return an untrained Qwen3 in float32, and the parts that its words share.

    Args:
        tokenizer: Its tokenizer.
        word_parts: See `Recipe.word_parts`.
        shape: The sizes of the network; None: those of a model that reads one word per fact.
    """
    token_ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    shape = shape or usual_shape(word_parts)
    num_heads = shape.width // _HEAD_WIDTH
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=_FEED_FORWARD * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads // _HEADS_PER_KEY,
        head_dim=_HEAD_WIDTH,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=_INITIALIZER_RANGE,
        dtype="float32",
        **token_ids,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**token_ids)
    parts = WordParts.of(model, tokenizer, word_parts)
    if parts is not None:
        parts.draw(_PARTS_SHARE * _INITIALIZER_RANGE)
    return model, parts


def warm_start(
    model: Any, samples: Sequence[Sample], recipe: Recipe, parts: WordParts | None = None
) -> Iterator[float]:
    """Train a model in place on the reply tokens of samples.

    Depending on the recipe, single turns come first, then whole conversations. Two runs are
    bit-identical only with the same number of threads.

    Args:
        model: The model.
        samples: Conversations.
        recipe: Steps, learning rate and batch size.
        parts: The parts that the model's words share.

    Yields:
        The loss of each step, in nats per reply token.
    """
    share_prefixes(model)
    parameters = list(model.parameters())
    if parts is not None:
        parameters.append(parts.vectors)
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, betas=_BETAS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps
    )
    model.train()
    turns = list(samples)
    if recipe.single_turn_share:
        turns = []
        for sample in samples:
            turns += single_turns(sample)
    # Each step has as many replies as `batch_size` whole conversations.
    batch_size = _batch_size(samples, recipe.batch_size)
    turns_per_step = round(batch_size * len(turns) / len(samples))
    batches_of_turns = length_batches(turns, recipe.seed, turns_per_step)
    batches_of_conversations = length_batches(samples, recipe.seed, batch_size)
    num_single_turn_steps = recipe.single_turn_share * recipe.steps
    num_unscaled_steps = int(_UNSCALED_SHARE * recipe.steps)
    for step in range(1, recipe.steps + 1):
        if step == num_unscaled_steps + 1:
            with torch.no_grad():
                model.model.norm.weight.mul_(recipe.logit_scale)
        is_single_turn = step <= num_single_turn_steps
        batch = next(batches_of_turns if is_single_turn else batches_of_conversations)
        logits, targets = reply_logits(model, *padded(batch))
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        if parts is not None:
            parts.collect_gradient()
        torch.nn.utils.clip_grad_norm_(parameters, _MAX_GRAD_NORM)
        optimizer.step()
        if parts is not None:
            parts.move_words()
        schedule.step()
        yield float(loss.detach())


def _batch_size(samples: Sequence[Sample], num_conversations: int) -> int:
    """Return how many samples have as many learned replies as some whole conversations.

    An answer to a question is a sample with one reply.
    """
    num_whole = sum(sample.question_start is None for sample in samples)
    if num_whole == len(samples):
        return num_conversations
    num_replies = 0
    for sample in samples:
        num_replies += len(_ends_of_replies(sample))
    num_moves = num_replies - (len(samples) - num_whole)
    wanted = num_conversations * num_moves / num_whole
    return round(wanted * len(samples) / num_replies)


def single_turns(sample: Sample) -> list[Sample]:
    """Return each turn of a Hanabi conversation as a conversation of its own.

    The first turn and later turns start in the same way only if there is no system message and line
    breaks are not tokens.
    """
    if sample.question_start is not None:
        start = sample.question_start
        ids = sample.ids[start:]
        return [replace(sample, ids=ids, is_reply=sample.is_reply[start:], question_start=0)]
    turns = []
    start = 0
    for end in _ends_of_replies(sample):
        turn = replace(sample, ids=sample.ids[start:end], is_reply=sample.is_reply[start:end])
        turns.append(turn)
        start = end
    return turns


def _ends_of_replies(sample: Sample) -> list[int]:
    """Return the position after the last token of each learned reply."""
    last = len(sample.ids) - 1
    ends = []
    for position, is_reply in enumerate(sample.is_reply):
        is_last_token = position == last or not sample.is_reply[position + 1]
        if is_reply and is_last_token:
            ends.append(position + 1)
    return ends
