"""R8 and R11: sequences and padding.

R8 shows what one sequence per game and player saves, R11 how little of a micro-batch is padding.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.context import Bench
from bench.pairing import Measure, Pair, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_least, at_most
from bench.stand_in import SUITE, chat_of, compact_config
from hanabi_grpo.envs.hanabi.config import EnvConfig

if TYPE_CHECKING:
    from hanabi_grpo.envs.base import Policy
    from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow

_PLAYER = "player_0"
_VOCABULARY = 200
_LEAST_COSINE = 0.999
"""Minimum cosine between the gradients of two arms that learn the same."""
# For R8.
_GAMES = 16
"""Games of one player."""
_TURNS = 8
"""The player's turns per game."""
_PROMPT = 45
"""Tokens of a turn's message."""
_REPLY = 3
"""Tokens of a turn's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Training on whole conversations compared with training turn by turn."""

    pairs: list[Pair]
    """Conversations first, turns second; amounts are tokens with loss."""
    cosine: float
    """Cosine between both gradients, over all adapter weights."""
    largest_difference: float
    """Largest difference of their elements, as a share of the largest element."""
    tokens: tuple[int, int]
    """Tokens that each arm reads, without padding."""


async def training(bench: Bench) -> list[Row]:
    """R8 and R11, without an engine."""
    rows = made_rows(
        num_games=_GAMES, turns=_TURNS, prompt=_PROMPT, reply=_REPLY, seed=bench.settings.seed
    )
    limit = bench.settings.tokens_per_micro_batch or 2048
    model = small_model(bench.settings.device)
    compared = await sequences_against_turns(model, rows, limit=limit, pairs=bench.pairs)
    check_cosine(compared.cosine)
    ratios, cpu = ratios_of(compared.pairs, of_time=True)
    config = compact_config("laptop")
    games = bench.settings.tasks_per_step * bench.settings.num_generations
    shares = []
    for seed in range(3):
        shares.append(await useful_share_of_bots(config, num_games=games, limit=limit, seed=seed))
    return [
        Row(
            id="R8",
            name="one sequence per game and player ÷ one per turn",
            arms=(
                "forward and backward over conversations",
                "the same loss, one sequence for each reply",
            ),
            ratios=ratios,
            cpu_ratios=cpu,
            target=at_most(1 / 3),
            how=f"{_GAMES} games, {_TURNS} turns of {_PROMPT} + {_REPLY} tokens; gradient cosine "
            f"{compared.cosine:.6f}",
            details={
                "cosine": compared.cosine,
                "largest_difference": compared.largest_difference,
                "tokens": list(compared.tokens),
            },
        ),
        Row(
            id="R11",
            name="useful ÷ padded tokens in a training batch",
            arms=("tokens of conversations", "tokens of micro-batches, padding included"),
            ratios=tuple(shares),
            target=at_least(0.9),
            how=f"{games} games of random players on laptop, cut at {limit} tokens, nothing shared",
        ),
    ]


def small_model(device: str = "cpu") -> Any:
    """Return a small Qwen3 with random weights and one nonzero adapter, in float32."""
    return with_adapter(base_model, device)


def base_model() -> Any:
    """Return a small Qwen3 with random weights in float32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    return Qwen3ForCausalLM(config)


def with_adapter(make: Callable[[], Any], device: str) -> Any:
    """Return a model, always with the same random weights, with one nonzero adapter.

    Args:
        make: Creates the base model.
        device: "cpu" or "gpu".
    """
    import torch

    from hanabi_grpo.training.model.adapters import add_adapters
    from hanabi_grpo.training.model.forward import join_lora_products

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = add_adapters(make(), [_PLAYER], rank=16, alpha=32, seed=1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    join_lora_products(model)
    return model.train().to("cpu" if device == "cpu" else "cuda")


def made_rows(
    *, num_games: int, turns: int, prompt: int, reply: int, seed: int
) -> list["TokenRow"]:
    """Return conversations of random tokens with random advantages, all of one length.

    Args:
        num_games: Number of conversations.
        turns: Turns per conversation.
        prompt: Tokens of a turn's message.
        reply: Tokens of its reply.
        seed: Seed of the tokens.
    """
    from hanabi_grpo.training.micro_batch import TokenRow

    rng = random.Random(seed)
    mask = ([False] * prompt + [True] * reply) * turns
    rows = []
    for game in range(num_games):
        advantages = [rng.gauss(0.0, 1.0) * is_reply for is_reply in mask]
        ids = [rng.randrange(1, _VOCABULARY) for _ in mask]
        row = TokenRow(
            ids=ids,
            mask=list(mask),
            logprobs=[0.0] * len(mask),
            advantages=advantages,
            game=game,
        )
        rows.append(row)
    return rows


def turn_rows(row: "TokenRow") -> list["TokenRow"]:
    """Return a sequence for each reply of a conversation.

    It contains everything before the reply, and has loss only on that reply.
    """
    sequences = []
    start = 0
    for end in range(1, len(row.mask) + 1):
        is_last_of_all = end == len(row.mask)
        ends_reply = row.mask[end - 1] and (is_last_of_all or not row.mask[end])
        if ends_reply:
            before = [0.0] * start
            sequence = replace(
                row,
                ids=row.ids[:end],
                mask=[False] * start + row.mask[start:end],
                logprobs=before + row.logprobs[start:end],
                advantages=before + row.advantages[start:end],
            )
            sequences.append(sequence)
            start = end
    return sequences


async def sequences_against_turns(
    model: Any, rows: Sequence["TokenRow"], *, limit: int, pairs: int
) -> Sequences:
    """Train on conversations and on their turns, which have the same loss.

    Args:
        model: A model with adapters; its weights are not changed.
        rows: Conversations of one player.
        limit: Tokens of a micro-batch, for both.
        pairs: Number of measured pairs.
    """
    turns: list[TokenRow] = []
    for row in rows:
        turns += turn_rows(row)

    async def whole() -> Measure:
        return learn(model, rows, limit)

    async def by_turn() -> Measure:
        return learn(model, turns, limit)

    measured = await measure_pairs(whole, by_turn, pairs=pairs)
    learn(model, rows, limit)
    gradient = gradient_of(model)
    learn(model, turns, limit)
    expected = gradient_of(model)
    return Sequences(
        pairs=measured,
        cosine=float((gradient @ expected) / (gradient.norm() * expected.norm())),
        largest_difference=float((gradient - expected).abs().max() / expected.abs().max()),
        tokens=(sum(len(row.ids) for row in rows), sum(len(row.ids) for row in turns)),
    )


def learn(
    model: Any,
    rows: Sequence["TokenRow"],
    limit: int,
    *,
    shared: bool = False,
    whole_logits: bool = False,
) -> Measure:
    """Compute the gradient of the policy's loss over rows in the model, and return its cost.

    The loss is −Σ advantage · logprob / tokens. Its gradient equals that of the clipped ratio while
    the policy is still the one that sampled.

    Args:
        model: A model with adapters; its weights are not changed.
        rows: Sequences of one player.
        limit: Tokens of a micro-batch.
        shared: Whether common prefixes are computed once; the model must share prefixes.
        whole_logits: See `forward.reply_logps`.
    """
    from hanabi_grpo.training.model.forward import reply_logps

    model.zero_grad()
    num_reply_tokens = sum(sum(row.mask) for row in rows)
    num_tokens = max(num_reply_tokens, 1)
    with Stopwatch() as watch:
        for batch in micro_batches_of(rows, limit, model.device, shared):
            logps = reply_logps(
                model,
                model,
                batch.ids,
                batch.reply_mask,
                1.0,
                batch.tree,
                whole_logits=whole_logits,
            )
            loss = -(logps * batch.advantages).sum() / num_tokens
            loss.backward()
        _wait_for(model.device)
    return watch.measure(num_tokens)


async def useful_share_of_bots(
    config: EnvConfig, *, num_games: int, limit: int, seed: int
) -> float:
    """Return the share of tokens that are not padding in micro-batches of random players' games.

    Args:
        config: The board.
        num_games: Games of one step.
        limit: Tokens of a micro-batch.
        seed: Seed of the first game.
    """
    from hanabi_grpo.envs.hanabi.environment import HANABI
    from hanabi_grpo.training.micro_batch import useful_share

    tasks = [(seed * num_games + game, game) for game in range(num_games)]
    batches = []
    for rows_of_player in await bot_rows(HANABI.policies["random"](), config, tasks):
        batches += micro_batches_of(rows_of_player, limit, "cpu")
    return useful_share(batches)


async def bot_rows(
    policy: "Policy", config: EnvConfig, tasks: Iterable[tuple[int, int]]
) -> "list[list[TokenRow]]":
    """Return each player's sequences, without advantages, of games with one bot in every seat.

    Args:
        policy: The bot.
        config: The board.
        tasks: Seed and number of each game.
    """
    from hanabi_grpo.envs.base import Setup
    from hanabi_grpo.envs.hanabi.environment import HANABI
    from hanabi_grpo.envs.recording import Recording
    from hanabi_grpo.envs.referee import play_scripts
    from hanabi_grpo.sft.encoding import Encoder
    from hanabi_grpo.training.micro_batch import TokenRow

    setup = Setup(HANABI, config)
    encoder = Encoder(
        setup=setup, chat=chat_of(config), max_model_len=1 << 20, max_completion_length=1 << 10
    )
    policies = dict.fromkeys(range(config.players), policy)
    rows: list[list[TokenRow]] = [[] for _ in policies]
    for seed, game in tasks:
        episode = play_scripts(setup.task(SUITE, seed), policies, number=game)
        for sample in encoder.samples(Recording(episode=episode), [True] * len(episode.turns)):
            zeros = [0.0] * len(sample.ids)
            mask = [bool(is_reply) for is_reply in sample.is_reply]
            rows[sample.player].append(
                TokenRow(ids=list(sample.ids), mask=mask, logprobs=zeros, advantages=zeros)
            )
    return rows


def micro_batches_of(
    rows: Sequence["TokenRow"], limit: int, device: Any, shared: bool = False
) -> "list[MicroBatch]":
    """Return the rows as micro-batches for one player and one process, see `batching.cut_rows`."""
    import torch

    from hanabi_grpo.training.batching import CutPlan, cut_rows
    from hanabi_grpo.training.micro_batch import collate

    cut = CutPlan(
        tokens_per_micro_batch=limit,
        micro_batches_per_player=1,
        rank=0,
        world_size=1,
        shares_prefixes=shared,
    )
    parts = cut_rows(list(rows), cut)
    return [collate(part, _PLAYER, 1, 0, torch.device(device), shared) for part in parts]


def gradient_of(model: Any) -> Any:
    """Return all gradients as one tensor."""
    import torch

    gradients = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradients.append(parameter.grad.flatten())
    return torch.cat(gradients).double()


def check_cosine(cosine: float) -> None:
    """Reject two arms that do not learn the same.

    Args:
        cosine: Cosine between their gradients.

    Raises:
        RuntimeError: The cosine is too small, or not a number.
    """
    if not cosine >= _LEAST_COSINE:
        raise RuntimeError(
            f"the gradients of the two arms have cosine {cosine:.6f}, less than {_LEAST_COSINE}: "
            "they do not learn the same, so they cannot be compared"
        )


def _wait_for(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
