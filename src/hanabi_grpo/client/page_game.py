"""A game on the page of a rollout server, started and recorded by a command on this machine."""

from collections.abc import Callable

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.person_messages import (
    NewGameRequest,
    PersonStatus,
    StateRequest,
    TokenRequest,
)
from hanabi_grpo.rollout.wire import episode_from_json
from hanabi_grpo.types import Episode

_PAGE = "/play/"


class PageGame:
    """One game of a person on the page."""

    def __init__(self, client: RolloutClient, wanted: NewGameRequest) -> None:
        """Start the game.

        Args:
            client: Client of the server.
            wanted: The game, and its seat assignment.

        Raises:
            ServerError: The server refuses it.
        """
        self._client = client
        answer = client.ask_page("a game on the page", "games", wanted)
        self._token = str(answer["token"])
        self._number: int = answer["state"]["number"]

    @property
    def address(self) -> str:
        """Address where the person plays; anyone who has it can play the game."""
        return f"{self._client.url}{_PAGE}#{self._token}"

    def wait(self) -> tuple[Episode, str]:
        """Wait until the game is over; return its record, and its outcome in words.

        Raises:
            ServerError: The person left the game, or it failed.
        """
        state: dict[str, object] = {}
        while state.get("status") != PersonStatus.OVER:
            request = StateRequest(token=self._token, after=self._number, watching=True)
            # A person may play for hours: one lost connection must not lose the game.
            state = self._client.ask_page("the game on the page", "state", request, may_repeat=True)
            self._number = int(str(state["number"]))
            if state["status"] == PersonStatus.FAILED:
                raise ServerError(f"the game on the page has ended: {state['problem']}")
        token = TokenRequest(token=self._token)
        record = self._client.ask_page("the record", "record", token, may_repeat=True)
        return episode_from_json(record), str(state["outcome"])

    def leave(self) -> None:
        """End the game."""
        self._client.ask_page("leaving the game", "leave", TokenRequest(token=self._token))


def play_on_page(game: PageGame, open_page: Callable[[str], object]) -> tuple[Episode, str] | None:
    """Let a person play a game; None if this command was interrupted before the game ended.

    Args:
        game: The game.
        open_page: Called with the page's address.

    Raises:
        ServerError: As `PageGame.wait`.
    """
    try:
        open_page(game.address)
        return game.wait()
    except KeyboardInterrupt:
        game.leave()
        return None
