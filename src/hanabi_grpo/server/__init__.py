"""The rollout server: vLLM, the adapters it serves, and the games it plays.

The process:

- `main` opens the port, starts the serving process, and restarts it if it dies.
- `assembly` puts the parts together in that process, and `serving` answers on the port.
- `app` collects the routes (`routes_play`, `routes_chat`) behind the access checks of `door`.

The engine:

- `engine` is the vLLM sampler behind the protocol `rollout.sampler.Sampler`.
- `plugin` is what vLLM loads in its processes (`vllm_cpu`: our replacements on a CPU).

The adapters:

- `adapter_store` keeps a session's versions and receipts, `frozen_adapters` the guest adapters.
- Both use `adapter_loader`; `adapter_files` checks uploads.
- `sessions` tracks which trainer the server works for, `identity` checks whether a trainer matches.

The games:

- `scheduler` turns tasks into games.
- `seats` assigns players to seats and samples their replies.
- `pacing` decides which game continues next.
"""
