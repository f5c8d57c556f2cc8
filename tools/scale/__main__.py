"""`python -m scale`: how long steps on many servers take, see `docs/scale.md`."""

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
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("outputs/scale"),
    reply_tokens: Annotated[int, typer.Option(help="Tokens per reply.")] = 128,
    games: Annotated[int, typer.Option(help="Games for measuring the parts.")] = 4096,
    gigabits: Annotated[
        float, typer.Option(help="Link of process 0 to the servers, in Gbit/s.")
    ] = 25.0,
    gpus: Annotated[list[int] | None, typer.Option(help="GPUs per server.")] = None,
) -> None:
    """Measure the real parts on this machine, calibrate the GPU, and simulate 1 to 64 servers."""
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), num_episodes=games, reply_tokens=reply_tokens)
    typer.echo(measured.costs)
    with tempfile.TemporaryDirectory() as folder:
        # The calibration data of the GPU has replies of 128 tokens, whatever is requested here.
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
        typer.echo(f"\nGPUs per server: {number}\n\n{text}")


@app.command()
def check(
    servers: Annotated[list[int] | None, typer.Option(help="Number of real servers.")] = None,
    episodes: Annotated[int, typer.Option(help="Episodes per server.")] = 512,
    reply_tokens: Annotated[int, typer.Option(help="Tokens per reply.")] = 128,
) -> None:
    """Play steps on real servers on one core of this machine, and simulate the same steps."""
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
