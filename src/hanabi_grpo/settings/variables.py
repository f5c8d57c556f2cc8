"""One environment variable: its name, section, defaults per device and what is allowed."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, SecretStr
from pydantic.fields import FieldInfo

SECTIONS = ("run", "server", "game", "trainer", "tracking")
"""In the order in which tables list them."""

PASSED_THROUGH: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": "GPUs of this process. More than it uses are taken for a list that "
    "both terminals were "
    "given: the rollout server takes its beginning, training its end. Unset on a GPU machine, the "
    "scripts take 0,1,2,3 "
    "for the server and 4,5,6,7 for training.",
    "CUDA_VISIBLE_DEVICES_SERVER": "GPUs of the rollout server's terminal, also in files that "
    "both terminals read "
    "(.env, a profile). Wins over CUDA_VISIBLE_DEVICES; in a profile it yields to that of the "
    "shell or .env.",
    "CUDA_VISIBLE_DEVICES_TRAINER": "The same of the trainer's terminal.",
    "NNODES": "Machines that train together (docs/scale.md); unset: 1. NPROC_PER_NODE counts the "
    "processes of each.",
    "NODE_RANK": "Which of them this is, from 0.",
    "MASTER_ADDR": "Address of machine 0, as the others reach it.",
    "MASTER_PORT": "Port of machine 0 where the processes meet; unset: 29500.",
    "NCCL_P2P_DISABLE": "1 keeps NCCL off direct GPU-to-GPU copies, for machines where they hang.",
    "NCCL_IB_DISABLE": "1 keeps NCCL off InfiniBand.",
    "HF_HOME": "Where downloaded models are kept.",
}
"""Variables that are documented and handed on, but read by other software: name to meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What is known of one variable beyond its type."""

    field: str
    env: str
    section: str
    description: str
    cpu: str
    """Default on a machine without a GPU, as a user would type it; empty when unset."""
    gpu: str
    allowed: str
    """What a value must be, as the end of a sentence."""
    both: bool = False
    """The server and the trainer must be given the same value."""
    secret: bool = False
    """The value must never be printed."""


def setting(
    env: str,
    description: str,
    default: Any = None,
    *,
    section: str,
    gpu: Any = ...,
    allowed: str = "",
    both: bool = False,
    factory: Callable[[dict[str, Any]], Any] | None = None,
    **constraints: Any,
) -> Any:
    """Return the pydantic field of one variable.

    `env` is its name, `description` one sentence for docs/settings.md. `default` holds on CPU only
    when `gpu` is given too. `allowed` says what a value must be; empty: what type and `constraints`
    (pydantic's ge, gt, le) say. `both`: both terminals must agree. `factory` makes the default from
    the fields before it; tables show `default`."""
    on_gpu = default if gpu is ... else gpu
    extra = {
        "env": env,
        "section": section,
        "cpu": default,
        "gpu": on_gpu,
        "allowed": allowed,
        "both": both,
    }
    choose = factory or (lambda data: on_gpu if data.get("device") == "gpu" else default)
    return Field(
        default_factory=choose, description=description, json_schema_extra=extra, **constraints
    )


run, server, game, trainer, tracking = (partial(setting, section=section) for section in SECTIONS)


def variables_of(model: type[BaseModel]) -> tuple[Variable, ...]:
    """Return every variable of a model, in the order of its fields."""
    return tuple(
        Variable(
            field=name,
            env=str(extra["env"]),
            section=str(extra["section"]),
            description=info.description or "",
            cpu=typed(extra["cpu"]),
            gpu=typed(extra["gpu"]),
            allowed=str(extra["allowed"]) or allowed_by(info),
            both=bool(extra["both"]),
            secret=SecretStr in _types(info),
        )
        for name, info in model.model_fields.items()
        if isinstance(extra := info.json_schema_extra, dict) and "env" in extra
    )


def split_list(value: object) -> object:
    """Return the parts of a comma list; what is no text stays."""
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


def typed(value: Any) -> str:
    """Return a value as a user would type it: lists with commas, booleans in lower case, secrets
    masked.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, SecretStr):
        return "********"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def allowed_by(info: FieldInfo) -> str:
    """Return what a field's type and bounds allow, e.g. "a whole number from 2 to 5"."""
    kind = _types(info)[0]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(kind))
    if kind is bool:
        return "true or false"
    bounds = {
        name: getattr(item, name)
        for item in info.metadata
        for name in ("ge", "gt", "le")
        if hasattr(item, name)
    }
    noun = {int: "a whole number", float: "a number"}.get(kind, "text")
    if "ge" in bounds and "le" in bounds:
        return f"{noun} from {bounds['ge']} to {bounds['le']}"
    if "gt" in bounds and "le" in bounds:
        return f"{noun} above {bounds['gt']}, at most {bounds['le']}"
    if "ge" in bounds:
        return f"{noun}, at least {bounds['ge']}"
    return f"{noun} above {bounds['gt']}" if "gt" in bounds else noun


def _types(info: FieldInfo) -> tuple[Any, ...]:
    kinds = info.annotation
    members = get_args(kinds) if get_origin(kinds) in (Union, types.UnionType) else (kinds,)
    # A validated member of a union is still wrapped: Annotated[SecretStr, ...] | None.
    bare = (get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in members)
    return tuple(kind for kind in bare if kind is not type(None))
