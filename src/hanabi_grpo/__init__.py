"""Teams of language models that learn Hanabi: GRPO with one LoRA adapter per player.

Map, from the inside out:
    games        rules, deals and what a player may see (pure)
    prompts, env, rewards, wire, types   text both ways, one game as an environment, its data
    policies, rollouts   who moves, and the only loop over a game
    settings, datasets, runs   environment variables, rows of deals, the run folder
    server       terminal 1: plays the games with vLLM and serves the adapters
    training     terminal 2: ms-swift's GRPO, one adapter per player
    commands, cli   the `hanabi-grpo` command

Importing the package loads none of it.
"""

__version__ = "0.1.0"
