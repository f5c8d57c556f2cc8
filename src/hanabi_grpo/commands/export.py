"""`hanabi-grpo export`: folders that are ready for a hub."""

import json
import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console
from hanabi_grpo.commands.interruption import interruptible


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="Run folder, checkpoint-N, artifacts/step_N, wandb:entity/project/name:alias or hf:org/repo; "
            ":player_1 behind it chooses one adapter."
        ),
    ],
    out: Annotated[Path, typer.Option(help="New folder.")],
    merged: Annotated[
        bool, typer.Option("--merged", help="Also the base model with each adapter merged into it.")
    ] = False,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="Result of evaluate --out for the card; may be repeated.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Hub name of the base model, when it was trained from a folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Write a hub-ready folder for each player: PEFT adapter, card with results and limits, manifest.

    The newest whole checkpoint of a run is taken. Evaluations of these very weights are put on the card: those that lie
    in the run folder or in its evaluations/ and those given. Nothing is uploaded.

    Environment: MODEL says where the base model is (--merged; else where the run had it), WANDB_MODE and
    WANDB_ENTITY how wandb: words are resolved, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE how hf: words are.
    Exits with 0, or with 2 after an error.
    """
    from hanabi_grpo.report.export.folder import MERGED, check_base_model
    from hanabi_grpo.report.export.folder import export as write
    from hanabi_grpo.report.export.origin import read_origin
    from hanabi_grpo.settings import load_settings
    from hanabi_grpo.settings.refs import parse_checkpoint
    from hanabi_grpo.tracking.checkpoints import local_folder

    console = make_console()

    def say(text: str) -> None:
        if as_json:
            sys.stderr.write(f"{text}\n")
        else:
            console.print(text, soft_wrap=True, markup=False)

    with ExitStack() as stack:
        stack.enter_context(interruptible(lambda: f"Stopped; nothing was written to {out}."))
        if as_json:
            # DeepSpeed, which PEFT loads, prints to standard output.
            stack.enter_context(redirect_stdout(sys.stderr))
        if base_model is not None:
            check_base_model(base_model)
        loaded = load_settings()
        ref = parse_checkpoint(source)
        adapter = ref.adapter
        origin = read_origin(local_folder(ref.place, say), evaluations=evaluation or [])
        for text in origin.left_out:
            say(f"left out: {text}")
        if adapter is not None:
            origin.saved.choose(adapter, adapter)
        model = None if loaded.origins["model"].startswith("default") else loaded.settings.model
        done = write(
            origin,
            out,
            players=[adapter] if adapter else list(origin.saved.adapters),
            base_model=base_model,
            model=model,
            merged=merged,
            say=say,
        )
    for name, check in done.merged.items():
        say(f"{MERGED}/{name}: {check.text}")
        if not check.keeps_the_effect:
            say(
                f"{MERGED}/{name}: {check.dtype} rounds away a good part of what this adapter does; prefer the adapter."
            )
    if not done.is_on_hub:
        say(f"the base model is called {done.base} in the cards; --base-model ORG/NAME says what it is on the hub.")
    if as_json:
        document = {
            "folder": str(done.folder),
            "step": origin.saved.step,
            "players": list(done.players),
            "base_model": done.base,
            "results": [
                {"line_up": one.line_up, "mean": one.result.mean, "standard_error": one.result.standard_error}
                for one in origin.results
            ],
            "merged": {name: asdict(check) for name, check in done.merged.items()},
        }
        sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
        return
    say(f"wrote {out}: {', '.join(done.players)} at step {origin.saved.step}, {len(origin.results)} evaluations")
    say("to publish a player, or all as one repository:")
    for name in done.players:
        say(f"  .venv/bin/hf upload ORG/NAME {out / name}")
    say(f"  .venv/bin/hf upload ORG/NAME {out}")
