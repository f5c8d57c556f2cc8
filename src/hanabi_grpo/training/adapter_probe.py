"""The adapter check: does an adapter change the sampler the way it changes the trainer?

Two failures are silent. vLLM skips the weights of modules whose names it does not find in its own
model, e.g. in a class that wraps the model under another prefix, and a replica may miss an upload
that the others received. An adapter changes nothing before its first update, so no other check
would notice at the start, and the mismatch check would notice only after the policy has moved.

So the B matrices of each player's adapter are replaced with random ones, scaled to change the
output of every module by `STRENGTH` times what its weight makes of a random input. This probe
adapter is uploaded like any other, under a name that no seat can have. Every replica of the
player's base model scores a few fixed token sequences with and without it, then drops it. With t
the change of the trainer's logprobs and s the change of the sampler's, both vectors over all
tokens, the run continues if

    |s - t| <= limit · |t|.

Otherwise one probe adapter per kind of module (q_proj, …) finds the kinds that have no effect. In
16 bits the limit for all modules together is larger than the difference that a single ineffective
kind may cause, so each kind is probed from a smaller difference on, and these probes decide
(`Limits`).

Neither the run's random numbers nor its adapters are changed: the current weights are restored bit
by bit.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer

from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.link import ProbedReplica
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow, collate
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import Policy

logger = logging.getLogger(__name__)

STRENGTH = 0.3
"""Norm of what the adapter adds to a module's output, divided by the norm of the output, for a
random input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest allowed differences between sampler and trainer, as shares of the trainer's change.

    Measured on small models on a CPU: rounding alone caused 3e-6 in float32 and 0.03 to 0.05 in
    bfloat16, and a kind of module without effect caused 0.15 to 0.8.
    """

    suspicion: float
    """For all modules together; above it each kind of module is probed."""
    whole: float
    """For all modules together; above it the run stops, whatever the single kinds show."""
    kind: float
    """For one kind of module alone, as a share of its own change."""
    noise: float
    """For one kind of module, as a share of the change by all modules; smaller differences are
    ignored."""


_16_BITS = Limits(suspicion=0.08, whole=0.25, kind=0.5, noise=0.05)
LIMITS = {
    "float32": Limits(suspicion=0.01, whole=0.01, kind=0.01, noise=0.002),
    "bfloat16": _16_BITS,
    "float16": _16_BITS,
}
"""Limits by number format."""
SILENT = 0.1
"""A kind of module has no effect if it changes the sampler by less than this share of its change
of the trainer."""
_VISIBLE = 1e-3
"""Smallest change of the trainer's logprobs, in nats, if an adapter is used."""
_NUM_SEQUENCES = 4
_NUM_IDS = 24
"""Length of a sequence; the first id has no logprob."""
_SEED = 29
"""Seed of the probe's own random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How far an adapter moves the logprobs of sampler and trainer on one replica."""

    where: str
    """Which replica it is, see `ProbedReplica.where`."""
    sampler: float
    """Mean |change| of the sampler's logprobs, in nats."""
    trainer: float
    """Mean |change| of the trainer's logprobs, in nats."""
    sampler_norm: float
    """Root mean square of the sampler's changes."""
    trainer_norm: float
    """Root mean square of the trainer's changes."""
    difference_norm: float
    """Root mean square of the difference between the two changes."""

    @classmethod
    def of(cls, trainer: torch.Tensor, replica: ProbedReplica) -> "Effect":
        """Return the effect on one replica.

        Args:
            trainer: [tokens] change of the trainer's logprobs.
            replica: The replica's logprobs of the same tokens.
        """
        under = torch.tensor(replica.under, dtype=torch.float64)
        sampler = under - torch.tensor(replica.without, dtype=torch.float64)
        return cls(
            where=replica.where,
            sampler=float(sampler.abs().mean()),
            trainer=float(trainer.abs().mean()),
            sampler_norm=_norm(sampler),
            trainer_norm=_norm(trainer),
            difference_norm=_norm(sampler - trainer),
        )

    @property
    def difference(self) -> float:
        """Difference between the two changes, as a share of the trainer's."""
        return self.difference_norm / self.trainer_norm if self.trainer_norm else 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the adapter has no effect, or almost none, on the sampler."""
        return self.sampler_norm < SILENT * self.trainer_norm

    def agrees(self, tolerance: float, noise: float = 0.0) -> bool:
        """Tell whether the sampler changes as the trainer does.

        Args:
            tolerance: Largest allowed difference between the changes, as a share of the trainer's.
            noise: Norm up to which a difference is ignored.
        """
        # Written with <= so that NaN never agrees.
        return self.difference_norm <= max(tolerance * self.trainer_norm, noise)


def _norm(change: torch.Tensor) -> float:
    return float(change.double().square().mean().sqrt())


class AdapterProbe:
    """Sends each player's probe to the rollout servers; used by the main process only."""

    def __init__(
        self, policy: Policy, link: Link, *, dtype: str, pad_id: int, device: torch.device
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            policy: The trained policy.
            link: Link to the rollout servers.
            dtype: HANABI_DTYPE.
            pad_id: Token id of the padding.
            device: Where the model is.
        """
        self._policy = policy
        self._link = link
        self._dtype = dtype
        self._limits = LIMITS[dtype]
        self._pad_id = pad_id
        self._device = device
        self._probed: tuple[str, ...] = ()
        """The server processes that have been probed."""

    def find_problem(self) -> str:
        """Probe new server processes; returns a description of the problem, "" if there is none."""
        instances = self._link.instances
        if instances == self._probed:
            return ""
        if not self._policy.has_whole_weights:
            logger.warning(
                "under ZeRO-3 no process holds whole adapters, so the adapter check is skipped: a "
                "server whose model ignores adapters is not detected by it"
            )
            self._probed = instances
            return ""
        start = time.monotonic()
        moved = []
        worst = 0.0
        for name in self._policy.adapter_names:
            effects = self._effects(name)
            problem = self._judge(name, effects)
            if problem:
                return problem
            moved.append(f"{name} by {effects[0].trainer:.2g} nats")
            worst = max(worst, *(effect.difference for effect in effects))
        logger.info(
            "adapter check: random adapters change the logprobs of sampler and trainer alike (%s; "
            "%d replica(s); largest difference %.2g %%; %.1f s)",
            ", ".join(moved),
            len(effects),
            100 * worst,
            time.monotonic() - start,
        )
        # Not `self._link.instances`: a server that was replaced during the probe is probed again.
        self._probed = instances
        return ""

    def _effects(self, name: str, kind: str | None = None) -> list[Effect]:
        """Return how far a player's probe moves logprobs on each replica of its base model.

        Args:
            name: Name of the adapter.
            kind: The only kind of module that the probe changes; None: all kinds.
        """
        batch = self._batch(name)
        model = self._policy.model
        parameters = adapters.trainable_parameters(model, name)
        without = self._logprobs(batch, None)
        with adapters.holding(parameters, self._probe_values(name, kind)):
            under = self._logprobs(batch, name)
            weights, config = adapters.export_adapter(model, name, getattr(torch, self._dtype))
        replicas = self._link.probe(name, weights, config, batch.ids.tolist())
        return [Effect.of(under - without, replica) for replica in replicas]

    def _logprobs(self, batch: MicroBatch, adapter: str | None) -> torch.Tensor:
        logprobs = self._policy.served_logprobs(batch, adapter, temperature=1.0)
        return logprobs.double().cpu()

    def _batch(self, name: str) -> MicroBatch:
        """Return the token sequences of a probe, the same for all adapters of a base model."""
        config = self._policy.model_of(name).config.get_text_config()
        # Special tokens are usually at the beginning or the end of a vocabulary.
        first = config.vocab_size // 4
        last = max(config.vocab_size // 2, first + 1)
        generator = torch.Generator().manual_seed(_SEED)
        shape = (_NUM_SEQUENCES, _NUM_IDS)
        rows = []
        for ids in torch.randint(first, last, shape, generator=generator).tolist():
            row = TokenRow(
                ids=ids,
                mask=[False] + [True] * (_NUM_IDS - 1),
                logprobs=[0.0] * _NUM_IDS,
                advantages=[0.0] * _NUM_IDS,
            )
            rows.append(row)
        num_replies = _NUM_SEQUENCES * (_NUM_IDS - 1)
        return collate(
            rows, name, num_replies, self._pad_id, self._device, self._policy.shares_prefixes
        )

    def _probe_values(self, name: str, kind: str | None) -> dict[str, torch.Tensor]:
        """Return the B matrices of a probe, by parameter name.

        For x with random entries, |W x| is about |W| |x| / √in. If the entries of B have the
        standard deviation σ, |s B A x| is about s σ √out |A| |x| / √in.

        Args:
            name: Name of the adapter.
            kind: The only kind of module with nonzero B; None: all kinds.
        """
        values = {}
        generator = torch.Generator().manual_seed(_SEED + self._policy.adapter_names.index(name))
        for path, layer in self._layers(name).items():
            up = layer.lora_B[name].weight
            down = layer.lora_A[name].weight
            # Always drawn, so that a single kind gets the same numbers as in the probe of all.
            value = torch.randn(up.shape, generator=generator)
            if kind in (None, _kind_of(path)):
                weight = layer.get_base_layer().weight
                size = _matrix_norm(down) * layer.scaling[name] * up.shape[0] ** 0.5
                value *= STRENGTH * _matrix_norm(weight) / size
            else:
                value.zero_()
            values[f"{path}.lora_B.{name}.weight"] = value
        return values

    def _layers(self, name: str) -> Mapping[str, LoraLayer]:
        """Return the layers that have the adapter, by their paths in the model."""
        layers = {}
        for path, module in self._policy.model.named_modules():
            if isinstance(module, LoraLayer) and name in module.lora_A:
                layers[path] = module
        return layers

    def _judge(self, name: str, effects: Sequence[Effect]) -> str:
        """Return what is wrong with the probe of a player, "" if nothing is."""
        limits = self._limits
        base = self._policy.base_name(name)
        whose = f"{name} on {base}" if base else name
        if not effects[0].trainer_norm > _VISIBLE:
            return (
                f"{whose}: an adapter with random weights moves the trainer's own logprobs by "
                f"{effects[0].trainer:.3g} nats on average, so the trainer does not use it. "
                "Nothing was updated. Another version of transformers or peft may use different "
                "names for the model's modules; `hanabi-grpo doctor` lists the versions that work "
                "together."
            )
        suspicious = [effect for effect in effects if not effect.agrees(limits.suspicion)]
        if not suspicious:
            return ""
        kinds = self._kinds(name, suspicious)
        worst = max(suspicious, key=lambda effect: effect.difference)
        if worst.agrees(limits.whole) and not kinds.names:
            logger.warning(
                "adapter check of %s: the changes of sampler and trainer differ by %.1f %%, but "
                "each kind of module on its own has the same effect on both",
                name,
                100 * worst.difference,
            )
            return ""
        num_tokens = _NUM_SEQUENCES * (_NUM_IDS - 1)
        return (
            f"{whose}: an adapter with random weights moves the sampler's logprobs by "
            f"{worst.sampler:.3g} nats on average and the trainer's by {worst.trainer:.3g} over "
            f"{num_tokens} tokens; the two changes differ by {worst.difference:.1%} (allowed: "
            f"{limits.suspicion:.0%}).{_where(suspicious, len(effects))}{kinds.sentence} "
            f"Nothing was updated. {_remedy(suspicious, len(effects))}"
        )

    def _kinds(self, name: str, suspicious: Sequence[Effect]) -> "_Kinds":
        """Return the kinds of modules that have a wrong effect on these replicas."""
        places = {effect.where for effect in suspicious}
        # A kind of module that changes almost nothing must not be judged by its rounding error.
        noise = self._limits.noise * max(effect.trainer_norm for effect in suspicious)
        silent = []
        different = []
        for kind in sorted({_kind_of(path) for path in self._layers(name)}):
            effects = [one for one in self._effects(name, kind) if one.where in places]
            wrong = [one for one in effects if not one.agrees(self._limits.kind, noise)]
            if any(one.is_silent for one in wrong):
                silent.append(kind)
            elif wrong:
                different.append(kind)
        return _Kinds(silent=silent, different=different)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """The kinds of modules whose effect on the sampler differs from that on the trainer."""

    silent: Sequence[str]
    """Kinds without effect on the sampler."""
    different: Sequence[str]
    """Kinds with a different effect."""

    @property
    def names(self) -> list[str]:
        return [*self.silent, *self.different]

    @property
    def sentence(self) -> str:
        """The sentence about them in a message, with a leading space."""
        sentence = ""
        if self.silent:
            sentence += f" No effect on the sampler: {', '.join(self.silent)}."
        if self.different:
            sentence += f" Different effect than on the trainer: {', '.join(self.different)}."
        return sentence or " Each kind of module on its own acts as it does on the trainer."


def _where(suspicious: Sequence[Effect], num_replicas: int) -> str:
    """Return a sentence that names the affected replicas, "" if there is only one replica."""
    places = [effect.where for effect in suspicious if effect.where]
    if not places:
        return ""
    rest = num_replicas - len(suspicious)
    others = f"; the other {rest} agree" if rest else ""
    return f" Affected: {'; '.join(places)}{others}."


def _remedy(suspicious: Sequence[Effect], num_replicas: int) -> str:
    if len(suspicious) < num_replicas:
        return "A replica missed an upload: restart the server, then the trainer."
    return (
        "vLLM skips the weights of modules whose names it does not find in its class for this "
        "MODEL. Use a MODEL whose module names are the same in transformers and vLLM (a plain "
        "...ForCausalLM), or a vLLM version that recognizes them, see docs/troubleshooting.md."
    )


def _kind_of(path: str) -> str:
    """Return the last part of a module's path, e.g. "q_proj"."""
    return path.rpartition(".")[2]


def _matrix_norm(matrix: Any) -> float:
    return float(torch.linalg.vector_norm(matrix.detach(), dtype=torch.float32))
