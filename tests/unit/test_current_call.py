"""The server reads in shared memory whose code a worker runs."""

from hanabi_grpo.server.workers.current_call import CurrentCall, Running, create_memory


def test_the_server_sees_at_once_whose_code_a_worker_runs_and_tells_calls_apart() -> None:
    with create_memory() as memory:
        of_server = CurrentCall(memory)
        of_worker = CurrentCall(memory)
    assert of_server.read() is None
    # Two calls of one episode, and one of another.
    for call, episode in ((1, 0), (2, 0), (3, 2**40)):
        of_worker.begin(episode)
        assert of_server.read() == Running(episode=episode, call=call)
        assert of_server.read() == Running(episode=episode, call=call)
        of_worker.end()
        assert of_server.read() is None
