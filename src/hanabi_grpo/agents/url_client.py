"""One call to a model behind a URL, with the `openai` client.

The client sends and receives; the response is decoded here, with the codec of the rollout server's
messages. The client does not retry: `UrlCalls` does, and counts tokens between tries.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import httpx
from msgspec import Meta, Struct

from hanabi_grpo.client.calls import MAX_ANSWER, refuse_encoding, retry_after
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.settings.values import PartnerUrl, is_loopback

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SENT_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        # Tells the client not to parse the answer.
        "x-stainless-raw-response",
    }
)
"""Only these headers are sent."""
_MASK = "********"
_MAX_QUOTED = 300
"""Characters of an answer that an error quotes."""
_MAX_QUOTED_BYTES = 4 * _MAX_QUOTED
"""Maximum bytes of that many characters."""
_HINTS = {
    401: " Set HANABI_PARTNER_KEY in the server's terminal.",
    403: " Set HANABI_PARTNER_KEY in the server's terminal.",
    404: " Check that the URL ends as in http://localhost:8001/v1, and that it serves this model.",
}
"""Next step for each status."""
_RETRIED_STATUSES = (408, 409, 425, 429)
"""Statuses below 500 for which a retry may help."""
_Count = Annotated[int, Meta(ge=0)]
_Answer = TypeVar("_Answer", bound=Struct)


class CallFailedError(Exception):
    """One call failed.

    Attributes:
        can_retry: Whether a retry may help.
        retry_after: Seconds that the server asks to wait; None: unspecified.
    """

    def __init__(
        self, reason: str, *, can_retry: bool = True, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.can_retry = can_retry
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSampling:
    """Sampling parameters of a model behind a URL."""

    max_tokens: int
    """Longest reply, in tokens."""
    temperature: float


class Usage(Struct):
    """Tokens of one call, as the URL counts them."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class Completion(Struct):
    """The part of a chat completion that is read."""

    choices: Annotated[tuple[_Choice, ...], Meta(min_length=1)]
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The reply; "" if it has none."""
        return self.choices[0].message.content or ""


class _Model(Struct):
    id: str


class _Models(Struct):
    data: tuple[_Model, ...]


class UrlClient:
    """Calls to one model of HANABI_PARTNER_URLS. Used from one event loop at a time."""

    def __init__(self, url: PartnerUrl, *, key: str, timeout: float, timeout_variable: str) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: The URL, and the name of the model there.
            key: HANABI_PARTNER_KEY, sent only to this URL; "" for none.
            timeout: Seconds that a whole call may take.
            timeout_variable: The setting of the timeout.
        """
        self._url = url
        self._key = key
        self._timeout = timeout
        self._timeout_variable = timeout_variable

    async def complete(
        self, messages: Sequence[dict[str, str]], sampling: UrlSampling
    ) -> Completion:
        """Ask for one reply to a conversation.

        Raises:
            CallFailedError: The URL cannot be reached, rejects the call, times out, or sends a
                malformed answer.
        """
        return await self._call(
            Completion,
            lambda client: client.chat.completions.with_raw_response.create(
                model=self._url.model,
                messages=messages,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
            ),
        )

    async def list_models(self) -> tuple[str, ...]:
        """Return the names of the models that the URL has; raises as `complete`."""
        answer = await self._call(_Models, lambda client: client.models.with_raw_response.list())
        names = [model.id for model in answer.data]
        return tuple(names)

    async def _call(self, kind: type[_Answer], send: Callable[[Any], Awaitable[Any]]) -> _Answer:
        # Imported here, since it takes most of a second and commands without URLs do not need it.
        from openai import APIConnectionError, APIStatusError

        try:
            async with asyncio.timeout(self._timeout):
                response = await send(self._client)
        except TimeoutError:
            raise CallFailedError(
                f"no answer in {self._timeout:g} s ({self._timeout_variable})."
            ) from None
        except APIStatusError as error:
            raise self._refused(error.response) from error
        except APIConnectionError as error:
            raise _not_reached(error.__cause__ or error) from error
        except httpx.InvalidURL as error:
            raise _not_reached(error) from error
        try:
            return read_struct(kind, response.content)
        except ValueError as error:
            quoted = self._quote(response.content)
            raise CallFailedError(f"the answer is malformed ({error}): {quoted}.") from None

    @cached_property
    def _client(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        # Proxy variables are meant for the internet, not for this machine.
        uses_proxy = not is_loopback(httpx.URL(self._url.base).host)
        http: Any = httpx.AsyncClient(
            timeout=None,
            headers={"accept-encoding": "identity"},
            # Connections are not reused: one that was idle during training may be dead.
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=uses_proxy,
            event_hooks={"request": [self._strip_headers], "response": [_limit_answer]},
        )
        return AsyncOpenAI(
            # The client does not start without a key; `_strip_headers` removes this placeholder.
            api_key=self._key or "none",
            base_url=self._url.base,
            max_retries=0,
            timeout=None,
            http_client=http,
        )

    async def _strip_headers(self, request: httpx.Request) -> None:
        """Remove all headers that the call does not need.

        The `openai` client adds a description of this machine, and headers from the environment
        variables OPENAI_…, which are meant for another service.
        """
        for name in set(request.headers):
            if name not in _SENT_HEADERS:
                del request.headers[name]
        request.headers["accept-encoding"] = "identity"
        request.headers.pop("authorization", None)
        if self._key:
            request.headers["authorization"] = f"Bearer {self._key}"

    def _refused(self, response: Any) -> CallFailedError:
        status = response.status_code
        hint = _HINTS.get(status, "")
        return CallFailedError(
            f"it answered {status}: {self._quote(response.content)}.{hint}",
            can_retry=status in _RETRIED_STATUSES or status >= 500,
            retry_after=retry_after(response),
        )

    def _quote(self, content: bytes) -> str:
        """Return the beginning of an answer for an error, without the key."""
        text = content[:_MAX_QUOTED_BYTES].decode("utf-8", "replace")
        if self._key:
            text = text.replace(self._key, _MASK)
        return repr(text[:_MAX_QUOTED])


def _not_reached(error: BaseException) -> CallFailedError:
    """Return the error of a call that got no answer."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol | httpx.InvalidURL):
        return CallFailedError(
            f"cannot be called: {error}. Check HANABI_PARTNER_URLS.", can_retry=False
        )
    if isinstance(error, httpx.DecodingError):
        return CallFailedError(f"the answer cannot be read: {error}.")
    return CallFailedError(f"not reached ({type(error).__name__}: {error}).")


async def _limit_answer(response: httpx.Response) -> None:
    """Reject a compressed answer, and stop reading one that is too long."""
    refuse_encoding(response)
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _LimitedStream(response.stream)


class _LimitedStream(httpx.AsyncByteStream):
    """The body of an answer, of at most `MAX_ANSWER` bytes."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MAX_ANSWER:
                raise httpx.DecodingError(f"it has more than {MAX_ANSWER} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
