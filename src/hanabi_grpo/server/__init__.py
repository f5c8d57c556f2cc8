"""The rollout server: vLLM, the adapters it serves, and the games it plays.

`engine` wraps vLLM, `adapter_store` keeps versions and receipts, `seats` lets a served adapter sit in a game,
`scheduler` turns request rows into games, `app` holds the HTTP routes and `main` starts the process.
"""
