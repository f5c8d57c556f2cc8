"""What the doctor's tests look at: a small model folder, a server that says what it is, a machine
with GPUs.
"""

import json
import socket
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
NOWHERE = Path("/nonexistent/.env")
HIDDEN, VOCABULARY = 16, 64


def make_model(folder: Path, **config: Any) -> Path:
    """Write a model folder whose tokenizer knows the words of the board `laptop`."""
    folder.mkdir(parents=True)
    build_tokenizer(compact_vocabulary(make_spec("laptop"))).save_pretrained(folder)
    sizes = {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(sizes | config))
    weights = {
        "model.embed_tokens.weight": numpy.zeros((VOCABULARY, HIDDEN), numpy.float32),
        "model.layers.0.self_attn.q_proj.weight": numpy.zeros((HIDDEN, HIDDEN), numpy.float32),
        "model.layers.0.self_attn.v_proj.weight": numpy.zeros((HIDDEN // 2, HIDDEN), numpy.float32),
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def find(
    function: Any, role: Role = "both", shell: dict[str, str] | None = None, **settings: object
) -> list[Check]:
    """Make one function's checks with these settings; `shell` holds what else the environment
    has.
    """
    environ = {name: str(value) for name, value in settings.items()}
    loaded = load_settings(environ, NOWHERE)
    probes = [Probe("probe", function, ("server", "trainer", "both"))]
    return make_checks(loaded, role=role, shell={**environ, **(shell or {})}, probes=probes)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def only(checks: list[Check]) -> Check:
    """Return the one check, whose remedy is there when it needs one."""
    [check] = checks
    assert check.status not in ("warn", "fail") or check.remedy
    return check


def named(checks: list[Check], name: str) -> Check:
    """Return the one check of a name."""
    return only([check for check in checks if check.name == name])


@contextmanager
def answering(
    status: int, body: dict[str, Any] | str, key: str | None = None, starting: int = 0
) -> Iterator[int]:
    """Serve one answer on every path: before it "starting" some times, and without the key 401;
    yields the port.
    """
    left = [starting]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, content = status, body
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                said = (
                    "wrong or missing key: set HANABI_API_KEY to the server's value in this "
                    "terminal too."
                )
                code, content = 401, {"detail": said}
            elif left[0]:
                left[0] -= 1
                code, content = 503, {"status": "starting", "seconds": 146.2}
            self.send_response(code)
            self.end_headers()
            self.wfile.write(
                (content if isinstance(content, str) else json.dumps(content)).encode()
            )

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


def make_gpu_machine(folder: Path, count: int, *, free: int) -> dict[str, str]:
    """Write an nvidia-smi, an installed vllm and a torch for CUDA; return the variables that put
    them first.

    Args:
        folder: Empty.
        count: GPUs.
        free: MiB of each.
    """
    for name, version in (("vllm", "0.32.0"), ("torch", "2.13.0")):
        info = folder / "site" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    torch = folder / "site" / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("cuda: object = '13.0'\n")
    (torch / "__init__.py").write_text(
        "import os\n"
        "class cuda:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    @staticmethod\n"
        "    def device_count():\n"
        "        return len(os.environ.get('CUDA_VISIBLE_DEVICES', ',' * "
        f"{count - 1}).split(','))\n"
    )
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    lines = "\n".join(f"{index}, NVIDIA H100 80GB HBM3, 81559, {free}" for index in range(count))
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)
    return {"PYTHONPATH": str(folder / "site"), "PATH": f"{program.parent}:/usr/bin:/bin"}
