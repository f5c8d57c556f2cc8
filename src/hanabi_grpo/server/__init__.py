"""The rollout server: vLLM, the adapters it serves, and the games it plays.

`engine` wraps vLLM, `adapter_store` keeps versions and receipts, `seats` lets a served adapter sit in a game,
`scheduler` turns request rows into games. `app` puts the routes together (`routes_*`) behind the door: `connections`,
`bodies`, `key_check`, `limits`, `strict_json`, `rollout_request`. `sessions` says for which trainer the server works,
`serving` and `restart` keep it alive when the engine dies, and `main` starts the process.
"""
