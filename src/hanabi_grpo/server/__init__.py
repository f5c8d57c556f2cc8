"""The rollout server: vLLM, the adapters it serves, and the games it plays.

`main` takes the port, and `supervisor` starts the process that serves, again when it dies; in it `assembly` puts the
parts together and `serving` answers on the port. `engine` wraps vLLM, `plugin` is what vLLM loads in its processes.
`adapter_store` keeps a session's versions and receipts, `frozen_adapters` what was lent, and both go through
`adapter_loader` (`adapter_files` checks, `adapter_folders` writes). `sessions` says for which trainer the server works,
`identity` whether one fits. `scheduler` turns tasks into games, `tables` seats who was asked for, `seats` samples the
replies; `pacing` says whose game goes on next, so that games do not hold up the event loop that they share with every
request. `app` puts the routes together (`routes_*`) behind the door: `connections`, `bodies`, `key_check`, `limits`.
"""
