"""Which GPUs a terminal takes, also where both terminals were given the same list."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.sources import PROFILE

if TYPE_CHECKING:
    from hanabi_grpo.settings.load import LoadedSettings

Terminal = Literal["server", "trainer"]
_BOTH = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """The GPUs of a terminal.

    Example:
        GpuShare(names=("4", "5", "6", "7"), origin="shell", why="GPUs 4,5,6,7: CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 …")
    """

    names: tuple[str, ...]
    """As CUDA takes them: numbers or UUIDs."""
    origin: str
    """Where they were given: "shell", ".env" or "profile"."""
    why: str = ""
    """One line for the terminal, where its GPUs are not those of CUDA_VISIBLE_DEVICES."""


def gpu_share(loaded: "LoadedSettings", terminal: Terminal) -> GpuShare | None:
    """Return the GPUs of a terminal; None where nobody chose.

    CUDA_VISIBLE_DEVICES_SERVER and CUDA_VISIBLE_DEVICES_TRAINER win; only those of a profile yield to a list of the
    shell or `.env`. A list of more GPUs than the terminal uses is taken for one that both were given, as schedulers
    export it: the server takes its beginning, the trainer its end.

    Raises:
        SettingsError: Such a list is too short for both.
    """
    name = f"{_BOTH}_{terminal.upper()}"
    own, both = loaded.passed_through.get(name), loaded.passed_through.get(_BOTH)
    if own and (both is None or own[1] != PROFILE or both[1] == PROFILE):
        names, why = _listed(own[0]), ""
        if both and names != _listed(both[0]):
            why = f"GPUs {','.join(names)}: {name} ({own[1]}) wins over {_BOTH}={both[0]} ({both[1]})"
        return GpuShare(names=names, origin=own[1], why=why)
    if both is None:
        return None
    names, said = _listed(both[0]), f"{_BOTH}={both[0]} ({both[1]})"
    uses = {"server": _server_uses(loaded), "trainer": _trainer_uses(loaded)}
    mine, other = uses.pop(terminal), *uses.values()
    if len(names) <= max(1, mine.count):
        return GpuShare(names=names, origin=both[1])
    names = names[: mine.count] if terminal == "server" else names[-mine.count :]
    if other.is_given and mine.count + other.count > len(_listed(both[0])):
        raise SettingsError(
            f"{said}: too short for both terminals, {mine.said} uses {mine.count} and {other.said} {other.count}. "
            f"Lower one of them, or name this terminal's GPUs: {name}={','.join(names)}."
        )
    why = f"{said} has more than {mine.said} uses: the server takes its beginning, the trainer its end, {name} wins"
    return GpuShare(names=names, origin=both[1], why=f"GPUs {','.join(names)}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    count: int
    said: str
    is_given: bool


def _server_uses(loaded: "LoadedSettings") -> _Uses:
    tensor, data = loaded.settings.vllm_tensor_parallel_size, loaded.settings.vllm_data_parallel_size
    said = f"VLLM_TENSOR_PARALLEL_SIZE={tensor}" + (f" × VLLM_DATA_PARALLEL_SIZE={data}" if data > 1 else "")
    fields = ("vllm_tensor_parallel_size", "vllm_data_parallel_size")
    return _Uses(count=tensor * data, said=said, is_given=any(_is_given(loaded, name) for name in fields))


def _trainer_uses(loaded: "LoadedSettings") -> _Uses:
    count = loaded.settings.nproc_per_node
    return _Uses(count=count, said=f"NPROC_PER_NODE={count}", is_given=_is_given(loaded, "nproc_per_node"))


def _is_given(loaded: "LoadedSettings", field: str) -> bool:
    # The other terminal's shell may have another value than the default that this one sees.
    return not loaded.origins[field].startswith("default")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
