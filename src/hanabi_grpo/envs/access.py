"""What requests may have a process play.

A request names things that the process was started with: no path and no address of a request is
ever opened. A rollout server notes at its start which sources of problems and which games of other
programs it was started with, and reads the games of requests through `GameAccess.setup`. Commands
that play what their own user names need none of this: they call `registry.setup`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Outside, Setup
from hanabi_grpo.errors import SettingsError, shown

_MAX_LISTED = 10
"""Names that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameAccess:
    """The games, and the things outside the process, that requests may name.

    Without any of them a request may still name every game that only computes.

    Example:
        access = GameAccess.of([settings.setup()])
        access.setup("vote", {"preset": "vote", "problems": "apples.jsonl"})
    """

    envs: frozenset[str] = frozenset()
    """Games of other programs, see `registry.reaches_out`."""
    outside: frozenset[tuple[str, Outside]] = frozenset()
    """Fields of configs, each with something outside that it may name."""

    @classmethod
    def of(cls, setups: Iterable[Setup[Any]]) -> Self:
        """Return access to what a process was started with, all of which is loaded here.

        Args:
            setups: The games that it was started with.

        Raises:
            SettingsError: Something outside cannot be used.
        """
        envs = set()
        outside = set()
        for setup in setups:
            # Loads what the config names.
            _ = setup.spec
            if registry.reaches_out(setup.env):
                envs.add(setup.env)
            outside |= set(setup.environment.outside(setup.config).items())
        return cls(envs=frozenset(envs), outside=frozenset(outside))

    def setup(self, env: str, env_config: Mapping[str, Any]) -> Setup[Any]:
        """Return the game of a request, see `registry.setup`.

        Raises:
            SettingsError: As `registry.setup`; or the request names something outside that the
                process was not started with. The message does not tell whether it exists.
        """
        if registry.reaches_out(env) and env not in self.envs:
            known = ", ".join(sorted(self.envs)) or "none"
            raise SettingsError(
                f"env={shown(env)}: a request may use only games of other programs that the "
                f"server was started with: {known}. Start the server with HANABI_ENV={shown(env)}."
            )
        environment = registry.get(env)
        config = environment.Config.parse(env_config)
        own_values = {}
        for field, inside in environment.outside_fields.items():
            value = getattr(config, field)
            if value not in inside:
                own_values[field] = self._own_value(field, value, inside)
        chosen = Setup(environment, config.model_copy(update=own_values))
        # Refuses fields that contradict each other.
        _ = chosen.spec
        return chosen

    def _own_value(self, field: str, value: str, inside: Iterable[str]) -> str:
        """Return the value by which this process knows what a request names."""
        known = [thing for name, thing in self.outside if name == field]
        for thing in known:
            if value in (thing.value, thing.digest):
                return thing.value
        # Its path may be another one on the other machine. Whether it is the same file shows in
        # the hash of the rules, which both sides compare.
        base_name = value.rstrip("/").rpartition("/")[2]
        called_so = [thing for thing in known if thing.name == base_name]
        if len({thing.digest for thing in called_so}) == 1:
            return called_so[0].value
        names = [*inside, *sorted(f"{thing.name} ({thing.digest})" for thing in known)]
        variable = f"HANABI_{field.upper()}"
        raise SettingsError(
            f"{variable}={shown(value)}: a request may name only what the server was started "
            f"with: {', '.join(names[:_MAX_LISTED])}. Start the server, in terminal 1, with this "
            f"{variable} too; of two files of one name, name one by its digest."
        )


NOTHING_OUTSIDE = GameAccess()
"""Access of a process that was started with nothing outside."""
