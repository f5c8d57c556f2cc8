"""Teams of language models that learn by playing: GRPO with one LoRA adapter per player.

Packages, bottom layer first; each one imports only packages above it in this list:
    errors, types, texts, terminal, files, logs, processes, token_filter
                shared by all packages
    envs        environments: rules, prompts, scripted players; pure
    settings    environment variables
    runs        one run on this disk: folder, checkpoints, records
    tracking    W&B and the Hub
    rollout     playing: the game loop, conversations, tasks
    client      communication with rollout servers
    agents      what plays a seat: script, model, person
    server      terminal 1: plays the games with vLLM and serves the adapters
    training    terminal 2: ms-swift's GRPO, one adapter per player
    sft         learning from games
    evaluation, report      metrics, and the pages that show them
    api         the Python interface: the names below
    commands, cli           the `hanabi-grpo` command

Importing the package loads none of these: each public name is loaded when it is first used.

Example:
    import hanabi_grpo as hg

    env = hg.make_env("hanabi", preset="laptop")
    episodes = hg.play("iggi,random", env, tasks=10)
    run = hg.Trainer(env=env, max_steps=60).train()
    run.metrics["score/mean"].plot()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hanabi_grpo.api.environments import make_env
    from hanabi_grpo.api.playing import evaluate, play
    from hanabi_grpo.api.runs import Run, load_run
    from hanabi_grpo.api.servers import Server, serve
    from hanabi_grpo.api.training import Trainer
    from hanabi_grpo.envs.rewards import with_rewards
    from hanabi_grpo.errors import HanabiGrpoError
    from hanabi_grpo.evaluation.lineups import Evaluation
    from hanabi_grpo.settings.model import Settings
    from hanabi_grpo.types import Episode, Turn

__version__ = "0.2.0"
__all__ = [
    "Episode",
    "Evaluation",
    "HanabiGrpoError",
    "Run",
    "Server",
    "Settings",
    "Trainer",
    "Turn",
    "__version__",
    "evaluate",
    "load_run",
    "make_env",
    "play",
    "serve",
    "with_rewards",
]

_HOMES = {
    "Episode": "hanabi_grpo.types",
    "Evaluation": "hanabi_grpo.evaluation.lineups",
    "HanabiGrpoError": "hanabi_grpo.errors",
    "Run": "hanabi_grpo.api.runs",
    "Server": "hanabi_grpo.api.servers",
    "Settings": "hanabi_grpo.settings.model",
    "Trainer": "hanabi_grpo.api.training",
    "Turn": "hanabi_grpo.types",
    "evaluate": "hanabi_grpo.api.playing",
    "load_run": "hanabi_grpo.api.runs",
    "make_env": "hanabi_grpo.api.environments",
    "play": "hanabi_grpo.api.playing",
    "serve": "hanabi_grpo.api.servers",
    "with_rewards": "hanabi_grpo.envs.rewards",
}
"""Module of each public name."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, including those that are not loaded yet."""
    return sorted({*globals(), *_HOMES})
