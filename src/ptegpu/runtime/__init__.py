"""The outer program: methods, their instructions, their inputs and outputs. `program.py` is the entry point.

Names are imported when they are used, so that what needs no GPU library can be used without one.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .options import LoadOptions
    from .program import Program, open_program
    from .signature import Signature, Spec
    from .steps import Kind, kind_of

__getattr__ = lazy(
    __name__,
    {
        "LoadOptions": ".options",
        "Program": ".program",
        "Signature": ".signature",
        "Spec": ".signature",
        "Kind": ".steps",
        "kind_of": ".steps",
        "open_program": ".program",
    },
)

__all__ = ["Kind", "LoadOptions", "Program", "Signature", "Spec", "kind_of", "open_program"]
