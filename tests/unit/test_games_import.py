"""The game layer stays light."""

import json
import subprocess
import sys


def test_importing_the_games_pulls_in_nothing_heavy() -> None:
    code = (
        "import json, sys, hanabi_grpo.envs.hanabi.rules\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(answer.stdout))
    assert "pyspiel" in loaded
    assert loaded & {"torch", "vllm", "swift", "transformers", "wandb", "matplotlib", "fastapi", "pydantic"} == set()
