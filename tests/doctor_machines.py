"""What the doctor's tests examine: a small model folder, a server, a machine with GPUs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

from hanabi_grpo.commands.doctor.check import Check, Role
from hanabi_grpo.commands.doctor.command import Probe, make_checks
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.settings import load_settings
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

ROOT = Path(__file__).parents[1]
"""The checkout."""
NOWHERE = Path("/nonexistent/.env")
"""In the place of `.env`, so that a developer's own file changes no test."""
HIDDEN = 16
VOCABULARY = 64


def make_model(folder: Path, **config: Any) -> Path:
    """Write a model folder whose tokenizer knows the words of the board `laptop`.

    Args:
        folder: A new folder.
        config: Fields of config.json that differ.
    """
    folder.mkdir(parents=True)
    tokenizer = build_tokenizer(compact_vocabulary(make_spec("laptop")))
    tokenizer.save_pretrained(folder)
    sizes = {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
    }
    sizes.update(config)
    (folder / "config.json").write_text(json.dumps(sizes))
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
    }
    weights = {name: numpy.zeros(shape, numpy.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def empty_model(folder: Path, **config: Any) -> Path:
    """Write the files that a model folder needs, without weights and words.

    Args:
        folder: The folder, which is returned.
        config: The content of its config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def find(
    function: Any, role: Role = "both", shell: dict[str, str] | None = None, **settings: object
) -> list[Check]:
    """Run one function of the doctor and return its checks.

    Args:
        function: Makes the checks.
        role: The terminal that is checked.
        shell: What else the environment has.
        settings: Settings by the names of their variables.
    """
    environ = {name: str(value) for name, value in settings.items()}
    loaded = load_settings(environ, NOWHERE)
    probe = Probe("probe", function, ("server", "trainer", "both"))
    return make_checks(loaded, role=role, shell={**environ, **(shell or {})}, probes=[probe])


def only(checks: list[Check]) -> Check:
    """Return the one check, which has a remedy if it needs one."""
    [check] = checks
    if check.status in ("warn", "fail"):
        assert check.remedy
    return check


def named(checks: list[Check], name: str) -> Check:
    """Return the one check of a name."""
    return only([check for check in checks if check.name == name])


@contextmanager
def answering(
    status: int, body: dict[str, Any] | str, key: str | None = None, starting: int = 0
) -> Iterator[int]:
    """Serve one answer on every path.

    Args:
        status: Status code of the answer.
        body: The answer, a JSON object or a text.
        key: Requests without it are answered 401.
        starting: So many requests before it are answered "starting".

    Yields:
        The port.
    """
    num_starting = starting

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal num_starting
            code = status
            content = body
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                code = 401
                content = {
                    "detail": "wrong or missing key: set HANABI_API_KEY to the server's value in "
                    "this terminal too."
                }
            elif num_starting:
                num_starting -= 1
                code = 503
                content = {"status": "starting", "seconds": 146.2}
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_FAKE_TORCH = """\
import os
class cuda:
    is_available = staticmethod(lambda: True)
    @staticmethod
    def device_count():
        return len(os.environ.get('CUDA_VISIBLE_DEVICES', ',' * {commas}).split(','))
"""


def install_package(site: Path, name: str, version: str) -> None:
    """Write what makes a package of a version look installed.

    Args:
        site: A folder on the Python path.
        name: Name of the package.
        version: Its version.
    """
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def make_gpu_machine(
    folder: Path, count: int, *, free: int, capability: float = 9.0
) -> dict[str, str]:
    """Write an nvidia-smi, an installed vllm and a torch for CUDA.

    Args:
        folder: An empty folder.
        count: Number of GPUs.
        free: Free MiB of each GPU.
        capability: Compute capability of each GPU.

    Returns:
        The variables that put them first.
    """
    site = folder / "site"
    install_package(site, "vllm", "0.32.0")
    install_package(site, "torch", "2.13.0")
    torch = site / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("cuda: object = '13.0'\n")
    (torch / "__init__.py").write_text(_FAKE_TORCH.format(commas=count - 1))
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    lines = [f"{number}, NVIDIA H100 80GB HBM3, 81559, {free}" for number in range(count)]
    listing = "\n".join(lines)
    capabilities = "\n".join(f"{number}, {capability}" for number in range(count))
    program.write_text(
        "#!/bin/sh\n"
        f"case $1 in *compute_cap) cat <<'END'\n{capabilities}\nEND\n"
        f";; *) cat <<'END'\n{listing}\nEND\n"
        "esac\n"
    )
    program.chmod(0o755)
    return {"PYTHONPATH": str(site), "PATH": f"{program.parent}:/usr/bin:/bin"}
