"""Where ms-swift is told of our model, data and trainer."""

import logging
from typing import Any

import torch
from swift.model import model_meta
from swift.model.register import ModelLoader
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.trainers import TrainerFactory
from transformers import PrinterCallback

from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.rollout.vocabulary import check_vocabulary
from hanabi_grpo.runs.resume import read_resume
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.tracking.callback import TrackingCallback
from hanabi_grpo.training.arguments import HanabiArguments
from hanabi_grpo.training.deals import DealDataset
from hanabi_grpo.training.model.adapters import adapter_names, add_adapters
from hanabi_grpo.training.model.start_from import check_base, start_adapters
from hanabi_grpo.training.trainer import HanabiGRPOTrainer

logger = logging.getLogger(__name__)


class HanabiPipeline(SwiftRLHF):
    """ms-swift's GRPO pipeline with one adapter per player."""

    args_class = HanabiArguments
    args: HanabiArguments

    @property
    def settings(self) -> Settings:
        """The settings that this run was started with."""
        return self.args.vllm_client.settings

    def _get_dataset(self) -> tuple[DealDataset, None]:
        rows = training_rows(self.settings)
        return DealDataset(rows, self.args.max_steps * batch_plan(self.settings).deals), None

    def _prepare_dataset(self) -> list[Any]:
        return list(self._get_dataset())

    @classmethod
    def prepare_model(cls, args: HanabiArguments, model: torch.nn.Module, **_: Any) -> torch.nn.Module:
        """Wrap the base model with the players' adapters."""
        settings: Settings = args.vllm_client.settings
        names = adapter_names(settings.players, settings.adapters)
        peft_model = add_adapters(model, names, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=settings.seed)
        start_adapters(peft_model, settings, read_resume(args.vllm_client.run_folder))
        return peft_model

    def train(self, trainer: HanabiGRPOTrainer) -> Any:
        """Train, then serve the final weights too; an interrupted run keeps its last finished step."""
        setups = played_setups(training_rows(self.settings))
        check_vocabulary(setups, trainer.processing_class, self.settings.model)
        tracking = TrackingCallback(self.settings, trainer.link.run_folder)
        if trainer.accelerator.is_main_process:
            trainer.link.connect(trainer.first_step)
            # Its dictionary per step says what the tracking callback's line says better.
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(tracking)
        try:
            if trainer.accelerator.is_main_process:
                check_base(self.settings, trainer.resume, trainer.link.server_facts)
            result = super().train(trainer)
            trainer.sync_weights()
            return result
        except BaseException as error:
            logger.info("stopped by %s: %s", type(error).__name__, trainer.save_now())
            tracking.close(exit_code=1)
            raise
        finally:
            trainer.link.disconnect()


def register_trainer() -> None:
    """Make ms-swift build our trainer for `--rlhf_type grpo`, from a model that brings no code."""
    # A model folder's own Python code is never run; the architectures that vLLM and ms-swift know need none.
    ModelLoader.default_trust_remote_code = False
    model_meta.logger.addFilter(_is_no_false_alarm)
    TrainerFactory.TRAINER_MAPPING["grpo"] = f"{HanabiGRPOTrainer.__module__}.{HanabiGRPOTrainer.__name__}"


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    # ms-swift says of every model that its code will be executed. `resolve_model` refuses a folder that names any.
    text = record.getMessage()
    return not (text.startswith("Loading model from ") and "with trust_remote_code=True" in text)
