"""The architecture and its supervised start."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hanabi_grpo.tiny_model.corpus import Sample
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

    AdamW under a one-cycle schedule. Two runs agree bit for bit only with the same number of threads: sums
    over threads are rounded in another order.

    Args:
        model: A causal language model in float32.
        samples: What to learn.
        recipe: Steps, batch size, learning rate and seed.
        pad_id: Fills short rows.
        on_step: Receives the number of steps done and the loss in nats per reply token.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
    model.train()
    batches = _batches(samples, recipe)
    for step in range(1, recipe.steps + 1):
        batch = next(batches)
        longest = max(len(sample.ids) for sample in batch)
        ids = torch.full((len(batch), longest), pad_id)
        is_reply = torch.zeros((len(batch), longest), dtype=torch.bool)
        for row, sample in enumerate(batch):
            ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
            is_reply[row, : len(sample.ids)] = torch.tensor(sample.is_reply)
        # Rows are padded on the right and attention is causal, so no real token ever sees a pad: no mask is needed.
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][is_reply[:, 1:]])
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][is_reply[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        on_step(step, float(loss.detach()))
    model.eval()


def _batches(samples: Sequence[Sample], recipe: Recipe) -> Iterator[list[Sample]]:
    """Yield batches without end; the rows of one batch have about the same length, which saves padding."""
    rng = random.Random(recipe.seed)
    order = list(range(len(samples)))
    size = recipe.batch_size
    while True:
        rng.shuffle(order)
        batches = []
        for start in range(0, len(order), size * _WINDOW):
            window = sorted(order[start : start + size * _WINDOW], key=lambda index: len(samples[index].ids))
            batches += [window[at : at + size] for at in range(0, len(window), size)]
        rng.shuffle(batches)
        for batch in batches:
            yield [samples[index] for index in batch]
