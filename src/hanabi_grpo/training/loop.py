"""The training loop. `run.TrainingRun` implements each line."""

from hanabi_grpo.training.run import TrainingRun


def train(run: TrainingRun) -> None:
    """Play, learn, push, repeat.

    A step is one set of episodes, NUM_GENERATIONS for each of its tasks. The current adapters play
    them (their version is the number of finished steps), then every player that had a turn learns
    from them. Several processes run this loop in parallel, each on its share of every micro-batch.
    """
    for step in run.remaining_steps():
        # In the first step, and after a server is replaced: do adapters work there as they do here?
        run.probe_adapters()

        # The adapters go to every rollout server, which acknowledges them by their digests.
        version = run.push_adapters()

        # If due: a validation, on the same tasks each time. It may end the run or a phase.
        run.validate(version)

        # With HANABI_UPDATE=best_response, a player whose phase is over returns to its best
        # version. That is the whole step: nobody learns beside the version that is given up.
        if not run.return_to_phase_best():
            play_and_learn(run, step, version)

        run.finish_step()
        if run.should_save():
            run.save()

    # Serve and validate the final adapters, too.
    run.validate(run.push_adapters())
    run.end()


def play_and_learn(run: TrainingRun, step: int, version: int) -> None:
    """Play the games of a step with the pushed version, and update the players from them."""
    # Request groups of episodes over HTTP: token ids, the sampler's logprobs, rewards per turn.
    games = run.play(step, version)

    # Advantages per turn, one row per conversation, micro-batches of one player each.
    batches = run.build_batches(games)

    # The trained policy must be the one that sampled; otherwise stop before any update.
    run.check_logprobs(batches, games)

    # One update, several passes, or one player after the other; adapters are independent.
    for update in run.plan_updates(batches):
        # A pass computes one micro-batch, or the last micro-batches of several players.
        for micro_batches in update.passes:
            logprobs = run.logprobs(micro_batches, update)
            loss = run.loss(logprobs, micro_batches)
            run.backward(loss, micro_batches, update)
        run.optimizer_step(update)
