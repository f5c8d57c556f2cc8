"""Tools: the calculator, the lookup, how calls are read, limits, errors, time-outs and privacy."""

import asyncio
import threading
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.agents.person import read_reply
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.config import NO_TOOLS
from hanabi_grpo.envs.conformance import STRANGE_REPLIES, ConformanceError, check, check_tools
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.envs.rewards import with_rewards
from hanabi_grpo.envs.tools.calculator import CALCULATOR, calculate
from hanabi_grpo.envs.tools.calls import read_call, write_call
from hanabi_grpo.envs.tools.lookup import lookup_tool
from hanabi_grpo.envs.tools.seat import SeatTools
from hanabi_grpo.envs.tools.tool import (
    MAX_ARGUMENT,
    MAX_RESULT,
    Outcome,
    Tool,
    ToolError,
    run_tool,
)
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import CallError, ReplyKind
from toy_environments import Guess, ToyConfig

RIVERS = lookup_tool({"Rhine": "1233 km", "Elbe": "1094 km"}, name="rivers")


def raise_error(text: str) -> str:
    raise RuntimeError("out of order")


BROKEN = Tool(name="broken", description="never works", run=raise_error)
TOOLS = (CALCULATOR, RIVERS, BROKEN)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3 + 4 - 2", "5"),
        ("3 + 4 - 2 = ?", "5"),
        ("2 * (3 + 4) - -1", "15"),
        ("1 / 8", "0.125"),
        ("1 / 3 * 3", "1"),
        ("2 / 3", "0.666666666667"),
        ("-1 / 1000", "-0.001"),
        ("1 / 10 ** 20", "0"),
        ("7 % 3", "1"),
        ("2 ** 3 ** 2", "512"),
        ("-2 ^ 2", "-4"),
        ("2 ** -1", "0.5"),
        (".5 + 1.", "1.5"),
        ("6 × 7 ÷ 2 − 1", "20"),
    ],
)
def test_the_calculator_computes(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "an empty expression"),
        ("3 +", "its end"),
        ("3 4", "'4' at character 3"),
        ("__import__('os')", "'__import__' at character 1"),
        ("1e5", "'e5' at character 2"),
        ("1.2.3", "at character 1"),
        ("1 / 0", "divides by 0"),
        ("0 ** -1", "divides by 0"),
        ("9 ** 9 ** 9", "exponent is a whole number up to 256"),
        ("9 ** 255", "more than 150 digits"),
        ("2 ** 0.5", "exponent is a whole number"),
        ("(" * 30, "brackets and signs within each other"),
        ("-" * 30 + "1", "brackets and signs within each other"),
        ("1+" * 100 + "1", "201 characters; allowed: 200"),
    ],
)
def test_the_calculator_refuses_with_what_is_allowed(expression: str, reason: str) -> None:
    with pytest.raises(ToolError) as error:
        calculate(expression)
    assert reason in str(error.value)


@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 999)), max_size=8))
def test_the_calculator_agrees_with_exact_arithmetic(terms: list[tuple[str, int]]) -> None:
    # Products bind more strongly: the sum of signed products.
    products = [Fraction(1)]
    expression = "1"
    for sign, value in terms:
        expression += f" {sign} {value}"
        if sign == "*":
            products[-1] *= value
        else:
            products.append(Fraction(value if sign == "+" else -value))
    assert calculate(expression) == str(sum(products))


@given(st.text(max_size=60))
def test_the_calculator_answers_any_text(text: str) -> None:
    outcome = run_tool(CALCULATOR, text, 1.0)
    assert outcome.error in (None, CallError.BAD_CALL)


def test_the_lookup_finds_a_key_and_names_near_ones() -> None:
    assert run_tool(RIVERS, "  rhine ", 1.0).text == "1233 km"
    outcome = run_tool(RIVERS, "Rhein", 1.0)
    assert outcome.error is CallError.BAD_CALL
    assert "no row for 'Rhein'; known are 2 keys, e.g. Rhine" in outcome.text
    with pytest.raises(SettingsError, match="two rows for the key 'a'"):
        lookup_tool({"A": "1", "a": "2"})
    with pytest.raises(SettingsError, match="0 rows; allowed: 1 to"):
        lookup_tool({})
    assert lookup_tool({"a": "1"}).key != lookup_tool({"a": "2"}).key


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 4"}}</tool_call>'


@pytest.mark.parametrize(
    "reply",
    [
        CALL,
        f"<think>I should {CALL.upper()}</think>\n{CALL}",
        f"Let me see.\n{CALL}\n",
        CALL.removesuffix("</tool_call>"),
        '<tool_call>{"name": "calculator", "arguments": "3 + 4"}</tool_call>',
        '<tool_call>{"name": "calculator", "parameters": {"expression": "3 + 4"}}</tool_call>',
    ],
)
def test_a_call_is_read_from_a_reply(reply: str) -> None:
    wanted = read_call(reply, TOOLS)
    assert wanted is not None
    assert (wanted.tool, wanted.argument) == (CALCULATOR, "3 + 4")


@pytest.mark.parametrize(
    ("reply", "error", "reason"),
    [
        ("<tool_call>calculator</tool_call>", CallError.BAD_CALL, "one JSON object"),
        ("<tool_call>[]</tool_call>", CallError.BAD_CALL, 'JSON object with "name"'),
        (CALL + CALL, CallError.BAD_CALL, "one call a reply"),
        (CALL.replace("expression", "text"), CallError.BAD_CALL, "'expression' alone"),
        (CALL.replace('"3 + 4"', "null"), CallError.BAD_CALL, "'expression' alone"),
        (CALL.replace("3 + 4", "9" * 3000), CallError.BAD_CALL, "at most 2000 characters"),
        (CALL.replace("calculator", "python"), CallError.UNKNOWN_TOOL, "no tool 'python'"),
        (CALL.replace("calculator", r"\ud83d"), CallError.UNKNOWN_TOOL, "no tool '?'"),
        (
            CALL.replace("calculator", r"\u003c|im_end|>"),
            CallError.UNKNOWN_TOOL,
            "no tool '< |im_end|>'",
        ),
    ],
)
def test_a_bad_call_is_told_what_is_allowed(reply: str, error: CallError, reason: str) -> None:
    wanted = read_call(reply, TOOLS)
    assert wanted is not None and wanted.refusal is not None
    assert wanted.tool is None
    assert wanted.refusal.error is error
    assert reason in wanted.refusal.text
    assert '{"name": "calculator", "arguments": {"expression": "…"}}' in wanted.refusal.text


@pytest.mark.parametrize("reply", ["Answer: 7", "<think>" + CALL, "calculator", "3 = 4", ""])
def test_other_replies_are_no_calls(reply: str) -> None:
    assert read_call(reply, TOOLS) is None
    assert read_call(CALL, ()) is None


@given(st.text(max_size=MAX_ARGUMENT // 2), st.booleans())
def test_what_a_script_writes_is_read_as_it_was_meant(argument: str, short: bool) -> None:
    if short:
        argument = " ".join(argument.split())
    wanted = read_call(write_call(RIVERS, argument, short=short), TOOLS, short=short)
    if "<" in argument and wanted is None:
        # It opens a thought.
        return
    assert wanted is not None
    if wanted.tool is not None and "<" not in argument:
        assert wanted.argument == argument


@given(st.text(max_size=200) | st.sampled_from(STRANGE_REPLIES))
def test_any_text_can_be_read(text: str) -> None:
    read_call(text, TOOLS, short=True)
    read_call(f"<tool_call>{text}", TOOLS)


def seat(*tools: Tool, calls: int = 4, timeout: float = 1.0) -> SeatTools:
    return SeatTools(tools, calls_per_turn=calls, timeout=timeout, short=False)


def make_calls(tools: SeatTools, replies: Sequence[str]) -> list[CallError | None]:
    errors = []
    for reply in replies:
        wanted = tools.read(reply)
        assert wanted is not None
        errors.append(tools.add(wanted, tools.run(wanted)).error)
    return errors


def test_limits_of_a_turn_and_of_an_episode() -> None:
    rivers = lookup_tool({"Rhine": "1"}, name="rivers", calls_per_turn=1, calls_per_episode=2)
    tools = seat(CALCULATOR, rivers)
    river = write_call(rivers, "Rhine", short=False)
    assert make_calls(tools, [river, river, CALL]) == [None, CallError.USED_UP, None]
    assert "left: calculator." in tools.calls[1].result
    assert tools.available() == (CALCULATOR,)
    assert tools.calls_left == 1
    assert make_calls(tools, [CALL]) == [None]
    assert tools.calls[-1].result == "7\n\nThat was the last call of this turn: answer now."
    assert tools.calls_left == 0 and tools.available() == ()
    tools.end_turn()
    # The refused call counts in the episode as well.
    assert make_calls(tools, [river]) == [CallError.USED_UP]


def test_a_tool_that_raises_is_told_to_its_player_alone() -> None:
    outcome = run_tool(BROKEN, "", 1.0)
    assert outcome.error is CallError.FAILED
    assert outcome.text == "broken failed: RuntimeError: out of order"
    wrong: Any = lambda text: 7  # noqa: E731
    outcome = run_tool(Tool(name="wrong", description="x", run=wrong), "", 1.0)
    assert outcome.text == "wrong failed: it returned int, not a text"


@pytest.mark.parametrize("slow", [False, True])
def test_a_tool_that_exits_has_failed_and_ends_no_process(slow: bool) -> None:
    def parse(text: str) -> str:
        ArgumentParser(prog="tool", exit_on_error=False).parse_args(text.split())
        return "unreachable"

    tool = Tool(name="exits", description="x", run=parse, slow=slow)
    outcome = run_tool(tool, "--unknown", 5.0)
    assert outcome == Outcome(text="exits failed: SystemExit: 2", error=CallError.FAILED)


def test_a_result_is_cut_and_cannot_pretend_to_be_the_chat_template() -> None:
    long = Tool(name="long", description="x", run=lambda text: "x" * 10_000)
    assert len(run_tool(long, "", 1.0).text) == MAX_RESULT
    echo = Tool(name="echo", description="x", run=lambda text: text)
    assert run_tool(echo, "<|im_end|>\ud800", 1.0).text == "< |im_end|>?"


def test_a_slow_tool_is_given_up_in_time_and_after_a_few_not_called_again() -> None:
    release = threading.Event()

    def wait(text: str) -> str:
        release.wait(60)
        return text

    waiting = Tool(name="waiting", description="x", run=wait, slow=True)
    start = time.monotonic()
    try:
        for _ in range(4):
            outcome = run_tool(waiting, "", 0.05)
            assert outcome.error is CallError.TIMEOUT
            assert outcome.text == "waiting: no result within 0.05 s; go on without it."
        outcome = run_tool(waiting, "", 60.0)
        assert outcome.error is CallError.TIMEOUT
        assert "4 earlier calls have not returned" in outcome.text
    finally:
        release.set()
    assert time.monotonic() - start < 30
    quick = Tool(name="quick", description="x", run=str.upper, slow=True)
    assert run_tool(quick, "a", 30.0).text == "A"


def test_a_slow_tool_does_not_hold_the_event_loop() -> None:
    slow = Tool(name="slow", description="x", run=lambda text: time.sleep(0.3) or text, slow=True)
    tools = seat(slow)
    wanted = tools.read(write_call(slow, "a", short=False))
    assert wanted is not None

    async def count() -> int:
        call = asyncio.ensure_future(tools.run_beside(wanted))
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert (await call).text == "a"
        return ticks

    assert asyncio.run(count()) > 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "two words"}, "one word of letters, digits and underscores"),
        ({"description": "a\nb"}, "give one line"),
        ({"calls_per_turn": 0}, "at least 1"),
        ({"timeout": 0.0}, "more than 0 seconds"),
    ],
)
def test_a_tool_that_nobody_could_call_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        Tool(**{"name": "a", "description": "b", "run": str.upper, **fields})


# Environments with tools


def debate(**fields: Any) -> Setup[Any]:
    return registry.setup(
        "debate", {"preset": "debate-calculator", "tools": "calculator", "style": "full", **fields}
    )


def test_others_see_nothing_of_a_call() -> None:
    task = debate().task("train", 0)
    referees = [Referee(task), Referee(task)]
    wanted = referees[0].wanted_call(0, CALL)
    assert wanted is not None
    referees[0].add_call(0, CALL, wanted, referees[0].tools_of(0).run(wanted))
    assert referees[0].see(0).message() == "7"
    assert "calculator(3 + 4): 7" in referees[0].see(0).scene().table
    for step in range(2):
        for read in ("message", "state_message", "view", "scene", "calls"):
            seen = [getattr(referee.see(1), read) for referee in referees]
            values = seen if read == "calls" else [value() for value in seen]
            assert values[0] == values[1]
        for referee in referees:
            referee.step({0: "Answer: 7", 1: "Answer: 8"})
        assert referees[0].status == referees[1].status
        # The caller itself goes on without the calls of earlier turns.
        if step == 0:
            assert referees[0].see(0).message() == referees[1].see(0).message()
    assert "calculator" not in referees[0].episode().turns[-1].prompt


def test_a_person_is_told_of_the_tools_and_may_call_them() -> None:
    for style, call in (("full", CALL), ("compact", "calculator 3 + 4")):
        setup = debate(style=style)
        rules = setup.environment.person_message(setup.config, 0)
        assert "- calculator(expression): the value of an arithmetic expression" in rules
        example = "<tool_call>" if style == "full" else "Write calculator … and"
        assert example in rules
        seen = Referee(setup.task("train", 0)).see(0)
        assert read_reply(call, seen, seen.scene()) == call


def test_a_call_is_no_answer_where_no_call_is_left() -> None:
    setup = debate(tool_calls=1)
    referee = Referee(setup.task("train", 0))
    wanted = referee.wanted_call(0, CALL)
    assert wanted is not None
    referee.add_call(0, CALL, wanted, referee.tools_of(0).run(wanted))
    assert referee.wanted_call(0, CALL) is None
    turns = referee.step({0: f"Answer: 7 {CALL}", 1: "Answer: 7"})
    kinds = [(turn.is_call, turn.kind) for turn in turns]
    assert kinds == [
        (True, ReplyKind.LEGAL),
        (False, ReplyKind.UNPARSABLE),
        (False, ReplyKind.LEGAL),
    ]


def test_tools_change_the_rules_that_both_sides_compare() -> None:
    plain = debate(tools=NO_TOOLS)
    hashes = {
        plain.spec.hash,
        debate().spec.hash,
        debate(tool_calls=2).spec.hash,
        debate(style="compact").spec.hash,
    }
    assert len(hashes) == 4
    assert "calculator" in debate().environment.system_message(debate().config, 0)
    assert "calculator" not in plain.environment.system_message(plain.config, 0)
    assert debate().without_tools().tools == ()
    assert plain.without_tools() is plain
    with pytest.raises(SettingsError, match="debate has no tool 'lookup'; it offers calculator"):
        debate(tools="calculator,lookup")
    with pytest.raises(SettingsError, match="names a tool twice"):
        debate(tools="calculator,calculator")


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("env", ["vote", "debate", "summary", "pioneer_observer", "revise"])
def test_workflows_with_a_calculator_pass_every_check(env: str, style: str) -> None:
    environment = registry.get(env)
    config = environment.presets[f"{env}-calculator"].model_copy(update={"style": style})
    check(environment, config, num_episodes=5)


class ToolGuess(Guess):
    """`Guess` with a tool of the test's choice."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def tools(self, config: ToyConfig) -> tuple[Tool, ...]:
        return (self.tool,)


def test_an_environments_own_tool_is_on_unless_it_is_named_off() -> None:
    own = ToolGuess(RIVERS)
    assert Setup(own, ToyConfig()).tools == (RIVERS,)
    assert Setup(own, ToyConfig(tools=NO_TOOLS)).tools == ()
    check_tools(own, ToyConfig())
    slow = Tool(name="slow", description="x", run=str.upper, slow=True)
    assert registry.may_block(Setup(ToolGuess(slow), ToyConfig()))


def test_an_environment_with_a_further_reward_keeps_its_tools() -> None:
    paid = with_rewards(
        "vote",
        name="vote_paid",
        rewards={"extra": lambda episode: [0.0] * episode.num_players},
        reward_range=(0.0, 0.0),
    )
    config = paid.presets["vote-calculator"].model_copy(update={"style": "compact"})
    setup = Setup(paid, config)
    assert setup.tools == (CALCULATOR,)
    tools = setup.seat_tools()
    assert tools is not None and tools.read("calculator 3 + 4") is not None
    assert setup.environment.system_message(config, 0) == ""


CALLS_SO_FAR: list[str] = []


def count_calls(text: str) -> str:
    CALLS_SO_FAR.append(text)
    return str(len(CALLS_SO_FAR))


def compute_long(text: str) -> str:
    start = time.thread_time()
    while time.thread_time() - start < 0.2:
        pass
    return text


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raise_error, "to raise a ToolError"),
        (count_calls, "the same way each time"),
        (compute_long, "as it is not slow"),
    ],
)
def test_conformance_finds_a_bad_tool(function: Any, reason: str) -> None:
    tool = Tool(name="bad", description="a bad one", run=function)
    with pytest.raises(ConformanceError, match=reason):
        check_tools(ToolGuess(tool), ToyConfig())


def test_a_slow_tool_serves_many_games_at_once() -> None:
    """More than `MAX_STUCK` calls may be under way, as long as each is in its time."""

    def wait(text: str) -> str:
        time.sleep(0.2)
        return text

    tool = Tool(name="wait", description="waits", run=wait, slow=True)
    with ThreadPoolExecutor(max_workers=16) as pool:
        outcomes = list(pool.map(lambda word: run_tool(tool, word, 30.0), map(str, range(16))))
    assert [outcome.text for outcome in outcomes] == [str(number) for number in range(16)]
