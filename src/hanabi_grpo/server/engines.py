"""The engines of a team with several base models, as one: if one is dead, the server is."""

from collections.abc import Mapping

from hanabi_grpo.rollout.sampler import EngineHealth, Sampler


class Engines:
    """The health of several engines together, see `EngineHealth`."""

    def __init__(self, engines: Mapping[str, Sampler]) -> None:
        """Use the engines, given by the name of their base model."""
        self._engines = dict(engines)

    @property
    def is_dead(self) -> bool:
        """True once one of them has failed or hung."""
        return any(engine.is_dead for engine in self._engines.values())

    @property
    def state(self) -> str:
        """The state of the first dead engine, with its base model; "ok" if all are alive."""
        for name, engine in self._engines.items():
            if engine.is_dead:
                return f"{name}: {engine.state}"
        return next(iter(self._engines.values())).state

    @property
    def silence(self) -> float:
        """The longest silence of any engine, in seconds."""
        return max(engine.silence for engine in self._engines.values())


def health_of(engines: Mapping[str, Sampler]) -> EngineHealth:
    """Return the health of a server's engines; with only one engine, the engine itself."""
    if len(engines) == 1:
        return next(iter(engines.values()))
    return Engines(engines)
