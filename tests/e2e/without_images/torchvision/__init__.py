"""Names of torchvision for models of text, and nothing behind them.

vLLM's file of Qwen3.5 imports its image processors, which import torchvision. The CPU environment
leaves it out, because the public build is for CUDA and its import fails beside torch's CPU build.
"""

from typing import Any

__version__ = "0.28.0"


def __getattr__(name: str) -> Any:
    """Return a class that does nothing, for any name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
