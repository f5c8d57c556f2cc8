"""`hanabi-grpo` as a script for `trainer_host`.

Not the package's `__main__.py`: the folder of a script comes first on the path, and in the
package's folder lies a `types.py`.
"""

from hanabi_grpo.cli import app

if __name__ == "__main__":
    app(prog_name="hanabi-grpo")
