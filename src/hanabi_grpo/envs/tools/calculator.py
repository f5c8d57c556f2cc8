"""A calculator for whole and decimal numbers, + - * / % ** and parentheses; exact where possible.

A hand-written parser reads the expression character by character; nothing in it is ever executed.
Numbers are fractions, so 1/3*3 is 1, and numbers that are too large are rejected before they are
computed.
"""

from fractions import Fraction

from hanabi_grpo.envs.tools.tool import Tool, ToolError

MAX_EXPRESSION = 200
"""Maximum length of an expression in characters."""
MAX_DEPTH = 20
"""Maximum nesting of parentheses and signs."""
MAX_BITS = 512
"""Maximum bits of an intermediate numerator or denominator; about 150 digits."""
_MAX_EXPONENT = 256
_DIGITS = 12
"""Maximum number of decimals of a result."""
_ALLOWED = "numbers, + - * / % ** ( )"


def calculate(expression: str) -> str:
    """Return the value of an expression.

    Example:
        calculate("3 + 4 * (2 - 1)") == "7"
        calculate("1 / 8") == "0.125"

    Raises:
        ToolError: The expression is invalid, too long, divides by 0, or is too large.
    """
    text = expression.replace("×", "*").replace("÷", "/").replace("−", "-").replace("^", "**")
    text = text.strip().removesuffix("?").strip().removesuffix("=").strip()
    if not text:
        raise ToolError(f"an empty expression; allowed: {_ALLOWED}.")
    if len(text) > MAX_EXPRESSION:
        raise ToolError(f"{len(text)} characters; allowed: {MAX_EXPRESSION}.")
    reader = _Reader(text)
    value = reader.sum(0)
    reader.expect_end()
    return _shown(value)


CALCULATOR = Tool(
    name="calculator",
    description=f"the value of an arithmetic expression ({_ALLOWED})",
    run=calculate,
    argument="expression",
)


class _Reader:
    """Parses an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def sum(self, depth: int) -> Fraction:
        """Parse products separated by + and -."""
        value = self._product(depth)
        while True:
            if self._take("+"):
                value = _checked(value + self._product(depth))
            elif self._take("-"):
                value = _checked(value - self._product(depth))
            else:
                return value

    def expect_end(self) -> None:
        """Raise an error if any text is left."""
        if self._next():
            self._refuse()

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while True:
            # Not the first half of a power.
            if not self._starts("**") and self._take("*"):
                value = _checked(value * self._signed(depth))
            elif self._take("/"):
                value = _checked(value / _divisor(self._signed(depth)))
            elif self._take("%"):
                value = _checked(value % _divisor(self._signed(depth)))
            else:
                return value

    def _signed(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ToolError(f"more than {MAX_DEPTH} brackets and signs within each other.")
        if self._take("-"):
            return -self._signed(depth + 1)
        if self._take("+"):
            return self._signed(depth + 1)
        base = self._atom(depth)
        if not self._starts("**"):
            return base
        self._at += len("**")
        return _power(base, self._signed(depth + 1))

    def _atom(self, depth: int) -> Fraction:
        if self._take("("):
            value = self.sum(depth + 1)
            if not self._take(")"):
                self._refuse()
            return value
        self._next()
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789.":
            self._at += 1
        digits = self._text[start : self._at]
        if not digits.strip(".") or digits.count(".") > 1:
            self._at = start
            self._refuse()
        return _checked(Fraction(f"0{digits}" if digits.startswith(".") else digits.rstrip(".")))

    def _next(self) -> str:
        """Return the next character that is not a space, or "" at the end."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _starts(self, token: str) -> bool:
        self._next()
        return self._text.startswith(token, self._at)

    def _take(self, token: str) -> bool:
        if not self._starts(token):
            return False
        self._at += len(token)
        return True

    def _refuse(self) -> None:
        rest = self._text[self._at : self._at + 10]
        where = f"{rest!r} at character {self._at + 1}" if rest else "its end"
        raise ToolError(f"cannot read the expression at {where}; allowed: {_ALLOWED}.")


def _checked(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError("a number on the way has more than 150 digits.")
    return value


def _divisor(value: Fraction) -> Fraction:
    if not value:
        raise ToolError("it divides by 0.")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
        raise ToolError(f"an exponent is a whole number up to {_MAX_EXPONENT}.")
    if not base and exponent < 0:
        raise ToolError("it divides by 0.")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_BITS + _MAX_EXPONENT:
        raise ToolError("a number on the way has more than 150 digits.")
    return _checked(base ** int(exponent))


def _shown(value: Fraction) -> str:
    """Return a number as text, rounded to 12 decimals if it is not whole."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**_DIGITS)
    sign = "-" if scaled < 0 else ""
    whole, decimals = divmod(abs(scaled), 10**_DIGITS)
    shown = f"{decimals:0{_DIGITS}d}".rstrip("0")
    if not shown and not whole:
        return "0"
    return f"{sign}{whole}.{shown}" if shown else f"{sign}{whole}"
