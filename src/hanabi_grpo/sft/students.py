"""What learns: each player's adapter, or the whole model; a student moves nothing but its own parameters."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.batches import length_batches, reply_logits
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.training.model.adapters import add_adapters, use_adapter
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.types import SHARED_ADAPTER, player_name, player_names

WHOLE_MODEL = "model"
"""Name of the one student that is no adapter."""
LARGE = 200_000_000
"""Parameters from which on activations are computed twice instead of kept (on a GPU)."""


@dataclass(slots=True, kw_only=True)
class Student:
    """One set of parameters with its own optimizer, batches and count of steps."""

    name: str
    """An adapter's name, or `WHOLE_MODEL`."""
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    held_out: Sequence[Sample]
    batches: Iterator[list[Sample]]
    select: Callable[[], None]
    """Makes the next forward pass go through these parameters."""
    step: int = 0
    """Updates that were made."""
    best: dict[str, torch.Tensor] | None = None
    """Its parameters (on the CPU) when the held-out loss was lowest, after at least one step."""
    best_step: int = 0
    best_loss: float = float("inf")

    def remember(self, loss: float) -> bool:
        """Keep the parameters if this held-out loss is the lowest; tells whether it is."""
        if not loss < self.best_loss:
            return False
        self.best = {name: value.detach().to("cpu", copy=True) for name, value in self.parameters.items()}
        self.best_loss, self.best_step = loss, self.step
        return True

    def skip_to(self, step: int) -> None:
        """Go to the batches of a resumed run."""
        self.step = step
        for _ in range(step):
            next(self.batches)


def load_base(settings: Settings, folder: Path, *, full: bool) -> Any:
    """Return the base model on the device that is used; float32 when all of it is trained.

    Raises:
        SettingsError: HANABI_DTYPE=float16, or a model whose logits are not its head over its last hidden states.
    """
    from transformers import AutoModelForCausalLM

    if settings.dtype == "float16":
        raise SettingsError("HANABI_DTYPE=float16: gradients underflow in it; warm-start takes bfloat16 or float32.")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32 if full else getattr(torch, settings.dtype), attn_implementation="sdpa"
    )
    on_gpu = settings.device == "gpu" and torch.cuda.is_available()
    model.to("cuda" if on_gpu else "cpu")
    if on_gpu and model.num_parameters() > LARGE:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _check_head(model, settings.model)
    share_prefixes(model)
    return model


def student_names(num_players: int, *, full: bool, shared: bool) -> tuple[str, ...]:
    """Return the names of all students."""
    return (WHOLE_MODEL,) if full else (SHARED_ADAPTER,) if shared else player_names(num_players)


def make_students(
    model: Any,
    names: Sequence[str],
    settings: Settings,
    taught: Sequence[Sample],
    held_out: Sequence[Sample],
    *,
    learning_rate: float,
    batch_size: int,
) -> tuple[Any, list[Student]]:
    """Wrap the base model for its students.

    Returns:
        The PEFT model, or the base model itself when all of it is trained; and the students.

    Raises:
        SettingsError: A player has no reply to learn from, or none held out.
    """
    is_full = tuple(names) == (WHOLE_MODEL,)
    wrapped, students = model, []
    if not is_full:
        wrapped = add_adapters(model, names, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=settings.seed)
    for number, name in enumerate(names):
        own, aside = (
            [one for one in samples if name in (WHOLE_MODEL, SHARED_ADAPTER, player_name(one.player))]
            for samples in (taught, held_out)
        )
        if not own or not aside:
            raise SettingsError(
                f"warm-start: {name} has {len(own)} conversations to learn from and {len(aside)} held out; both are "
                "needed. Give more games, filter less, or train one adapter for all with --shared."
            )
        parameters = {
            key: value
            for key, value in wrapped.named_parameters()
            if value.requires_grad and (is_full or f".{name}." in key)
        }
        students.append(
            Student(
                name=name,
                parameters=parameters,
                optimizer=torch.optim.AdamW(parameters.values(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
                held_out=aside,
                batches=length_batches(own, settings.seed + number, batch_size),
                select=(lambda: None) if is_full else partial(use_adapter, wrapped, name),
            )
        )
    return wrapped, students


def _check_head(model: Any, name: str) -> None:
    """Refuse a model that does more than a linear head after its last hidden state (soft caps, scales)."""
    ids = torch.arange(8, device=model.device).remainder(model.get_input_embeddings().num_embeddings)[None]
    marks = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        ours, _ = reply_logits(model, ids, marks)
        real = model(input_ids=ids).logits[0, :-1]
    gap = float((ours.float() - real.float()).abs().max())
    if not gap <= 1e-2 * max(1.0, float(real.float().abs().max())):
        raise SettingsError(
            f"MODEL={name}: its logits differ by {gap:.3g} from those of its output layer over its last hidden states; "
            "warm-start cannot train this architecture. Choose another model, e.g. of the Qwen3 or Llama family."
        )
