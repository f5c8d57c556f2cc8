"""`python -m hanabi_grpo`, for environments without the `hanabi-grpo` command on PATH."""

from hanabi_grpo.cli import app

if __name__ == "__main__":
    app(prog_name="hanabi-grpo")
