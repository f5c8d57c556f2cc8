"""`python -m scale`: what steps on many servers take, see `docs/scale.md`."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scale.check import compare, use_one_core
from scale.measured import measure
from scale.table import calibrated, lines, markdown

_BITS = 8
_GIGA = 1e9

app = typer.Typer(add_completion=False)


@app.command()
def table(
    out: Annotated[Path, typer.Option(help="Folder of the tables.")] = Path("outputs/scale"),
    reply_tokens: Annotated[int, typer.Option(help="Tokens of a reply.")] = 128,
    games: Annotated[int, typer.Option(help="Games that the parts are measured with.")] = 4096,
    gigabits: Annotated[float, typer.Option(help="Process 0's link to the servers.")] = 25.0,
    gpus: Annotated[list[int] | None, typer.Option(help="GPUs of a server.")] = None,
) -> None:
    """Measure the real parts here, calibrate the GPU, and simulate 1 to 64 servers."""
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), num_episodes=games, reply_tokens=reply_tokens)
    typer.echo(measured.costs)
    with tempfile.TemporaryDirectory() as folder:
        # The GPU sampled replies of 128 tokens, whatever is asked for here.
        at_calibration = measured
        if reply_tokens != 128:
            at_calibration = measure(Path(folder), reply_tokens=128)
    speed = calibrated(at_calibration.games, at_calibration.costs)
    typer.echo(speed)
    out.mkdir(parents=True, exist_ok=True)
    facts = {"costs": asdict(measured.costs), "speed": asdict(speed), "gigabits": gigabits}
    (out / "measured.json").write_text(json.dumps(facts, indent=1))
    for number in gpus or [1, 8]:
        made = lines(
            measured,
            speed,
            gpus_per_server=number,
            bytes_per_second=gigabits * _GIGA / _BITS,
        )
        text = markdown(made)
        (out / f"gpus-{number}.md").write_text(text)
        typer.echo(f"\n{number} GPUs for each server\n\n{text}")


@app.command()
def check(
    servers: Annotated[list[int] | None, typer.Option(help="Real servers.")] = None,
    episodes: Annotated[int, typer.Option(help="Episodes for each server.")] = 512,
    reply_tokens: Annotated[int, typer.Option(help="Tokens of a reply.")] = 128,
) -> None:
    """Play steps on real servers on one core of this machine, and simulate the same."""
    use_one_core()
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(Path(folder), num_episodes=1024, reply_tokens=reply_tokens).costs
    for number in servers or [1, 2, 4]:
        with tempfile.TemporaryDirectory() as folder:
            typer.echo(
                compare(
                    Path(folder),
                    costs,
                    num_servers=number,
                    num_episodes=number * episodes,
                    reply_tokens=reply_tokens,
                )
            )


if __name__ == "__main__":
    app()
