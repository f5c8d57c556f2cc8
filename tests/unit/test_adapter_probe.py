"""Adapters that the sampler ignores are found before the first step, and named."""

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.adapter_probe import AdapterProbe
from hanabi_grpo.training.link import ProbedReplica
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import Policy
from loop_parts import NAMES, RunOfATest, same_weights
from small_models import small_model

KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


class ModelServer:
    """A server that merges an upload into copies of the base models, without PEFT.

    It is a link, too. Each replica leaves out the modules of `ignored`, by their kinds or paths.
    """

    def __init__(self, base_of: Mapping[str, Any], dtype: torch.dtype, num_replicas: int) -> None:
        self.instances: tuple[str, ...] = ("first",)
        self.ignored: list[set[str]] = [set() for _ in range(num_replicas)]
        self.scale = 1.0
        """By which every adapter is multiplied."""
        self.probed: list[str] = []
        """The players that were asked about."""
        self._base_of = {player: copy.deepcopy(base).to(dtype) for player, base in base_of.items()}
        self._dtype = dtype

    def probe(
        self,
        adapter: str,
        weights: bytes,
        config: Mapping[str, Any],
        sequences: Sequence[Sequence[int]],
    ) -> list[ProbedReplica]:
        self.probed.append(adapter)
        replicas = []
        for number, ignored in enumerate(self.ignored, start=1):
            where = f"replica {number} of {len(self.ignored)}" if len(self.ignored) > 1 else ""
            base = self._base_of[adapter]
            merged = self._merged(base, load(weights), config, ignored)
            replica = ProbedReplica(
                where=where,
                without=_logprobs(base, sequences),
                under=_logprobs(merged, sequences),
            )
            replicas.append(replica)
        return replicas

    def _merged(
        self, base: Any, tensors: Mapping[str, Any], config: Mapping[str, Any], ignored: set[str]
    ) -> Any:
        model = copy.deepcopy(base)
        scaling = self.scale * config["lora_alpha"] / config["r"]
        for path, module in model.named_modules():
            if f"{PREFIX}{path}.lora_A.weight" not in tensors:
                continue
            if path in ignored or path.rpartition(".")[2] in ignored:
                continue
            down = tensors[f"{PREFIX}{path}.lora_A.weight"].float()
            up = tensors[f"{PREFIX}{path}.lora_B.weight"].float()
            merged = module.weight.float() + scaling * up @ down
            module.weight.data = merged.to(self._dtype)
        return model


@torch.no_grad()
def _logprobs(model: Any, sequences: Sequence[Sequence[int]]) -> list[float]:
    ids = torch.tensor(sequences)
    logits = model(input_ids=ids).logits.float()
    logprobs = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])
    return logprobs.flatten().tolist()


def base_model(**sizes: float) -> Any:
    """A base model, the same at every call, whose attention is not uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return small_model(
            **{
                "vocab_size": 64,
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "initializer_range": 0.3,
                **sizes,
            }
        )


def probe_of(
    dtype: torch.dtype = torch.float32, num_replicas: int = 1
) -> tuple[AdapterProbe, ModelServer, Any]:
    """A probe of two players on one base model, its server, and the trainer's model."""
    base = base_model().to(dtype)
    server = ModelServer(dict.fromkeys(NAMES, base), dtype, num_replicas)
    model = adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)
    return made_probe(model, server, dtype), server, model


def made_probe(
    model: Any, server: ModelServer, dtype: torch.dtype, *, has_whole_weights: bool = True
) -> AdapterProbe:
    policy = Policy(model, NAMES, temperature=0.7, has_whole_weights=has_whole_weights)
    return AdapterProbe(
        policy,
        server,  # type: ignore[arg-type]
        dtype=str(dtype).removeprefix("torch."),
        pad_id=0,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_honest_server_passes_and_nothing_of_the_run_is_touched(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    probe, server, model = probe_of(dtype, num_replicas=2)
    before = {name: value.clone() for name, value in model.named_parameters()}
    random_state = torch.random.get_rng_state()
    with caplog.at_level(logging.INFO):
        assert probe.find_problem() == ""
    assert server.probed == list(NAMES)
    assert "2 replica(s)" in caplog.text
    assert "player_1 by" in caplog.text
    assert torch.equal(random_state, torch.random.get_rng_state())
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_module_that_is_ignored_is_named(dtype: torch.dtype, kind: str) -> None:
    probe, server, _ = probe_of(dtype)
    server.ignored[0].add(kind)
    problem = probe.find_problem()
    assert problem.startswith("player_0: an adapter with random weights moves the sampler's")
    assert f"No effect on the sampler: {kind}. Nothing was updated." in problem
    assert "vLLM skips the weights of modules whose names it does not find" in problem


def test_a_server_that_ignores_whole_adapters_names_all_kinds_and_how_far_both_move() -> None:
    probe, server, _ = probe_of()
    server.ignored[0].update(KINDS)
    problem = probe.find_problem()
    assert "moves the sampler's logprobs by 0 nats on average and the trainer's by " in problem
    assert "the two changes differ by 100.0% (allowed: 1%)" in problem
    assert f"No effect on the sampler: {', '.join(sorted(KINDS))}." in problem


def test_in_float32_one_module_of_one_layer_is_enough() -> None:
    probe, server, _ = probe_of()
    server.ignored[0].add("model.layers.1.mlp.up_proj")
    assert "Different effect than on the trainer: up_proj." in probe.find_problem()


def test_a_replica_that_missed_the_upload_is_named() -> None:
    probe, server, _ = probe_of(num_replicas=3)
    server.ignored[1].update(KINDS)
    problem = probe.find_problem()
    assert "Affected: replica 2 of 3; the other 2 agree." in problem
    assert "A replica missed an upload: restart the server" in problem


def test_an_adapter_that_is_loaded_with_another_scale_has_another_effect() -> None:
    probe, server, _ = probe_of()
    server.scale = 2.0
    problem = probe.find_problem()
    assert f"Different effect than on the trainer: {', '.join(sorted(KINDS))}." in problem


def test_a_trainer_that_does_not_use_its_adapters_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe, server, _ = probe_of()
    server.ignored[0].update(KINDS)
    real = probe._policy.served_logprobs
    monkeypatch.setattr(
        probe._policy, "served_logprobs", lambda batch, _, **options: real(batch, None, **options)
    )
    assert probe.find_problem().startswith(
        "player_0: an adapter with random weights moves the trainer's own logprobs by 0 nats"
    )


def test_the_base_model_of_a_team_that_ignores_adapters_is_named() -> None:
    sizes: dict[str, dict[str, float]] = {"A": {}, "B": {"hidden_size": 48, "vocab_size": 80}}
    base_of = dict(zip(NAMES, sizes, strict=True))
    bases = {name: base_model(**size) for name, size in sizes.items()}
    for name, base in bases.items():
        base.name_or_path = f"models/{name}"
    server = ModelServer({player: bases[base_of[player]] for player in NAMES}, torch.float32, 1)
    ranks = dict.fromkeys(NAMES, 4)
    team = adapters.add_team_adapters(bases, base_of, rank=ranks, alpha=ranks, seed=1)
    probe = made_probe(team, server, torch.float32)
    assert probe.find_problem() == ""
    assert server.probed == list(NAMES)
    server.instances = ("second",)
    server._base_of["player_1"].model.layers[0].self_attn.q_proj.weight.data *= 1.5
    problem = probe.find_problem()
    assert problem.startswith("player_1 on models/B: an adapter with random weights")


def test_only_server_processes_that_are_new_are_asked() -> None:
    probe, server, _ = probe_of()
    probe.find_problem()
    probe.find_problem()
    assert server.probed == list(NAMES)
    server.ignored[0].add("k_proj")
    server.instances = ("second",)
    assert "No effect on the sampler: k_proj" in probe.find_problem()


def test_under_zero_3_nobody_is_asked_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    _, server, model = probe_of()
    server.ignored[0].update(KINDS)
    probe = made_probe(model, server, torch.float32, has_whole_weights=False)
    assert probe.find_problem() == ""
    assert probe.find_problem() == ""
    assert server.probed == []
    warning = "under ZeRO-3 no process holds whole adapters, so the adapter check is skipped"
    assert caplog.text.count(warning) == 1


def server_of(run: RunOfATest) -> ModelServer:
    """Return an honest server of a run's base model, and let the run ask it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = small_model()
    server = ModelServer(dict.fromkeys(NAMES, base), torch.float32, num_replicas=1)
    run.link.instances = server.instances
    run.link.probe = server.probe  # type: ignore[attr-defined]
    return server


def test_a_run_stops_before_anything_is_pushed_or_played(tmp_path: Path) -> None:
    run = RunOfATest(tmp_path)
    server_of(run).ignored[0].add("o_proj")
    with pytest.raises(ParityError, match=r"player_0: an adapter .* on the sampler: o_proj\."):
        train(run.run)
    assert run.link.pushed == []
    assert run.run.state.step == 0


def test_a_run_that_was_probed_is_bit_by_bit_the_run_that_was_not(tmp_path: Path) -> None:
    plain = RunOfATest(tmp_path / "plain")
    torch.manual_seed(3)
    train(plain.run)
    probed = RunOfATest(tmp_path / "probed")
    server = server_of(probed)
    torch.manual_seed(3)
    train(probed.run)
    assert server.probed == list(NAMES)
    assert probed.link.pushed == plain.link.pushed == [0, 1, 2, 3]
    for player in NAMES:
        assert same_weights(plain.weights(player), probed.weights(player))
