"""A stand-in for a model behind an OpenAI-compatible URL."""

import json
from collections.abc import Callable
from typing import Any

from local_service import LocalService, QuietHandler

Response = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""Status, content and perhaps headers."""
Answer = Callable[[dict[str, Any]], Response]


def completion(text: Any = "Play 0", prompt_tokens: int = 7) -> Response:
    """A reply as OpenAI's API has it, of ten tokens together with its prompt."""
    return 200, {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 3},
    }


class Partner(LocalService):
    """A model service that answers by a function of the request's body, and keeps requests."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def entry(self, name: str = "big") -> str:
        """This service as an entry of HANABI_PARTNER_URLS."""
        return f"{name}={self.url}/v1#org/model:1"


class Handler(QuietHandler):
    """Chat completions and the list of models, as OpenAI's API has them."""

    server: Partner

    def do_POST(self) -> None:
        body = json.loads(self.body())
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.bodies.append(body)
        status, content, *headers = self.server.answer(body)
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        if self.path != "/v1/chat/completions":
            status = 404
        self.give(content, status, *headers)

    def do_GET(self) -> None:
        is_list = self.path == "/v1/models"
        self.give_json({"data": [{"id": "org/model:1"}]} if is_list else {})
