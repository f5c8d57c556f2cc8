"""Which games a request may ask a process to play.

A request may only refer to things that the process was started with: no path and no address from a
request is ever opened. At startup, a rollout server records the problem sources and the external
games that it was started with, and resolves the games of requests through `GameAccess.setup`.
Commands that play what their own user specified do not need this; they call `registry.setup`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Outside, Setup
from hanabi_grpo.errors import SettingsError, shown

_MAX_LISTED = 10
"""Maximum number of names listed in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameAccess:
    """The games, and the resources outside the process, that requests may refer to.

    Even with none of them, a request may name every game that needs nothing outside the process.

    Example:
        access = GameAccess.of([settings.setup()])
        access.setup("vote", {"preset": "vote", "problems": "apples.jsonl"})
    """

    envs: frozenset[str] = frozenset()
    """Games that reach outside the process; see `registry.reaches_out`."""
    outside: frozenset[tuple[str, Outside]] = frozenset()
    """Config fields, each with an outside resource that it may refer to."""

    @classmethod
    def of(cls, setups: Iterable[Setup[Any]]) -> Self:
        """Load everything that a process was started with, and return access to it.

        Args:
            setups: The games that the process was started with.

        Raises:
            SettingsError: An outside resource cannot be used.
        """
        envs = set()
        outside = set()
        for setup in setups:
            # Loads what the config refers to.
            _ = setup.spec
            if registry.reaches_out(setup.env):
                envs.add(setup.env)
            outside |= set(setup.environment.outside(setup.config).items())
        return cls(envs=frozenset(envs), outside=frozenset(outside))

    def setup(self, env: str, env_config: Mapping[str, Any]) -> Setup[Any]:
        """Return the game of a request; see `registry.setup`.

        Raises:
            SettingsError: See `registry.setup`; or the request refers to an outside resource that
                the process was not started with. The message does not reveal whether it exists.
        """
        if registry.reaches_out(env) and env not in self.envs:
            known = ", ".join(sorted(self.envs)) or "none"
            raise SettingsError(
                f"env={shown(env)}: a request may use only those external games that the server "
                f"was started with: {known}. Start the server with HANABI_ENV={shown(env)}."
            )
        environment = registry.get(env)
        config = environment.parse_config(env_config)
        own_values = {}
        for field, inside in environment.outside_fields.items():
            value = getattr(config, field)
            if value not in inside:
                own_values[field] = self._own_value(field, value, inside)
        chosen = Setup(environment, config.model_copy(update=own_values))
        # Raises an error for fields that contradict each other.
        _ = chosen.spec
        return chosen

    def _own_value(self, field: str, value: str, inside: Iterable[str]) -> str:
        """Return this process's own value for what a request refers to."""
        known = [thing for name, thing in self.outside if name == field]
        for thing in known:
            if value in (thing.value, thing.digest):
                return thing.value
        # The path may differ between machines. Both sides compare the hash of the rules, which
        # shows whether the files are the same.
        base_name = value.rstrip("/").rpartition("/")[2]
        called_so = [thing for thing in known if thing.name == base_name]
        if len({thing.digest for thing in called_so}) == 1:
            return called_so[0].value
        names = [*inside, *sorted(f"{thing.name} ({thing.digest})" for thing in known)]
        variable = f"HANABI_{field.upper()}"
        raise SettingsError(
            f"{variable}={shown(value)}: a request may name only what the server was started "
            f"with: {', '.join(names[:_MAX_LISTED])}. Start the server, in terminal 1, with the "
            f"same {variable}; if two files share a name, refer to one by its digest."
        )


NOTHING_OUTSIDE = GameAccess()
"""Access of a process that was started without any outside resources."""
