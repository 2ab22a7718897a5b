"""Jinja2's sandbox with a budget: any template of a stranger ends soon and takes little memory.

Every operation that may take long spends from the budget before it runs: an iteration of a loop, a call, a filter, an
operator, a comparison, a new list, a character of output. Tree nodes are added where Jinja2 has no hook of its own.
An operation of more than linear time costs the product of its operands' sizes, so no single operation takes long.
CPU time is also bounded, in proportion to the budget.
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

STEP, ITEM = 64, 8  # costs of a call or an iteration, and of an item of a list; a character costs 1
NODE = 2  # the cost of a node in the body of a loop or a macro, in each iteration
RATE = 1 << 20  # budget per second of CPU time
BITS = 4096  # of an int, at most
HASHED = 61  # bits; ints of this size or more may have equal hashes
WIDEST = 1000  # characters of a field with a width
DIGITS = 308  # of a float, after the point
DEEP = 8  # levels of nested lists that are indented
_SIZED = (str, bytes, list, tuple, dict, set, frozenset, range)
_VIEWS: Any = type({}.keys()) | type({}.values()) | type({}.items())
_FREE = ("length", "count", "first", "last", "default", "d", "safe")  # filters that read one item at most
_LAZY = ("map", "select", "selectattr", "reject", "rejectattr", "items")  # filters that pay item by item
_READING = {"in", "==", "eq", "equalto", "!=", "ne", "lower", "upper"}  # tests that read all of a value
_READING |= {">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le"}
_UNBOUNDED = ("wordwrap", "urlize", "striptags", "pprint", "random", "xmlattr")  # filters that no chat needs
_PERCENT = re.compile(  # a width that is large or an argument, and a key that hides one
    r"%(?:\([^()]*\(|(?:\([^)]*\))?[-+ #0]*(?:\*|\d{4}|\d*\.(?:\*|\d{4})))"
)
_BACKWARDS = (
    "rfind",
    "rindex",
    "rsplit",
    "rpartition",
)  # methods that compare at each position
_STRIPPING = ("strip", "lstrip", "rstrip")  # methods that look up each character in their argument
_REFUSED = ("expandtabs", "translate", "striptags", "unescape")  # methods of texts that no chat needs
_WIDTH = re.compile(r"[{]|\d{4}")


class TooMuch(Exception):
    """The budget is exhausted."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates are compiled and rendered `within` a budget. Each thread has its own budget."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self.pay, **options)
        self._budget = threading.local()
        del self.globals["lipsum"]
        for name in _UNBOUNDED:
            del self.filters[name]
        for name, function in dict[str, Any](self.filters).items():
            self.add_filter(name, function)
        for name, test in dict[str, Any](self.tests).items():
            self.tests[name] = self._bounded(test, self._spend_on_size if name in _READING else _nothing)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter that pays for its arguments and its result."""
        costs: dict[str, Callable[..., None]] = {
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
        self.filters[name] = self._bounded(function, costs.get(name, self._spend_on_filter), name in _LAZY)

    @contextmanager
    def within(self, budget: int) -> Iterator[None]:
        self._budget.left = budget
        self._budget.until = time.thread_time() + budget / RATE
        yield

    def spend(self, amount: int) -> None:
        self._budget.left -= amount
        if self._budget.left < 0 or time.thread_time() > self._budget.until:
            raise TooMuch("it takes too long or writes too much")

    # The added nodes call these methods. Templates cannot name them.

    def step(self, amount: int = 0) -> bool:
        """Pay for an iteration or a call that writes `amount` characters of the template."""
        self.spend(STEP + amount)
        return True

    def pay(self, value: Any) -> Any:
        """Pay for a value by its size, nested values included, and return it."""
        self.spend(self.size(value))
        return value

    def pay_part(self, value: Any) -> Any:
        """Pay for a slice of a text or a list, and return it."""
        self.spend(self.length(value))
        return value

    def concatenate(self, *values: Any) -> str:
        """Return the result of `~`."""
        self.spend(STEP + self.size(values))
        return str_join(values)

    # Hooks of Jinja2

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        self.spend(STEP * (len(source) // STEP))
        template: nodes.Template = _Bounding(self).visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if owner is __self:
            return __obj(*args)
        __self.spend(STEP + ITEM * (len(args) + len(kwargs)))
        args = tuple(map(_as_list, args))
        if isinstance(owner, type):
            raise TypeError(f"{__obj.__name__} is not allowed")
        if isinstance(owner, str | bytes):
            args = __self._method(owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, list | tuple | range | LoopContext) or __obj is dict or __obj is Namespace:
            __self._spend_on_size(owner, *args, **kwargs)
        elif isinstance(owner, int | float):
            __self.spend_on(*args, *kwargs.values())
        return __self.pay(super().call(__context, __obj, *args, **kwargs))

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

    # Costs

    def size(self, value: Any) -> int:
        """Return the cost of a value's items and characters. A value that is contained twice counts twice."""
        total, stack, left = 0, [value], self._budget.left
        wide = 0  # ints that may have equal hashes: a set may compare each pair
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
        """Pay for the arguments of a native function. An int may be a size, so it costs its value."""
        self.spend(sum(abs(v) if isinstance(v, int) else self.size(v) for v in (*values, *more.values())))

    def _bounded(
        self, function: Callable[..., Any], cost: Callable[..., None], lazy: bool = False
    ) -> Callable[..., Any]:
        """Return a filter or a test that pays for its arguments and result. A lazy one may take a generator."""
        first = getattr(function, "jinja_pass_arg", None) is not None  # the first argument is Jinja2's own

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.spend(STEP)
            if not lazy:
                args = tuple(map(_as_list, args))
            cost(*args[first:], **kwargs)
            result = function(*args, **kwargs)
            if isinstance(result, Iterator) and not isinstance(result, LoopContext):
                return self._each(result, STEP + _characters(args[first + 1 :], kwargs))
            return self.pay(result)

        return bounded

    def _each(self, items: Iterable[Any], price: int) -> Iterator[Any]:
        """Yield the items, and pay the price for each."""
        for item in items:
            self.spend(price)
            yield item

    def _spend_on_size(self, *values: Any, **more: Any) -> None:
        self.spend(self.size((values, more)))

    def _walk(self, value: Any, *_: Any, **__: Any) -> None:
        self.spend(self.length(value))

    def _spend_on_filter(self, value: Any, *args: Any, **more: Any) -> None:
        self.spend(self.size(value) + self.length(value) * _characters(args, more))  # each with each, at worst
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
            raise TypeError("sum adds numbers only")

    def _spend_on_round(self, value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
        self.spend(self.size(value))
        if isinstance(precision, int) and abs(precision) > DIGITS:
            raise ValueError(f"invalid precision {precision}: round has at most {DIGITS} digits")

    def _spend_on_percent(self, text: Any, values: Any) -> None:
        form = text if isinstance(text, str) else bytes(text).decode("latin-1") if isinstance(text, bytes) else ""
        if _PERCENT.search(form):
            raise ValueError("a format with such a width is not allowed")
        self.spend(self.size(text) + form.count("%") * (WIDEST + self.size(values)))

    def _method(self, owner: Any, name: str, args: tuple[Any, ...], more: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pay for a method of a text, and return its arguments."""
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


def _as_list(value: Any) -> Any:
    """Return a generator's items as a list, anything else as it is."""
    return list(value) if isinstance(value, GeneratorType) else value


def _characters(values: Iterable[Any], more: Mapping[str, Any]) -> int:
    """Return the number of characters in the texts among these arguments."""
    return sum(len(v) for v in (*values, *more.values()) if isinstance(v, str | bytes))


def _nothing(*_: Any, **__: Any) -> None:
    """Spend nothing: the operation costs no more than a step."""


class _Bounding(NodeTransformer):
    """A visitor that adds calls of `step`, `pay`, `pay_part` and `concatenate` to a template."""

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def _call(self, at: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
        return nodes.Call(function, list(args), [], None, None, lineno=at.lineno)

    def _step(self, node: Any) -> Any:
        """Let a body pay for its own text each time it begins."""
        self.generic_visit(node)
        cost = sum(len(n.data) if isinstance(n, nodes.TemplateData) else NODE for n in node.find_all(nodes.Node))
        call = self._call(node, "step", nodes.Const(cost, lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _step

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.test is not None:
            node.test = nodes.And(self._call(node, "step"), node.test, lineno=node.lineno)
        loop: nodes.Node = self._step(node)
        return loop

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call(node, "concatenate", *node.nodes)

    def _new(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else self._call(node, "pay", node)

    visit_List = visit_Tuple = visit_Dict = _new

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._call(node, "pay_part", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._paid(node.expr)
        for operand in node.ops:
            operand.expr = self._paid(operand.expr)
        return node

    def _paid(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else self._call(node, "pay", node)
