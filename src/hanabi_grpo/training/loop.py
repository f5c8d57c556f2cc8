"""The training loop. `run.TrainingRun` has what each line does."""

from hanabi_grpo.training.run import TrainingRun


def train(run: TrainingRun) -> None:
    """Play, learn, push, repeat.

    A step is one set of games: NUM_GENERATIONS episodes of each of its tasks, played by the
    adapters as they are (their version is the number of steps behind them), then learned from by
    every player that had a turn. Several processes run this loop side by side, each on its share
    of every micro-batch.
    """
    for step in run.remaining_steps():
        # First, and behind a server's replacement: do adapters act there as they act here?
        run.probe_adapters()

        # The adapters go to every rollout server, which acknowledges them by their digests.
        version = run.push_adapters()

        # When due: the same tasks each time, played beside training. May end the run or a phase.
        run.validate(version)

        # Groups of episodes over HTTP: token ids, the sampler's logprobs, rewards per turn.
        games = run.play(step, version)

        # Advantages per turn, one row per conversation, micro-batches of one player each.
        batches = run.build_batches(games)

        # Sampler and trainer agree on who sampled, or the run stops before anything moves.
        run.check_logprobs(batches, games)

        # One update, several passes, or one player after the other; each adapter by itself.
        for update in run.plan_updates(batches):
            # A pass computes one micro-batch, or the last ones of several players.
            for micro_batches in update.passes:
                logprobs = run.logprobs(micro_batches, update)
                loss = run.loss(logprobs, micro_batches)
                run.backward(loss, micro_batches, update)
            run.optimizer_step(update)

        run.finish_step()
        if run.should_save():
            run.save()

    # The final adapters are served and validated, too.
    run.validate(run.push_adapters())
    run.end()
