"""The outer program: methods, their instructions, inputs and outputs. `program.py` is the entry point.

Names are imported when they are first used, so that code without a need for a GPU library loads none.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .program import LoadOptions, Program, open_program
    from .signature import MethodSignature, Spec
    from .steps import ItemKind, kind_of

__getattr__ = lazy(
    __name__,
    {
        "LoadOptions": ".program",
        "Program": ".program",
        "MethodSignature": ".signature",
        "Spec": ".signature",
        "ItemKind": ".steps",
        "kind_of": ".steps",
        "open_program": ".program",
    },
)

__all__ = ["ItemKind", "LoadOptions", "MethodSignature", "Program", "Spec", "kind_of", "open_program"]
