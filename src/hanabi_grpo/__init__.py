"""Teams of language models that learn by playing: GRPO with one LoRA adapter per player.

Map, from the ground up; a package imports only packages below it:
    errors, types, logs     what everything shares
    envs        what is played: rules, prompts, scripted players; pure
    settings    environment variables
    runs        one run on this disk: folder, checkpoints, records
    tracking    W&B and the Hub
    rollout     playing: the loop over a game, conversations, tasks
    client      talking to rollout servers
    server      terminal 1: plays the games with vLLM and serves the adapters
    training    terminal 2: ms-swift's GRPO, one adapter per player
    sft         learning from games
    evaluation, report      figures, and what shows them
    commands, cli           the `hanabi-grpo` command

Importing the package loads none of it.
"""

__version__ = "0.2.0"
