"""The probe of adapters: does an adapter change the sampler as it changes the trainer?

vLLM leaves out, without an error, the weights of modules whose names it does not find in its own
model, as in a class that wraps the model under another prefix, and a replica may miss an upload
that the others got. Before its first update an adapter changes nothing, so nothing else would tell,
and the mismatch check only later, once the policy has moved.

So each player's adapter gets a random B in the place of its own, of a size that changes the output
of every module by `STRENGTH` of what its weight makes of a random input. It is sent on the way of
every upload, under a name that no seat can have. Every replica of the player's base model scores a
few fixed token sequences with and without it, and it is dropped. With t the change of the trainer's
logprobs and s that of the sampler's, both a vector over all tokens, the run goes on where

    |s - t| <= limit · |t|.

Where it does not, one such adapter for each kind of module (q_proj, …) finds those that do nothing.
In 16 bits the limit of the whole is above what a single kind may make, so these are asked from a
smaller difference on, and decide (`Limits`).

Neither the run's random numbers nor its adapters are touched: the weights of now come back bit by
bit.
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
"""Norm of what the adapter adds to a module's output, over that of the output, for an input whose
entries are random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest differences of sampler and trainer, as shares of the trainer's change.

    Rounding alone made 3e-6 in float32 and 0.03 to 0.05 in bfloat16, a kind of module that did
    nothing 0.15 to 0.8 (small models on a CPU).
    """

    suspicion: float
    """Of all modules; from here on each kind of module is looked at."""
    whole: float
    """Of all modules; from here on the run stops whatever the kinds say."""
    kind: float
    """Of one kind of module alone, as a share of its own change."""
    noise: float
    """The same as a share of the change by all modules; less says nothing."""


_16_BITS = Limits(suspicion=0.08, whole=0.25, kind=0.5, noise=0.05)
LIMITS = {
    "float32": Limits(suspicion=0.01, whole=0.01, kind=0.01, noise=0.002),
    "bfloat16": _16_BITS,
    "float16": _16_BITS,
}
"""By number format."""
SILENT = 0.1
"""A kind of module whose change of the sampler is a smaller share of the trainer's does nothing."""
_VISIBLE = 1e-3
"""Nats by which the trainer's logprobs change at least where an adapter is used."""
_NUM_SEQUENCES = 4
_NUM_IDS = 24
"""Of a sequence; the first id is scored by none."""
_SEED = 29
"""Of the probe's own random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How far an adapter moves the logprobs of sampler and trainer on one replica."""

    where: str
    """Which replica it is, see `ProbedReplica.where`."""
    sampler: float
    """Mean |change| of the sampler's logprobs, in nats."""
    trainer: float
    """The same of the trainer's."""
    sampler_norm: float
    """Root mean square of the sampler's changes."""
    trainer_norm: float
    """The same of the trainer's."""
    difference_norm: float
    """The same of what the two changes differ by."""

    @classmethod
    def of(cls, trainer: torch.Tensor, replica: ProbedReplica) -> "Effect":
        """Return it.

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
        """What the two changes differ by, as a share of the trainer's."""
        return self.difference_norm / self.trainer_norm if self.trainer_norm else 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the adapter does nothing on the sampler, or next to nothing."""
        return self.sampler_norm < SILENT * self.trainer_norm

    def agrees(self, tolerance: float, noise: float = 0.0) -> bool:
        """Tell whether the sampler moves as the trainer does.

        Args:
            tolerance: Largest difference of the two changes over that of the trainer's.
            noise: Norm of a difference that says nothing.
        """
        # Not "larger than": what is not a number agrees with nothing.
        return self.difference_norm <= max(tolerance * self.trainer_norm, noise)


def _norm(change: torch.Tensor) -> float:
    return float(change.double().square().mean().sqrt())


class AdapterProbe:
    """Sends each player's probe to the rollout servers; the main process has one."""

    def __init__(
        self, policy: Policy, link: Link, *, dtype: str, pad_id: int, device: torch.device
    ) -> None:
        """Begin without having asked anybody.

        Args:
            policy: What is trained.
            link: To the rollout servers.
            dtype: HANABI_DTYPE.
            pad_id: The token that fills rows up.
            device: Where the model is.
        """
        self._policy = policy
        self._link = link
        self._dtype = dtype
        self._limits = LIMITS[dtype]
        self._pad_id = pad_id
        self._device = device
        self._probed: tuple[str, ...] = ()
        """The server processes that were asked."""

    def find_problem(self) -> str:
        """Ask the server processes that are new; returns what is wrong, "" where nothing is."""
        instances = self._link.instances
        if instances == self._probed:
            return ""
        if not self._policy.has_whole_weights:
            logger.warning(
                "under ZeRO-3 no process holds whole adapters, so it is not asked whether the "
                "server's model ignores them"
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
        # Not those of before: a server may have been replaced meanwhile.
        self._probed = instances
        return ""

    def _effects(self, name: str, kind: str | None = None) -> list[Effect]:
        """Return how far a player's probe moves logprobs on each replica of its base model.

        Args:
            name: Of the adapter.
            kind: The kind of module that it is of; None: of all modules.
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
        """Return the token sequences of a probe, which are the same for all of a base model."""
        config = self._policy.model_of(name).config.get_text_config()
        # Special tokens are at the beginning or the end of a vocabulary.
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
        """Return the matrices B of a probe, by the names of the parameters.

        For x with random entries |W x| is about |W| |x| / √in, and so |s B A x| is about
        s σ √out |A| |x| / √in where the entries of B have the deviation σ.

        Args:
            name: Of the adapter.
            kind: The kind of module that B is not 0 of; None: all.
        """
        values = {}
        generator = torch.Generator().manual_seed(_SEED + self._policy.adapter_names.index(name))
        for path, layer in self._layers(name).items():
            up = layer.lora_B[name].weight
            down = layer.lora_A[name].weight
            # Drawn in any case, so that a kind alone has the numbers that it has among all.
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
        """Return the layers that an adapter is on, by their paths in the model."""
        layers = {}
        for path, module in self._policy.model.named_modules():
            if isinstance(module, LoraLayer) and name in module.lora_A:
                layers[path] = module
        return layers

    def _judge(self, name: str, effects: Sequence[Effect]) -> str:
        """Return what is wrong with the probe of a player, "" where nothing is."""
        limits = self._limits
        base = self._policy.base_name(name)
        whose = f"{name} on {base}" if base else name
        if not effects[0].trainer_norm > _VISIBLE:
            return (
                f"{whose}: an adapter with random weights moves the trainer's own logprobs by "
                f"{effects[0].trainer:.3g} nats on average, so the trainer does not use it. "
                "Nothing was updated. Another version of transformers or peft may name the "
                "model's modules otherwise; `hanabi-grpo doctor` lists the versions that belong "
                "together."
            )
        suspicious = [effect for effect in effects if not effect.agrees(limits.suspicion)]
        if not suspicious:
            return ""
        kinds = self._kinds(name, suspicious)
        worst = max(suspicious, key=lambda effect: effect.difference)
        if worst.agrees(limits.whole) and not kinds.names:
            logger.warning(
                "probe of %s: the changes of sampler and trainer differ by %.1f %%, but each kind "
                "of module alone acts there as it does here",
                name,
                100 * worst.difference,
            )
            return ""
        num_tokens = _NUM_SEQUENCES * (_NUM_IDS - 1)
        return (
            f"{whose}: an adapter with random weights moves the sampler's logprobs by "
            f"{worst.sampler:.3g} nats on average and the trainer's by {worst.trainer:.3g} over "
            f"{num_tokens} tokens; the two changes differ by {worst.difference:.1%}, allowed are "
            f"{limits.suspicion:.0%}.{_where(suspicious, len(effects))}{kinds.sentence} "
            f"Nothing was updated. {_remedy(suspicious, len(effects))}"
        )

    def _kinds(self, name: str, suspicious: Sequence[Effect]) -> "_Kinds":
        """Return the kinds of modules that do not act on these replicas as they should."""
        places = {effect.where for effect in suspicious}
        # A kind of module that hardly moves anything here is not judged by its rounding.
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
    """The kinds of modules that do not act on the sampler as they do on the trainer."""

    silent: Sequence[str]
    """Those without an effect."""
    different: Sequence[str]
    """Those with another one."""

    @property
    def names(self) -> list[str]:
        return [*self.silent, *self.different]

    @property
    def sentence(self) -> str:
        """What a message says of them, with a space before it."""
        sentence = ""
        if self.silent:
            sentence += f" Without effect on the sampler: {', '.join(self.silent)}."
        if self.different:
            sentence += f" Of another effect than on the trainer: {', '.join(self.different)}."
        return sentence or " Each kind of module alone acts as it does on the trainer."


def _where(suspicious: Sequence[Effect], num_replicas: int) -> str:
    """Return a sentence on the replicas that are not as they should be."""
    places = [effect.where for effect in suspicious if effect.where]
    if not places:
        return ""
    rest = num_replicas - len(suspicious)
    others = f"; the other {rest} agree" if rest else ""
    return f" So it is on {'; '.join(places)}{others}."


def _remedy(suspicious: Sequence[Effect], num_replicas: int) -> str:
    if len(suspicious) < num_replicas:
        return "A replica missed an upload: restart the server, then the trainer."
    return (
        "vLLM skips the weights of modules whose names it does not find in its class for this "
        "MODEL. Take a MODEL whose names are alike in transformers and vLLM (a plain ...ForCausalLM"
        "), or a version of vLLM that knows them, see docs/troubleshooting.md."
    )


def _kind_of(path: str) -> str:
    """Return the last part of a module's path, e.g. "q_proj"."""
    return path.rpartition(".")[2]


def _matrix_norm(matrix: Any) -> float:
    return float(torch.linalg.vector_norm(matrix.detach(), dtype=torch.float32))
