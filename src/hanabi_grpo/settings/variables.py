"""One environment variable: its name, section, defaults per device, and what is allowed."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, SecretStr
from pydantic.fields import FieldInfo

from hanabi_grpo.settings.affects import Affects, AffectsWhen

SECTIONS = ("run", "server", "game", "trainer", "tracking")
"""In the order in which tables list them."""

PASSED_THROUGH: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": (
        "GPUs of this process. If it lists more than the process uses, both terminals share it: "
        "the rollout server takes the first ones, training the last ones. If unset on a GPU "
        "machine, the scripts give the first half of its GPUs to the server and the others to "
        "training."
    ),
    "CUDA_VISIBLE_DEVICES_SERVER": (
        "GPUs of the rollout server's terminal; also works in files that both terminals read "
        "(.env, a profile). It overrides CUDA_VISIBLE_DEVICES, except that a profile's value "
        "yields to CUDA_VISIBLE_DEVICES of the shell or .env."
    ),
    "CUDA_VISIBLE_DEVICES_TRAINER": "The same for the trainer's terminal.",
    "NNODES": (
        "Number of machines that train together (docs/scale.md); unset: 1. NPROC_PER_NODE counts "
        "the processes per machine."
    ),
    "NODE_RANK": "Rank of this machine, from 0.",
    "MASTER_ADDR": "Address at which the other machines reach machine 0.",
    "MASTER_PORT": "Port of machine 0 where the processes connect; unset: 29500.",
    "NCCL_P2P_DISABLE": (
        "1 turns off direct GPU-to-GPU copies in NCCL, for machines where they hang."
    ),
    "NCCL_IB_DISABLE": "1 turns off InfiniBand in NCCL.",
    "HF_HOME": "Cache folder of downloaded models.",
}
"""Variables that are documented and passed through, but read by other software: name to meaning."""

_MASK = "********"
"""Stands for the value of a secret."""
_NOUNS = {int: "a whole number", float: "a number"}
"""What a value of a type is called in messages; values of other types are "text"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Everything about one variable except its type."""

    field: str
    """Name of its field in the settings, e.g. "tasks_per_step"."""
    env: str
    """Name of the environment variable, e.g. "HANABI_TASKS_PER_STEP"."""
    section: str
    """One of SECTIONS."""
    description: str
    """One sentence for docs/settings.md."""
    cpu: str
    """Default on a machine without a GPU, as a user would type it; empty if unset."""
    gpu: str
    """Default on a machine with GPUs."""
    allowed: str
    """What a value must be, as the end of a sentence."""
    affects: Affects
    """What its value changes in a run."""
    affects_when: AffectsWhen | None = None
    """The value of another setting for which it affects something else."""
    both: bool = False
    """The server and the trainer must be given the same value."""
    secret: bool = False
    """The value must never be printed."""
    renamed_from: str = ""
    """Name of the variable in earlier versions; empty if it always had this name."""

    def affects_in(self, settings: BaseModel) -> Affects:
        """Return what the variable affects under the given settings."""
        when = self.affects_when
        if when is not None and getattr(settings, when.field) == when.value:
            return when.affects
        return self.affects


def setting(
    env: str,
    description: str,
    default: Any = None,
    *,
    section: str,
    affects: Affects,
    affects_when: AffectsWhen | None = None,
    gpu: Any = ...,
    allowed: str = "",
    both: bool = False,
    renamed_from: str = "",
    factory: Callable[[dict[str, Any]], Any] | None = None,
    **constraints: Any,
) -> Any:
    """Return the pydantic field of one variable.

    Args:
        env: The variable's name.
        description: One sentence for docs/settings.md.
        default: Its default; on CPU only when `gpu` is given too.
        section: The table that lists it, one of SECTIONS.
        affects: What its value changes in a run. It has no default, so that resumes and comparisons
            cannot miss a new setting.
        affects_when: The value of another setting for which it affects something else.
        gpu: Its default on a machine with GPUs.
        allowed: What a value must be, as the end of a sentence; empty: derived from its type and
            `constraints`.
        both: Whether both terminals must agree on it.
        renamed_from: Its name in earlier versions: refused with a hint in the environment, accepted
            in `settings.json` of an earlier run.
        factory: Makes the default from the fields before it; tables show `default` and `gpu`.
        **constraints: Bounds with pydantic's names: ge, gt, le.

    Returns:
        The value for the field of a pydantic model.
    """
    on_gpu = default if gpu is ... else gpu

    def choose(given: dict[str, Any]) -> Any:
        return on_gpu if given.get("device") == "gpu" else default

    # `variables_of` reads all of this.
    extra: dict[str, Any] = {
        "env": env,
        "section": section,
        "cpu": default,
        "gpu": on_gpu,
        "allowed": allowed,
        "affects": affects,
        "affects_when": affects_when,
        "both": both,
        "renamed_from": renamed_from,
    }
    return Field(
        default_factory=factory or choose,
        description=description,
        json_schema_extra=extra,
        **constraints,
    )


run = partial(setting, section="run")
server = partial(setting, section="server")
game = partial(setting, section="game")
trainer = partial(setting, section="trainer")
tracking = partial(setting, section="tracking")


def variables_of(model: type[BaseModel]) -> tuple[Variable, ...]:
    """Return every variable of a model, in the order of its fields."""
    variables = []
    for name, info in model.model_fields.items():
        extra: Any = info.json_schema_extra
        if not isinstance(extra, dict) or "env" not in extra:
            continue
        variable = Variable(
            field=name,
            env=extra["env"],
            section=extra["section"],
            description=info.description or "",
            cpu=typed(extra["cpu"]),
            gpu=typed(extra["gpu"]),
            allowed=extra["allowed"] or allowed_by(info),
            affects=extra["affects"],
            affects_when=extra["affects_when"],
            both=extra["both"],
            secret=SecretStr in _types(info),
            renamed_from=extra["renamed_from"],
        )
        variables.append(variable)
    return tuple(variables)


def split_list(value: object) -> object:
    """Return the parts of a comma-separated list; anything but a string is returned unchanged."""
    if not isinstance(value, str):
        return value
    parts = (part.strip() for part in value.split(","))
    return tuple(part for part in parts if part)


def typed(value: Any) -> str:
    """Return a value as a user would type it.

    Lists have commas, booleans are in lower case, secrets are masked, and None is the empty text.

    Example:
        typed(("base", "iggi")) == "base,iggi"
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, SecretStr):
        return _MASK
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)
    if isinstance(value, tuple | list):
        return ",".join(str(part) for part in value)
    return str(value)


def allowed_by(info: FieldInfo) -> str:
    """Return what a field's type and bounds allow, e.g. "a whole number from 2 to 5"."""
    kind = _types(info)[0]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(kind))
    if kind is bool:
        return "true or false"
    bounds = {}
    for item in info.metadata:
        for name in ("ge", "gt", "le"):
            if hasattr(item, name):
                bounds[name] = getattr(item, name)
    noun = _NOUNS.get(kind, "text")
    if "ge" in bounds and "le" in bounds:
        return f"{noun} from {bounds['ge']} to {bounds['le']}"
    if "gt" in bounds and "le" in bounds:
        return f"{noun} above {bounds['gt']}, at most {bounds['le']}"
    if "ge" in bounds:
        return f"{noun}, at least {bounds['ge']}"
    if "gt" in bounds:
        return f"{noun} above {bounds['gt']}"
    return noun


def _types(info: FieldInfo) -> tuple[Any, ...]:
    """Return the types that a field's value may have, without None and without annotations."""
    annotation = info.annotation
    is_union = get_origin(annotation) in (Union, types.UnionType)
    members = get_args(annotation) if is_union else (annotation,)
    bare = []
    for member in members:
        # A validated member of a union is still wrapped: Annotated[SecretStr, ...] | None.
        kind = get_args(member)[0] if get_origin(member) is Annotated else member
        if kind is not type(None):
            bare.append(kind)
    return tuple(bare)
