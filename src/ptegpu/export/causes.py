"""What went wrong in somebody else's code, in as few words as say it and with the lines of the user's own code."""

from __future__ import annotations

import re
import sys
import traceback
from types import FrameType

NOISE = re.compile(  # of PyTorch's messages: how to log more, and where in PyTorch it happened
    r"""\ ?For\ more\ information[^\n]*
    |^(?:For\ (?:extended|more|C\+\+)|If\ you\ suspect|Caused\ by:|The\ error\ above\ occurred)[^\n]*
    |^The\ following\ call\ raised.*\Z
    |\ \(<[^>]*\ at\ 0x\w+>\)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
SHOWN = 3  # reasons of one kind
NOT_THE_USERS = sys.stdlib_module_names | {"ptegpu", "torch", "executorch"}


def explained(what: str, e: BaseException) -> list[str]:
    """The lines of a message: PyTorch's words without its noise, then the code that is neither PyTorch's nor ours."""
    text = _shortened(re.sub(r"\n\s*\n+", "\n", NOISE.sub("", str(e))).strip())
    if not type(e).__module__.startswith("torch"):
        text = f"{type(e).__name__}: {text}".removesuffix(": ")
    stack = traceback.StackSummary.extract((f, n) for f, n in traceback.walk_tb(e.__traceback__) if _is_the_users(f))
    return f"{what}: {text}".splitlines() + "".join(stack.format()).splitlines()


def root_cause(e: BaseException) -> str:
    """ExecuTorch wraps what went wrong in the name of a pass; the first line of the innermost error says it."""
    while inner := e.__cause__ or e.__context__:
        e = inner
    text = NOISE.sub("", str(e)).strip()
    return text.splitlines()[0] if text else type(e).__name__


def _shortened(text: str) -> str:
    """With the first few of a list of reasons, and all that follows it."""
    lines = text.splitlines()
    reasons = [k for k, line in enumerate(lines) if line.startswith("  - ")]
    if len(reasons) > SHOWN:
        lines[reasons[SHOWN]] = f"  - and {len(reasons) - SHOWN} more"
        lines = [line for k, line in enumerate(lines) if k not in reasons[SHOWN + 1 :]]
    return "\n".join(lines)


def _is_the_users(frame: FrameType) -> bool:
    if frame.f_code.co_filename.startswith("<"):  # made up by PyTorch
        return False
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in NOT_THE_USERS
