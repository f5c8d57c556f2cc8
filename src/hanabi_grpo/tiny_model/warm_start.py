"""The architecture and its supervised start."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hanabi_grpo.tiny_model.corpus import Sample, single_turns
from hanabi_grpo.tiny_model.recipe import Recipe

_WINDOW = 32


def new_model(tokenizer: Any) -> Any:
    """Return an untrained Qwen3 of about 0.6 M parameters in float32."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        # About 1/sqrt(hidden_size), as a narrow model needs it; from the usual 0.02 it learns little for 200 steps.
        initializer_range=0.07,
        bos_token_id=None,
        dtype="float32",
        **ends,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=None, **ends)
    return model


def warm_start(
    model: Any, samples: Sequence[Sample], recipe: Recipe, *, pad_id: int, on_step: Callable[[int, float], None]
) -> None:
    """Train `model` in place on the reply tokens of `samples`.

    AdamW under a one-cycle schedule; single turns first, then whole conversations, as the recipe says. Two runs
    agree bit for bit only with the same number of threads: sums over threads are rounded in another order.

    Args:
        model: A causal language model in float32.
        samples: What to learn.
        recipe: Steps, batch size, learning rate and seed.
        pad_id: Fills short rows.
        on_step: Receives the number of steps done and the loss in nats per reply token.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
    model.train()
    turns = [turn for sample in samples for turn in single_turns(sample)]
    # As many replies a step as in the second part.
    one_by_one = _batches(turns, recipe.seed, round(recipe.batch_size * len(turns) / len(samples)))
    conversations = _batches(samples, recipe.seed, recipe.batch_size)
    for step in range(1, recipe.steps + 1):
        batch = next(one_by_one if step <= recipe.single_turn_share * recipe.steps else conversations)
        longest = max(len(sample.ids) for sample in batch)
        ids = torch.full((len(batch), longest), pad_id)
        is_reply = torch.zeros((len(batch), longest), dtype=torch.bool)
        for row, sample in enumerate(batch):
            ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
            is_reply[row, : len(sample.ids)] = torch.tensor(sample.is_reply)
        # Rows are padded on the right and attention is causal, so no real token ever sees a pad: no mask is needed.
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][is_reply[:, 1:]])
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][is_reply[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        on_step(step, float(loss.detach()))
    model.eval()


def _batches(samples: Sequence[Sample], seed: int, size: int) -> Iterator[list[Sample]]:
    """Yield batches without end; the rows of one batch have about the same length, which saves padding."""
    rng = random.Random(seed)
    order = list(range(len(samples)))
    while True:
        rng.shuffle(order)
        batches = []
        for start in range(0, len(order), size * _WINDOW):
            window = sorted(order[start : start + size * _WINDOW], key=lambda index: len(samples[index].ids))
            batches += [window[at : at + size] for at in range(0, len(window), size)]
        rng.shuffle(batches)
        for batch in batches:
            yield [samples[index] for index in batch]
