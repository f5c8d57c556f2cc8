"""The engines of a team with several base models, as one: a server without one of them is dead."""

from collections.abc import Mapping

from hanabi_grpo.rollout.sampler import EngineHealth, Sampler


class Engines:
    """The health of several engines together, see `EngineHealth`."""

    def __init__(self, engines: Mapping[str, Sampler]) -> None:
        """Take the engines by the name of their base model."""
        self._engines = dict(engines)

    @property
    def is_dead(self) -> bool:
        """True once one of them has failed or hangs."""
        return any(engine.is_dead for engine in self._engines.values())

    @property
    def state(self) -> str:
        """The state of the first that is not well, with its base model; "ok" where all are."""
        for name, engine in self._engines.items():
            if engine.is_dead:
                return f"{name}: {engine.state}"
        return next(iter(self._engines.values())).state

    @property
    def silence(self) -> float:
        """The longest silence of them, in seconds."""
        return max(engine.silence for engine in self._engines.values())


def health_of(engines: Mapping[str, Sampler]) -> EngineHealth:
    """Return what answers for the engines of a server; of one it is the engine itself."""
    if len(engines) == 1:
        return next(iter(engines.values()))
    return Engines(engines)
