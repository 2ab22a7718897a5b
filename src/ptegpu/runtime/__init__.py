"""The outer program: methods, their instructions, inputs and outputs. `program.py` is the entry point.

Names are imported when they are first used, so that code without a need for a GPU library loads none.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .program import LoadOptions, Program, open_program
    from .signature import Signature, Spec
    from .steps import Kind, kind_of

__getattr__ = lazy(
    __name__,
    {
        "LoadOptions": ".program",
        "Program": ".program",
        "Signature": ".signature",
        "Spec": ".signature",
        "Kind": ".steps",
        "kind_of": ".steps",
        "open_program": ".program",
    },
)

__all__ = ["Kind", "LoadOptions", "Program", "Signature", "Spec", "kind_of", "open_program"]
