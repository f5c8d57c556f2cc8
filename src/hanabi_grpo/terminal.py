"""What this package prints on: a console on which texts only show themselves."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hanabi_grpo.texts import visible


class VisibleConsole(Console):
    """A console that obeys no text: not by control characters, and not by markup in brackets.

    What is printed comes from run folders and from the network as well. Styles and the movements
    of the cursor are rich's own and stay.
    """

    def __init__(self, **options: Any) -> None:
        """Make a console; options are rich's."""
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of anything printed, each with visible text."""
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = Segment(visible(segment.text), segment.style)
            yield segment
