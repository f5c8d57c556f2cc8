"""The rollout server: vLLM, the adapters it serves, and the games it plays.

`main` takes the port and starts the process that serves, again when it dies; in it `assembly` puts
the parts together and `serving` answers on the port. `engine` wraps vLLM, `plugin` is what vLLM
loads in its processes (`vllm_cpu`: what is ours on a CPU). `adapter_store` keeps a session's
versions and receipts, `frozen_adapters` what was lent, and both go through `adapter_loader`
(`adapter_files` checks). `sessions` says for which trainer the server works, `identity` whether one
fits. `scheduler` turns tasks into games, `seats` seats who was asked for and samples replies;
`pacing` says whose game goes on next. `app` puts the routes together (`routes_play`) behind the
`door`."""
