"""The rollout server: vLLM, the adapters it serves, and the games it plays.

`engine` wraps vLLM; `adapter_store` keeps a session's versions and receipts, `frozen_adapters` what was lent, and both
go through `adapter_loader` (`adapter_files` checks, `adapter_folders` writes; `owned_folders` finds what killed servers
left). `tables` seats who was asked for, `seats` lets a held adapter sit in a game, `scheduler` turns tasks into
games, `replies` samples one reply.
`pacing` keeps the games of a step from holding up the event loop that they share with every request.
`app` puts the routes together (`routes_*`) behind the door: `connections`, `bodies`, `key_check`, `limits`,
`strict_json`, `requests`. `sessions` says for which trainer the server works,
`serving` and `restart` keep it alive when the engine dies, and `main` starts the process.
"""
