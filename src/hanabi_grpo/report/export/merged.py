"""Base model and adapter as one model, compared with the two apart after it was written and read again."""

from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError

TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest difference of a logit that rounding explains, as a share of the largest logit, by the file's format."""
_PROBES, _PROBE_LENGTH = 4, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCheck:
    """How near a merged model is to base and adapter, in logits over random tokens."""

    dtype: str
    """Of the file: the base model's own."""
    worst: float
    """Largest difference of a logit."""
    drift: float
    """Root mean square of the differences."""
    effect: float
    """Root mean square of what the adapter changes of the base model's logits."""

    @property
    def keeps_the_effect(self) -> bool:
        """Whether rounding is small against what the adapter does; 16-bit weights can swallow a small adapter."""
        return self.drift <= 0.1 * self.effect

    @property
    def text(self) -> str:
        """What cards and the terminal say of it."""
        return (
            f"Written as {self.dtype} and read again, its logits over random tokens differ from base and adapter by at "
            f"most {self.worst:.2g} (root mean square {self.drift:.2g}; the adapter itself changes them by "
            f"{self.effect:.2g})."
        )


def write_merged(base: Path, adapter: Path, target: Path) -> MergeCheck:
    """Write the merged model with its tokenizer, read it again, and compare.

    Merged in float32 and written in the base model's own format. One model is in memory at a time, on the CPU: 4 bytes
    a parameter. Takes the folders of the base model, of a PEFT adapter, and of the new model.

    Raises:
        SettingsError: The adapter does not fit the base model, has values that are no finite numbers, or the merged
            model differs by more than rounding.
        OSError: It cannot be written.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype = str(getattr(AutoConfig.from_pretrained(base), "dtype", None) or "").removeprefix("torch.")
    dtype = dtype if dtype in TOLERANCES else "float32"
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        tokens = torch.randint(
            model.config.vocab_size, (_PROBES, _PROBE_LENGTH), generator=torch.Generator().manual_seed(0)
        )
        with torch.no_grad():
            plain = model(tokens).logits
            both = PeftModel.from_pretrained(model, adapter).eval()
            wanted = both(tokens).logits
            merged = both.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SettingsError(f"{adapter.name}: cannot be merged into {base} ({reason}).") from error
    merged.to(getattr(torch, dtype)).save_pretrained(target)
    AutoTokenizer.from_pretrained(base).save_pretrained(target)
    del model, both, merged
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()(tokens).logits
    check = MergeCheck(
        dtype=dtype,
        worst=float((found - wanted).abs().max()),
        drift=float((found - wanted).square().mean().sqrt()),
        effect=float((wanted - plain).square().mean().sqrt()),
    )
    limit = TOLERANCES[dtype] * max(1.0, float(wanted.abs().max()))
    # Not "greater": a difference that is no number must not pass.
    if not check.worst <= limit:
        raise SettingsError(
            f"{adapter.name}: merged weights give other logits than base and adapter: {check.worst:.3g} apart, allowed "
            f"is {limit:.3g}. Nothing was written; use the adapter, which is exact."
        )
    return check
