"""`doctor --as`: runs on GPUs that are not here, planned by the real command."""

import json
import math
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import NOWHERE, ROOT, find, only
from gpu.random_model import ARCHITECTURES
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor import gpus
from hanabi_grpo.commands.doctor.context import Context, estimated_chat
from hanabi_grpo.commands.doctor.memory import ModelSizes
from hanabi_grpo.commands.doctor.nvidia_smi import Gpu
from hanabi_grpo.commands.doctor.plan import parse_assignments, parse_machine
from hanabi_grpo.commands.doctor.published import PUBLISHED, num_parameters_of
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.gpus import CARDS, SOLD, find_card

RUNNER = CliRunner()
HARDWARE = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
QWEN3_4B_PARAMETERS = 4_022_468_096


@pytest.fixture(autouse=True)
def _offline_checkout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in the checkout, and let every connection fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("a plan connects to nothing")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `doctor --json` and return its exit code and its report."""
    result = RUNNER.invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, json.loads(result.stdout)


def planned(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plan and the checks by their names."""
    _, report = run("--as", *arguments)
    return report["plan"], {check["name"]: check for check in report["checks"]}


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("8xH100-80GB", 8, "NVIDIA H100 80GB HBM3"),
        ("4×a100-80gb", 4, "NVIDIA A100-SXM4-80GB"),
        ("L4", 1, "NVIDIA L4"),
        ("2x RTX 4090", 2, "NVIDIA GeForce RTX 4090"),
        ("1xNVIDIA GeForce RTX3090-24GB", 1, "NVIDIA GeForce RTX 3090"),
        ("2xH100 PCIe", 2, "NVIDIA H100 PCIe"),
    ],
)
def test_gpus_are_named_as_people_write_them(text: str, count: int, name: str) -> None:
    machine = parse_machine(text)
    assert [gpu.number for gpu in machine] == [str(number) for number in range(count)]
    assert {gpu.name for gpu in machine} == {name}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("8xV100", "unknown card 'V100'; known cards: B200-180GB, .*RTX3090-24GB"),
        ("A100", "ambiguous; choose one of A100-80GB, A100-40GB"),
        ("16xH100-80GB", "16 GPUs; one machine may have 1 to 8"),
        ("0xH100-80GB", "0 GPUs; one machine may have 1 to 8"),
        ("-2xH100-80GB", "-2 GPUs; one machine may have 1 to 8"),
        ("", "use NxCARD"),
    ],
)
def test_other_machines_are_refused_with_what_is_known(text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse_machine(text)


def test_every_gpu_that_is_sold_has_its_own_data_sheet_and_is_in_the_docs() -> None:
    sheets = [find_card(card.name) for card in SOLD.values()]
    assert None not in sheets
    assert {id(sheet) for sheet in sheets} <= {id(card) for card in CARDS.values()}
    assert f"{', '.join(SOLD)}; 1 to 8" in " ".join(HARDWARE.split())


def test_the_published_sizes_give_the_parameters_that_the_models_have() -> None:
    numbers = {name: num_parameters_of(config) for name, config in PUBLISHED.items()}
    assert numbers == {
        "Qwen/Qwen3-0.6B": 596_049_920,
        "Qwen/Qwen3-1.7B": 1_720_574_976,
        "Qwen/Qwen3-4B": QWEN3_4B_PARAMETERS,
        "Qwen/Qwen3-8B": 8_190_735_360,
    }
    for name, config in PUBLISHED.items():
        built = ARCHITECTURES.get(name.removeprefix("Qwen/").lower(), config)
        assert {key: built[key] for key in config} == config


def test_eight_gpus_are_planned_with_their_profile() -> None:
    plan, checks = planned("8xH100-80GB", "MODEL=Qwen/Qwen3-4B", "HANABI_PRESET=mini")
    assert checks["gpus"]["finding"] == "planned: 8 × NVIDIA H100 80GB HBM3, 80 GiB each"
    assert checks["gpu split"]["finding"] == "server on 0,1,2,3, trainer on 4,5,6,7"
    assert "huggingface.co publishes" in checks["model"]["finding"]
    assert plan["boards"] == ["mini"]
    for terminal in ("server", "trainer"):
        memory = plan[terminal]
        assert memory["parts"]["weights"] == 2 * QWEN3_4B_PARAMETERS
        assert memory["needed"] == pytest.approx(sum(memory["parts"].values()))
        assert memory["fits"]
    assert plan["server"]["limit"] == pytest.approx(0.9 * 81_559 * 2**20)
    # The profile plays the next step's games while the trainer learns.
    parts = (plan["games_seconds"], plan["learning_seconds"])
    assert plan["step_seconds"] == pytest.approx(max(parts))
    in_turn, _ = planned(
        "8xH100-80GB", "MODEL=Qwen/Qwen3-4B", "HANABI_PRESET=mini", "HANABI_OVERLAP=0"
    )
    assert in_turn["step_seconds"] == pytest.approx(sum(parts))
    assert plan["hours_of_500_steps"] == pytest.approx(500 * plan["step_seconds"] / 3600)
    # Nothing of this machine is examined.
    assert not {"packages", "torch", "port", "server", "disk", "wandb"} & checks.keys()


def test_hours_are_also_told_for_the_steps_that_are_set() -> None:
    arguments = ("1xH100-80GB", "HANABI_PRESET=mini")
    plan, _ = planned(*arguments)
    shorter, checks = planned(*arguments, "MAX_STEPS=100")
    assert shorter["hours"] == pytest.approx(plan["hours_of_500_steps"] / 5)
    assert shorter["hours_of_500_steps"] == plan["hours_of_500_steps"]
    assert checks["settings"]["status"] == "ok"
    result = RUNNER.invoke(app, ["doctor", "--as", *arguments, "MAX_STEPS=100"])
    assert "hours for MAX_STEPS=100" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("share", "status", "finding"),
    [("0.9", "ok", "while the engine sleeps"), ("0.99", "warn", ": a sleeping engine (3 GiB)")],
)
def test_a_trainer_may_have_nearly_all_of_a_gpu_whose_engine_sleeps(
    share: str, status: str, finding: str
) -> None:
    profile = f"HANABI_PROFILE={ROOT / 'tools/profiles/gpu-1.env'}"
    _, checks = planned("1xH100-80GB", profile, "HANABI_SLEEP=1", f"HANABI_TRAINER_MEMORY={share}")
    split = checks["gpu split"]
    assert (split["status"], finding in split["finding"]) == (status, True)
    if status == "warn":
        assert split["remedy"] == "export HANABI_TRAINER_MEMORY=0.94"


@pytest.mark.parametrize(
    ("machine", "split", "model"),
    [
        ("4xA100-80GB", "server on 0,1, trainer on 2,3", "Qwen/Qwen3-4B"),
        ("2xL40S", "server on 0, trainer on 1", "Qwen/Qwen3-4B"),
        ("6xH100-80GB", "server on 0,1,2, trainer on 3,4,5", "Qwen/Qwen3-4B"),
        ("L4", "both terminals share GPU 0, the trainer takes up to 0.5 of it", "Qwen/Qwen3-1.7B"),
    ],
)
def test_gpus_are_split_by_the_profile_of_so_many_or_by_half(
    monkeypatch: pytest.MonkeyPatch, machine: str, split: str, model: str
) -> None:
    # That of this machine says nothing about the planned one.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    plan, checks = planned(machine, "HANABI_PRESET=mini")
    assert checks["gpu split"]["finding"] == split
    assert checks["server gpus"]["status"] == checks["trainer gpus"]["status"] == "ok"
    assert plan["model"] == model


def test_what_does_not_fit_is_a_warning_and_its_remedy_fits() -> None:
    plan, checks = planned("4xL4", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=mini")
    assert not plan["server"]["fits"]
    assert checks["memory"]["status"] == "warn"
    remedy, *_ = checks["memory"]["remedy"].splitlines()
    name, _, length = remedy.removeprefix("export ").partition("=")
    assert name == "HANABI_MAX_MODEL_LEN"
    plan, _ = planned(
        "4xL4", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=mini", f"HANABI_MAX_MODEL_LEN={length}"
    )
    assert plan["server"]["fits"]
    plan, _ = planned(
        "4xL4",
        "MODEL=Qwen/Qwen3-8B",
        "HANABI_PRESET=mini",
        f"HANABI_MAX_MODEL_LEN={int(length) + 1024}",
    )
    assert not plan["server"]["fits"]


def test_a_model_that_is_too_large_for_a_gpu_is_answered_with_a_smaller_one() -> None:
    plan, checks = planned("RTX4090", "MODEL=Qwen/Qwen3-4B", "HANABI_PRESET=mini")
    assert not plan["server"]["fits"]
    assert checks["memory"]["remedy"].startswith("export MODEL=Qwen/Qwen3-1.7B ")
    # One GPU is shared, so the trainer has its part of it.
    assert plan["trainer"]["limit"] == pytest.approx(0.5 * 24_564 * 2**20)


def test_a_folder_with_nothing_but_a_config_is_planned_like_the_published_model(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["Qwen/Qwen3-8B"]))
    published, _ = planned("8xH100-80GB", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=mini")
    own, checks = planned("8xH100-80GB", f"MODEL={tmp_path}", "HANABI_PRESET=mini")
    assert "its config.json (its weights are not here)" in checks["model"]["finding"]
    assert {**own, "model": ""} == {**published, "model": ""}


QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
}
"""From the config.json of Qwen/Qwen3-30B-A3B, which huggingface.co says has 30,532,122,624."""


def test_a_mixture_of_experts_is_planned_with_all_of_its_weights_and_adapters_on_attention(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    plan, checks = planned("8xH100-80GB", f"MODEL={tmp_path}", "HANABI_PRESET=mini")
    assert checks["model"]["finding"].endswith(
        "30.5 G parameters, 3.35 G active per token (8 of 128 experts); 2 adapters of rank 16, "
        "13.4 M each, on attention only"
    )
    # Each trainer process holds all experts; the four copies of the server divide them.
    assert plan["trainer"]["parts"]["weights"] == 2 * 30_532_122_624
    routed = 48 * 128 * 3 * 2048 * 768
    shared = 30_532_122_624 - routed
    assert plan["server"]["parts"]["weights"] == pytest.approx(2 * (shared + routed / 4))
    # Of each layer q and o: 16 × (4096 + 2048), k and v: 16 × (512 + 2048), in float32.
    adapter = 48 * (2 * 16 * 6144 + 2 * 16 * 2560)
    assert plan["trainer"]["parts"]["adapters"] == 4 * 2 * adapter
    # Fewer parameters work on a token than a dense model of 4 billion has.
    dense, _ = planned("8xH100-80GB", "MODEL=Qwen/Qwen3-4B", "HANABI_PRESET=mini")
    assert plan["learning_seconds"] < dense["learning_seconds"]


def test_the_parameters_of_other_mixtures_follow_from_the_names_of_their_sizes() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 10}
    attention = 4 * 4 * 8 * 8
    rest = 2 * 10 * 8 + 4 * 2 * 8 + 8
    # Mixtral: each layer has 4 experts of width 16, and a router.
    mixtral = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16}
    expected = attention + 4 * (4 * 3 * 8 * 16 + 4 * 8) + rest
    assert num_parameters_of({**sizes, **mixtral}) == expected
    # GLM and DeepSeek: the first layer is dense, of width 32; the others share one expert more.
    glm = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    }
    expected = attention + 3 * 8 * 32 + 3 * (5 * 3 * 8 * 16 + 4 * 8) + rest
    assert num_parameters_of({**sizes, **glm}) == expected
    found = ModelSizes.from_config({"text_config": {**sizes, **glm}})
    assert found is not None
    # The widest layer is the one of 2 + 1 experts, not the dense one.
    assert found.inner == 48
    # All 3 × 4 experts but 2 of each layer are idle for a token, none is for very many.
    assert found.active_parameters(expected) == expected - 3 * 2 * 3 * 8 * 16
    assert found.active_parameters(expected, 1000) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": None}, "it has no hidden_size"),
        ({"kv_lora_rank": 512}, "its attention is latent (kv_lora_rank)"),
        ({"layer_types": ["linear_attention"]}, "layers of an unknown kind (linear_attention)"),
        ({"num_experts_per_tok": None}, "its experts have unknown names for their sizes"),
    ],
)
def test_a_config_that_does_not_tell_the_size_of_its_model_is_no_plan(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3_30B_A3B, **change}))
    plan, checks = planned("8xH100-80GB", f"MODEL={tmp_path}", "HANABI_PRESET=mini")
    assert plan is None
    assert checks["model"]["status"] == "fail"
    assert reason in checks["model"]["finding"]
    assert {checks[name]["status"] for name in ("memory", "budget", "plan")} == {"skip"}


def remedies(check: dict[str, Any]) -> list[list[str]]:
    """Return the settings of each line that a check says to type."""
    lines = []
    for line in check["remedy"].splitlines():
        command, _, _ = line.partition("#")
        lines.append(command.removeprefix("export ").split())
    return lines


@pytest.mark.parametrize(
    "settings",
    [
        # Too large for the trainer by its micro-batches; the profile has HANABI_OVERLAP=1.
        ("4xA100-40GB", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=full"),
        ("4xH100-80GB", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=full", "HANABI_TRAINER_MEMORY=0.45"),
        # 24 GB of weights in bfloat16 fit no GPU whole.
        ("8xL4", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=full", "HANABI_DTYPE=float32"),
        # Three GPUs cannot share 32 heads.
        ("6xL4", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=mini", "HANABI_MAX_MODEL_LEN=40960"),
        ("L4", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=full"),
    ],
)
def test_each_line_that_is_proposed_for_too_little_memory_is_accepted_and_fits(
    settings: tuple[str, ...],
) -> None:
    plan, checks = planned(*settings)
    lines = remedies(checks["memory"])
    assert lines
    short = [name for name in ("server", "trainer") if not plan[name]["fits"]]
    assert short
    fitted = set()
    for line in lines:
        code, report = run("--as", *settings, *line)
        assert code == 0, line
        fits = {name for name in short if report["plan"][name]["fits"]}
        assert fits, line
        fitted |= fits
    assert fitted == set(short)


def test_the_base_models_of_a_team_are_added_up() -> None:
    def memory(machine: str, model: str) -> dict[str, Any]:
        return planned(machine, f"MODEL={model}", "HANABI_PRESET=mini")[1]["memory"]

    def trainer_gib(check: dict[str, Any]) -> float:
        [gib] = re.findall(r"trainer up to ([0-9.]+) GiB", check["finding"])
        return float(gib)

    team = "player_0=Qwen/Qwen3-8B,player_1=Qwen/Qwen3-4B"
    large = memory("8xH100-80GB", "Qwen/Qwen3-8B")
    together = memory("8xH100-80GB", team)
    assert together["status"] == "ok"
    assert "GiB in 2 engines and trainer" in together["finding"]
    # Beside the larger model, with one adapter less, the weights of 4 billion parameters and
    # player_1's adapter: (2 × 4,022,468,096 + 16 × (33,030,144 - 43,646,976)) bytes.
    assert trainer_gib(together) - trainer_gib(large) == pytest.approx(7.3, abs=0.11)
    # Their weights, 16.4 and 8 GB, are more than the GPU has.
    short = memory("4xL4", team)
    assert short["status"] == "warn"
    assert "the engine of Qwen/Qwen3-8B needs" in short["finding"]
    assert "the trainer has 22.5 GiB" in short["finding"]
    assert short["remedy"] == "nvidia-smi   # the model needs a GPU with more memory"


def test_gpus_that_cannot_share_the_attention_heads_fail() -> None:
    settings = ("6xH100-80GB", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=mini")
    code, report = run("--as", *settings, "VLLM_TENSOR_PARALLEL_SIZE=3")
    assert code == 1
    [check] = [check for check in report["checks"] if check["status"] == "fail"]
    assert check["name"] == "server gpus"
    assert "VLLM_TENSOR_PARALLEL_SIZE=3 does not divide the 32 attention heads" in check["finding"]
    assert check["remedy"] == "export VLLM_TENSOR_PARALLEL_SIZE=1 VLLM_DATA_PARALLEL_SIZE=3"
    [line] = remedies(check)
    assert run("--as", *settings, *line)[0] == 0


def test_the_memory_that_counts_is_that_of_the_gpus_that_a_terminal_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A workstation whose second GPU drives the screen, and one that nvidia-smi cannot measure.
    listed = (
        Gpu("0", "NVIDIA H100 80GB HBM3", 81_559, 81_000),
        Gpu("1", "NVIDIA T400 4GB", 4096, 3000),
        Gpu("2", "NVIDIA GB10", 0, 0),
    )
    monkeypatch.setattr(gpus, "list_gpus", lambda path: (listed, ""))

    def smallest(**variables: str) -> int:
        loaded = load_settings(variables, NOWHERE)
        return gpus.smallest_gpu(Context(loaded=loaded, shell=variables), "server")[0]

    assert smallest(CUDA_VISIBLE_DEVICES_SERVER="0") == 81_559
    assert smallest(CUDA_VISIBLE_DEVICES_SERVER="0,1") == 4096
    assert smallest(CUDA_VISIBLE_DEVICES_SERVER="2") == 0
    # By a UUID it may be any of them.
    assert smallest(CUDA_VISIBLE_DEVICES_SERVER="GPU-5d") == 0


def test_a_configuration_file_of_stage_3_divides_the_weights_as_zero3_does(tmp_path: Path) -> None:
    file = tmp_path / "stage.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    settings = ("8xH100-80GB", "MODEL=Qwen/Qwen3-8B", "HANABI_PRESET=mini", "HANABI_OVERLAP=0")
    named, _ = planned(*settings, "DEEPSPEED=zero3")
    of_file, _ = planned(*settings, f"DEEPSPEED={file}")
    assert named["trainer"]["parts"]["weights"] == 2 * 8_190_735_360 / 4
    assert of_file["trainer"] == named["trainer"]
    # Two machines divide them among twice as many processes.
    nodes = ("NNODES=2", "NODE_RANK=0", "MASTER_ADDR=gpu7")
    two, _ = planned(*settings, "DEEPSPEED=zero3", *nodes)
    assert two["trainer"]["parts"]["weights"] == 2 * 8_190_735_360 / 8
    assert two["learning_seconds"] == pytest.approx(named["learning_seconds"] / 2)


def test_a_model_whose_sizes_are_not_known_fails() -> None:
    code, report = run("--as", "L4", "MODEL=nobody/knows-it")
    assert code == 1
    assert report["plan"] is None
    [check] = [check for check in report["checks"] if check["status"] == "fail"]
    assert "known models: Qwen/Qwen3-0.6B, " in check["finding"]


def test_settings_of_the_call_are_checked_as_the_environment_is() -> None:
    code, report = run("--as", "L4", "HANABI_PLAYERS=9", "HANABI_PLAYRS=3")
    assert code == 1
    findings = " ".join(check["finding"] for check in report["checks"])
    # The profile for such a GPU sets another field of the game.
    assert "HANABI_PLAYERS=9 with HANABI_MEMORY='turn': Hanabi needs 2 to 5" in findings
    assert "HANABI_PLAYRS" in findings
    with pytest.raises(SettingsError, match="MODL=x: no such setting"):
        parse_assignments(["MODL=x"])
    with pytest.raises(SettingsError, match="'Qwen/Qwen3-4B': not NAME=VALUE"):
        parse_assignments(["Qwen/Qwen3-4B"])


def test_settings_of_the_call_win_over_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_PRESET", "full")
    plan, _ = planned("L4", "HANABI_PRESET=mini")
    assert plan["boards"] == ["mini"]


@pytest.mark.parametrize("profile", ["gpu-1", "gpu-24gb", "gpu-4", "gpu-8", "mig"])
def test_a_gpu_profile_without_a_gpu_is_a_warning(profile: str) -> None:
    shell = {"PATH": ""}
    check = only(find(gpus.gpu_checks, shell=shell, HANABI_PROFILE=f"tools/profiles/{profile}.env"))
    assert check.status == "warn"
    assert "HANABI_PROFILE is for GPUs" in check.finding
    size = {"gpu-4": 4, "gpu-8": 8}.get(profile, 1)
    assert f"doctor --as {size}xH100-80GB" in check.remedy


def test_the_profile_without_gpus_is_none() -> None:
    check = only(find(gpus.gpu_checks, shell={"PATH": ""}, HANABI_PROFILE="tools/profiles/cpu.env"))
    assert check.status == "ok"


def test_tokens_are_estimated_by_words_digits_and_signs() -> None:
    chat = estimated_chat(thinking=False)
    encode = chat.tokenizer.encode
    # " information" has eleven letters, so two tokens; every digit is one.
    assert len(encode("Your information: 12", add_special_tokens=False)) == 7
    assert math.isclose(len(chat.open("", "Play")), 11, abs_tol=4)
    assert chat.tail.endswith("<think>\n\n</think>\n\n")


def test_the_plans_in_the_docs_are_those_that_the_command_prints() -> None:
    [between] = re.findall(
        r"<!-- plans:begin -->\n(.*?)<!-- plans:end -->", HARDWARE, flags=re.DOTALL
    )
    _, _, *rows = between.splitlines()
    commands = re.findall(
        r"^\.venv/bin/hanabi-grpo (doctor --markdown .+)$", HARDWARE, re.MULTILINE
    )
    assert len(commands) == len(rows) > 5
    printed = []
    for command in commands:
        result = RUNNER.invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.output
        printed.append(result.stdout.strip())
    assert printed == rows


def test_a_row_of_a_plan_that_fails_comes_with_its_checks_and_exit_code_1() -> None:
    arguments = ["doctor", "--markdown", "--as", "1xL4", "HANABI_MAX_MODEL_LEN=999999"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stdout.startswith("| 1 × L4 | ")
    assert "HANABI_MAX_MODEL_LEN" in result.stderr
    fits = RUNNER.invoke(app, ["doctor", "--markdown", "--as", "1xL4", "MODEL=Qwen/Qwen3-0.6B"])
    assert len(fits.stdout.splitlines()) == 1


def test_a_row_and_json_at_a_time_are_refused() -> None:
    result = RUNNER.invoke(app, ["doctor", "--markdown", "--json", "--as", "1xL4"])
    assert result.exit_code == 2
    assert "leave one out" in result.stderr
