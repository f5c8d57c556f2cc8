"""What vLLM makes of the settings that the engine is started with."""

import inspect
from pathlib import Path

import pytest
from vllm.config import VllmConfig
from vllm.lora.utils import is_in_target_modules
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.server.engine import engine_args, engine_options
from hanabi_grpo.settings import Settings
from small_models import small_model

MAX_BATCHED_TOKENS = 777


@pytest.fixture(scope="module")
def engine_config(tmp_path_factory: pytest.TempPathFactory) -> VllmConfig:
    """The configuration of an engine for our settings and two options of vLLM's own."""
    folder = tmp_path_factory.mktemp("model")
    small_model(tie_word_embeddings=False).save_pretrained(folder)
    settings = Settings(model=str(folder), max_model_len=64)
    options = engine_options(settings, str(folder), linear_shapes(folder))
    vllm_options = [
        "--max-num-batched-tokens",
        str(MAX_BATCHED_TOKENS),
        "--skip-tokenizer-init",
    ]
    with pytest.MonkeyPatch.context() as patch:
        # As `prepare_environment` has it: no plugin of other packages.
        patch.setenv("VLLM_PLUGINS", "")
        return engine_args(options, vllm_options).create_engine_config()


@pytest.mark.parametrize(
    ("module", "is_adapted"),
    [
        ("model.layers.0.self_attn.qkv_proj", True),
        ("model.layers.0.self_attn.o_proj", True),
        ("model.layers.0.mlp.gate_up_proj", True),
        ("model.layers.0.mlp.down_proj", True),
        ("model.embed_tokens", False),
        ("lm_head", False),
    ],
)
def test_vllm_adapts_the_linear_layers_and_nothing_else(
    engine_config: VllmConfig, module: str, is_adapted: bool
) -> None:
    targets = engine_config.lora_config.target_modules
    packed = Qwen3ForCausalLM.packed_modules_mapping
    assert bool(is_in_target_modules(module, targets, packed)) == is_adapted


def test_logprobs_are_those_of_the_sampled_distribution(engine_config: VllmConfig) -> None:
    assert engine_config.model_config.logprobs_mode == "processed_logprobs"
    assert engine_config.cache_config.enable_prefix_caching


def test_vllms_own_options_win(engine_config: VllmConfig) -> None:
    assert engine_config.scheduler_config.max_num_batched_tokens == MAX_BATCHED_TOKENS


def test_an_option_that_breaks_a_guarantee_does_not_reach_vllm() -> None:
    options = engine_options(Settings(), "no/model")
    with pytest.raises(SettingsError, match=r"--no-enable-lora is not passed through to vLLM"):
        engine_args(options, ["--no-enable-lora"])


@pytest.mark.parametrize("words", [["--enforce-eager", "true"], ["--max-num-batched-tokens", "x"]])
def test_what_vllm_does_not_take_is_refused_in_a_sentence(words: list[str]) -> None:
    with pytest.raises(SettingsError, match=f"{words[0]} {words[1]}: vLLM reports") as refusal:
        engine_args({"dtype": "float32"}, words)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("copies", "gpus_of_a_copy", "options", "executor"),
    [
        # vLLM itself takes "uni" then.
        (1, 1, [], None),
        (4, 1, [], "uni"),
        (2, 2, [], None),
        (4, 1, ["--distributed-executor-backend", "mp"], "mp"),
    ],
)
def test_a_copy_on_one_gpu_computes_in_its_engine_core_unless_it_is_told_otherwise(
    copies: int,
    gpus_of_a_copy: int,
    options: list[str],
    executor: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    settings = Settings(vllm_data_parallel_size=copies, vllm_tensor_parallel_size=gpus_of_a_copy)
    args = engine_args(engine_options(settings, "no/model"), options)
    assert args.distributed_executor_backend == executor


def test_a_batch_mixes_the_versions_of_all_players_and_as_many_guests_as_the_settings_say() -> None:
    settings = Settings(players=3, overlap=2, guest_slots=1)
    assert engine_options(settings, "no/model")["max_loras"] == 3 * 3 + 1


def test_vllm_can_sleep_by_the_names_that_we_call_and_not_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspect.signature(AsyncLLM.sleep).parameters["level"].default == 1
    assert inspect.signature(AsyncLLM.wake_up).return_annotation is bool
    monkeypatch.setenv("VLLM_PLUGINS", "")
    small_model().save_pretrained(tmp_path)
    settings = Settings(model=str(tmp_path), max_model_len=64, sleep=True)
    args = engine_args(engine_options(settings, str(tmp_path)), ["--skip-tokenizer-init"])
    assert args.enable_sleep_mode
    # Why HANABI_SLEEP=1 is refused there.
    with pytest.raises(ValueError, match="Sleep mode is not supported on current platform"):
        args.create_engine_config()
