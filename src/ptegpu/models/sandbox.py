"""Jinja2's sandbox with a budget: a template of a stranger ends soon and takes little memory, whatever it says.

All that may take long spends from the budget before it is done: a round of a loop, a call, a filter, an operator, a
comparison, a list that is made, a character that is written. Tree nodes are added where Jinja2 has no hook of its own.
An operation of more than linear time costs the product of its operands' sizes, so that no single one is long. CPU time
is bounded, too, in proportion to the budget.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from string import Formatter
from types import GeneratorType
from typing import Any

from jinja2 import nodes
from jinja2.runtime import LoopContext, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

STEP, ITEM = 64, 8  # what a call or a round of a loop costs, and an item of a list; a character costs 1
NODE = 2  # what a node of a loop's or a macro's body costs in each round
RATE = 1 << 20  # of the budget, a second of CPU time
BITS = 4096  # of an int
HASHED = 61  # bits from which ints may have the same hash
WIDEST = 1000  # characters, of a field with a width
DIGITS = 308  # after the point, of a float
DEEP = 8  # levels of lists in lists that are indented
_SIZED = (str, bytes, list, tuple, dict, set, frozenset, range)
_VIEWS: Any = type({}.keys()) | type({}.values()) | type({}.items())
_FREE = ("length", "count", "first", "last", "default", "d", "safe")  # filters that look at one item at most
_LAZY = ("map", "select", "selectattr", "reject", "rejectattr", "items")  # whose work is paid item by item
_LOOKING = {"in", "==", "eq", "equalto", "!=", "ne", "lower", "upper"}  # tests that look at all of a value
_LOOKING |= {">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le"}
_UNBOUNDED = ("wordwrap", "urlize", "striptags", "pprint", "random", "xmlattr")  # filters that no chat needs
_PERCENT = re.compile(  # a width that is large or given, and a key that hides one
    r"%(?:\([^()]*\(|(?:\([^)]*\))?[-+ #0]*(?:\*|\d{4}|\d*\.(?:\*|\d{4})))"
)
_BACKWARDS = ("rfind", "rindex", "rsplit", "rpartition")  # methods that try each place, unlike those that go forward
_STRIPPING = ("strip", "lstrip", "rstrip")  # that look for each character in their argument
_REFUSED = ("expandtabs", "translate", "striptags", "unescape")  # methods of texts that no chat needs
_WIDTH = re.compile(r"[{]|\d{4}")


class TooMuch(Exception):
    """The budget is spent."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Templates are made and rendered `within` a budget; each thread has its own."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self.made, **options)
        self._budget = threading.local()
        del self.globals["lipsum"]
        for name in _UNBOUNDED:
            del self.filters[name]
        for name, function in dict[str, Any](self.filters).items():
            self.add_filter(name, function)
        for name, test in dict[str, Any](self.tests).items():
            self.tests[name] = self._bounded(test, self._look if name in _LOOKING else _nothing)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """A filter whose arguments and result are paid for."""
        own: dict[str, Callable[..., None]] = {
            **dict.fromkeys(_FREE, _nothing),
            **dict.fromkeys(_LAZY, self._walk),
            "replace": self._spend_on_replace,
            "join": self._spend_on_join,
            "indent": self._spend_on_indent,
            "format": lambda text, *args, **more: self._spend_on_percent(text, more or args),
            "tojson": self._spend_on_json,
            "sum": self._spend_on_sum,
            "round": self._spend_on_round,
        }
        self.filters[name] = self._bounded(function, own.get(name, self._spend_on_filter), name in _LAZY)

    @contextmanager
    def within(self, budget: int) -> Iterator[None]:
        self._budget.left = budget
        self._budget.until = time.thread_time() + budget / RATE
        yield

    def spend(self, amount: int) -> None:
        self._budget.left -= amount
        if self._budget.left < 0 or time.thread_time() > self._budget.until:
            raise TooMuch("it takes too long or writes too much")

    # What the nodes that are added call. None of it can be named in a template.

    def step(self, amount: int = 0) -> bool:
        """A round of a loop, or a call, that writes so many characters of the template."""
        self.spend(STEP + amount)
        return True

    def made(self, value: Any) -> Any:
        """The value, paid for by its size, with all that is in it."""
        self.spend(self.size(value))
        return value

    def taken(self, value: Any) -> Any:
        """A part of a text or a list."""
        self.spend(self.length(value))
        return value

    def joined(self, *values: Any) -> str:
        """What `~` gives."""
        self.spend(STEP + self.size(values))
        return str_join(values)

    # Jinja2's own hooks

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        self.spend(STEP * (len(source) // STEP))
        found: nodes.Template = _Bounding(self).visit(super()._parse(source, name, filename))
        found.set_environment(self)
        return found

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if owner is __self:
            return __obj(*args)
        __self.spend(STEP + ITEM * (len(args) + len(kwargs)))
        args = tuple(map(_whole, args))
        if isinstance(owner, type):
            raise TypeError(f"{__obj.__name__} is not allowed")
        if isinstance(owner, str | bytes):
            args = __self._method(owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, list | tuple | range | LoopContext) or __obj is dict or __obj is Namespace:
            __self._look(owner, *args, **kwargs)
        elif isinstance(owner, int | float):
            __self.spend_on(*args, *kwargs.values())
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.spend(STEP)
        if operator == "%" and isinstance(left, str | bytes):
            self._spend_on_percent(left, right)
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() * abs(right))
        elif operator == "*":
            count, repeated = (left, right) if isinstance(left, int) else (right, left)
            self.spend(max(count, 0) * (self.size(repeated) - ITEM) if isinstance(count, int) else 0)
        else:
            self.spend(self.size(left) + self.size(right))
        return super().call_binop(context, operator, left, right)

    # What things cost

    def size(self, value: Any) -> int:
        """Items and characters of a value, with all that is in it, however often it is in it."""
        total, stack, left = 0, [value], self._budget.left
        wide = 0  # ints; a table of them may compare each with each
        while stack:
            v = stack.pop()
            kind = type(v)
            total += ITEM
            if issubclass(kind, str | bytes):
                total += len(v)
            elif issubclass(kind, int):
                self._check_bits(v.bit_length())
                wide += v.bit_length() >= HASHED
                total += wide if v.bit_length() >= HASHED else 0
            elif issubclass(kind, dict):
                stack += [*v, *v.values()]
            elif issubclass(kind, list | tuple | set | frozenset | _VIEWS):
                stack += v
            elif kind is Namespace:
                stack += object.__getattribute__(v, "_Namespace__attrs").values()
            elif kind is range:
                wide += len(v) if max(abs(v.start), abs(v.stop)).bit_length() >= HASHED else 0
                total += ITEM * len(v) + wide * wide // 2
            if total + ITEM * len(stack) > left:
                self.spend(total + ITEM * len(stack))
        return total

    def length(self, value: Any) -> int:
        return ITEM * len(value) if isinstance(value, _SIZED) else ITEM

    def spend_on(self, *values: Any, **more: Any) -> None:
        """What a native function is given: an int may be a size, and costs its value."""
        given = (*values, *more.values())
        self.spend(sum(abs(v) if isinstance(v, int) else self.size(v) for v in given))

    def _bounded(
        self, function: Callable[..., Any], cost: Callable[..., None], lazy: bool = False
    ) -> Callable[..., Any]:
        """Return a filter or a test that is paid for. A lazy one takes a generator as it is."""
        first = getattr(function, "jinja_pass_arg", None) is not None  # of its arguments is Jinja2's own

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.spend(STEP)
            if not lazy:
                args = tuple(map(_whole, args))
            cost(*args[first:], **kwargs)
            found = function(*args, **kwargs)
            if isinstance(found, Iterator) and not isinstance(found, LoopContext):
                return self._each(found, STEP + _characters(args[first + 1 :], kwargs))
            return self.made(found)

        return bounded

    def _each(self, items: Iterable[Any], price: int) -> Iterator[Any]:
        """Yield the items; each has its price."""
        for item in items:
            self.spend(price)
            yield item

    def _look(self, *values: Any, **more: Any) -> None:
        self.spend(self.size((values, more)))

    def _walk(self, value: Any, *_: Any, **__: Any) -> None:
        self.spend(self.length(value))

    def _spend_on_filter(self, value: Any, *args: Any, **more: Any) -> None:
        self.spend(self.size(value) + self.length(value) * _characters(args, more))  # each is looked for in each
        self.spend_on(*args, **more)

    def _spend_on_replace(self, text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
        self.spend(self.size(text) + self.size(old) + self.size(new))
        text, old, new = (v if isinstance(v, bytes) else str(v) for v in (text, old, new))
        self.spend(text.count(old) * len(new) if isinstance(text, str) == isinstance(old, str) else 0)

    def _spend_on_join(self, values: Any, d: Any = "", *_: Any, **__: Any) -> None:
        self.spend(self.size(values) + self.length(values) * (1 + len(str(d))))

    def _spend_on_indent(self, text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
        self.spend(self.size(text))
        wide = width if isinstance(width, int) else len(str(width))
        self.spend(len(str(text).splitlines()) * wide)

    def _spend_on_json(self, value: Any, *_: Any, indent: Any = 0, **__: Any) -> None:
        wide = indent if isinstance(indent, int) else 0
        self.spend(self.size(value) * (1 + DEEP * max(wide, 0)))

    def _spend_on_sum(self, values: Any, attribute: Any = None, start: Any = 0) -> None:
        self.spend(self.length(values))
        if not isinstance(start, int | float):
            raise TypeError("sum is of numbers")

    def _spend_on_round(self, value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
        self.spend(self.size(value))
        if isinstance(precision, int) and abs(precision) > DIGITS:
            raise ValueError(f"round to {DIGITS} digits at most")

    def _spend_on_percent(self, text: Any, given: Any) -> None:
        form = text if isinstance(text, str) else bytes(text).decode("latin-1") if isinstance(text, bytes) else ""
        if _PERCENT.search(form):
            raise ValueError("a format with such a width is not allowed")
        self.spend(self.size(text) + form.count("%") * (WIDEST + self.size(given)))

    def _method(self, owner: Any, name: str, args: tuple[Any, ...], more: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pays for a method of a text; its arguments."""
        self.spend(len(owner))
        if name in _REFUSED or (name in ("encode", "decode") and (args or more)):  # some codecs take quadratic time
            raise TypeError(f"{name} is not allowed")
        if name in ("format", "format_map"):
            fields = [spec for _, field, spec, _ in Formatter().parse(owner) if field is not None]
            if any(_WIDTH.search(spec or "") for spec in fields):
                raise ValueError("a format with such a width is not allowed")
            self.spend(len(fields) * (WIDEST + self.size((args, dict(more)))))
        elif name == "replace" and len(args) > 1:
            self._spend_on_replace(owner, *args)
        elif name == "join" and args:
            args = (list(args[0]), *args[1:])
            self._spend_on_join(args[0], owner)
        else:
            if name in _BACKWARDS or name in _STRIPPING:
                self.spend(len(owner) * _characters(args, more))
            self.spend_on(*args, **more)
        return args

    def _check_bits(self, bits: int) -> None:
        if bits > BITS:
            raise TooMuch("a number is too large")


def _whole(value: Any) -> Any:
    """Return a generator's items as a list, anything else as it is."""
    return list(value) if isinstance(value, GeneratorType) else value


def _characters(values: Iterable[Any], more: Mapping[str, Any]) -> int:
    """Return how many characters those arguments have that are texts."""
    return sum(len(v) for v in (*values, *more.values()) if isinstance(v, str | bytes))


def _nothing(*_: Any, **__: Any) -> None:
    """What costs no more than a step."""


class _Bounding(NodeTransformer):
    """Adds the calls of `step`, `made`, `taken` and `joined` to a template."""

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def _call(self, at: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
        return nodes.Call(function, list(args), [], None, None, lineno=at.lineno)

    def _step(self, node: Any) -> Any:
        """Each time its body begins, the body's own text is paid for."""
        self.generic_visit(node)
        text = sum(len(n.data) if isinstance(n, nodes.TemplateData) else NODE for n in node.find_all(nodes.Node))
        paid = self._call(node, "step", nodes.Const(text, lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(paid, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _step

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.test is not None:
            node.test = nodes.And(self._call(node, "step"), node.test, lineno=node.lineno)
        found: nodes.Node = self._step(node)
        return found

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call(node, "joined", *node.nodes)

    def _made(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else self._call(node, "made", node)

    visit_List = visit_Tuple = visit_Dict = _made

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._call(node, "taken", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._looked_at(node.expr)
        for operand in node.ops:
            operand.expr = self._looked_at(operand.expr)
        return node

    def _looked_at(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else self._call(node, "made", node)
