"""The text of a generated kernel, taken apart and rewritten as a part of a merged kernel.

Kernels have the form that `kernels/wgsl.build` gives them; `Unmergeable` is raised for any other. In a merged kernel,
names of module scope have a prefix, an element of a binding is an element of a slab at an offset, and a parameter is a
word of the parameter buffer. Names that begin with `m_` belong to the merged kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ..plan.plan import INDEPENDENT, Kernel

_TOKEN = re.compile(
    r"//[^\n]*|\s+|[A-Za-z_]\w*|0[xX][0-9a-fA-F]+[iu]?|\d(?:[\w.]|(?<=[eE])[+-])*"
    r"|->|<<=|>>=|<<|>>|&&|\|\||==|!=|<=|>=|\+\+|--|[-+*/%&|^]=|."
)
_STORAGE = re.compile(r"@group\(0\) @binding\((\d+)\) var<storage, (?:read|read_write)> (\w+): array<([\w<>]+)>;")
_SHARED = re.compile(r"var<workgroup> (\w+): array<([\w<>]+), (\d+)>;")
_PARAMS = re.compile(r"struct Params \{(.*)\}", re.DOTALL)
_FIELD = re.compile(r"(\w+): (u32|i32|f32),")
_UNIFORM = re.compile(r"@group\(0\) @binding\(\d+\) var<uniform> (?:P: Params|syms: array<vec4<i32>, (\d+)>);")
_DECLARATION = re.compile(r"(fn|struct|const|alias|var<private>) (\w+)")
_MAIN = re.compile(
    r"@compute @workgroup_size\(\d+\)\s+fn main\((.*)\) \{\s+let group = wid\.x \+ wid\.y \* nwg\.x;\s+"
    r"if \(group >= P\.groups\) \{ return; \}\n(.*)\}",
    re.DOTALL,
)
_SUBGROUPS = re.compile(r"@builtin\(subgroup_\w+\) (\w+): u32")
_OPENING, _CLOSING = "([{", ")]}"
_ASSIGNING = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
_MAIN_NAMES = ("group", "lid", "sg_lane", "sg_size")  # the parameters of a body


class Unmergeable(Exception):
    """A kernel whose text cannot become a part of a merged kernel."""


class Access(Protocol):
    """The expressions of a merged kernel for the storage and the parameters of one kernel."""

    def place(self, name: str, index: str) -> str:
        """Return the element of a binding as a place to load from and store into; empty if it has another type."""

    def load(self, name: str, index: str) -> str:
        """Return the value of an element."""

    def store(self, name: str, index: str, path: str, value: str) -> str:
        """Return a statement that stores into an element, or into the part of it that `path` names."""

    def param(self, name: str) -> str:
        """Return the value of a parameter."""

    def wait(self) -> str:
        """Return the statement for a line INDEPENDENT."""


@dataclass(frozen=True, slots=True)
class StorageVariable:
    """A storage binding of a kernel, and what the kernel does with it."""

    name: str
    element: str  # WGSL type
    loads: bool
    stores: bool


@dataclass(frozen=True, eq=False)
class KernelParts:
    """The declarations of a kernel."""

    storage: tuple[StorageVariable, ...]  # by binding
    params: Mapping[str, tuple[int, str]]  # the word and the type of each
    syms: int  # vec4s of the uniform of symbolic ints; 0: it has none
    shared: tuple[tuple[str, str, int], ...]  # workgroup arrays: name, type of an element, count
    declarations: tuple[tuple[str, ...], ...]  # tokens of all others, except for `main`
    names: Mapping[str, str]  # of module scope → "fn", "struct", …
    body: tuple[str, ...]  # tokens of `main` after its test of `group`
    builtins: tuple[str, ...]  # of subgroups
    independent: bool  # the body has a line INDEPENDENT


@lru_cache(maxsize=512)
def parts_of(kernel: Kernel) -> KernelParts:
    """Take a kernel apart; raise Unmergeable if it has a form of its own."""
    if "matrices" in kernel.needs or "atomic" in kernel.wgsl:
        raise Unmergeable(kernel.name)
    storage: dict[int, tuple[str, str]] = {}
    params: dict[str, tuple[int, str]] = {}
    shared: list[tuple[str, str, int]] = []
    declared: dict[str, tuple[str, tuple[str, ...]]] = {}
    syms, main = 0, None
    for tokens in _declarations(tuple(t for t in _TOKEN.findall(kernel.wgsl) if t == INDEPENDENT or t[:2] != "//")):
        text = "".join(tokens).strip()
        if match := _STORAGE.fullmatch(text):
            storage[int(match[1])] = match[2], match[3]
        elif match := _SHARED.fullmatch(text):
            shared.append((match[1], match[2], int(match[3])))
        elif match := _PARAMS.fullmatch(text):
            params = {name: (k, kind) for k, (name, kind) in enumerate(_FIELD.findall(match[1]))}
        elif match := _UNIFORM.fullmatch(text):
            syms = syms or int(match[1] or 0)
        elif text.startswith("@compute"):
            main = _MAIN.fullmatch(text)
        elif match := _DECLARATION.match(text):
            declared[match[2]] = match[1], tokens
        else:
            raise Unmergeable(f"{kernel.name}: {text[:60]}")
    if main is None or sorted(storage) != list(range(len(storage))):
        raise Unmergeable(kernel.name)
    body = tuple(_TOKEN.findall(main[2]))
    if "wid" in body or "nwg" in body or any(t.startswith("m_") for t in _TOKEN.findall(kernel.wgsl)):
        raise Unmergeable(kernel.name)
    used = _used(declared, body)
    names = {name: kind for name, (kind, _) in declared.items() if name in used}
    declarations = [tokens for name, (_, tokens) in declared.items() if name in used]
    uses, variables = _Uses(), {name for name, _ in storage.values()}
    rewriter = Rewriter(names, variables | {name for name, _, _ in shared}, {}, body, uses, "")
    for tokens in (*declarations, body):
        rewriter.rewrite(tokens)
    return KernelParts(
        tuple(
            StorageVariable(n, e, n in uses.loaded, n in uses.stored) for n, e in (storage[k] for k in sorted(storage))
        ),
        params,
        syms,
        tuple(shared),
        tuple(declarations),
        names,
        body,
        tuple(_SUBGROUPS.findall(main[1])),
        INDEPENDENT in body,
    )


def _declarations(tokens: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Split a module."""
    start = depth = 0
    for k, token in enumerate(tokens):
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0 and token in (";", "}"):
            yield tokens[start : k + 1]
            start = k + 1


def _used(declared: Mapping[str, tuple[str, tuple[str, ...]]], body: tuple[str, ...]) -> set[str]:
    """Return the names of module scope that `main` needs."""
    used, queue = set[str](), [body]
    while queue:
        new = (declared.keys() & set(queue.pop())) - used
        used |= new
        queue += [declared[name][1] for name in new]
    return used


class _Uses:
    """An Access that notes which bindings a kernel loads from and stores into."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.stored: set[str] = set()

    def place(self, name: str, index: str) -> str:
        return ""

    def load(self, name: str, index: str) -> str:
        self.loaded.add(name)
        return name

    def store(self, name: str, index: str, path: str, value: str) -> str:
        self.stored.add(name)
        return name

    def param(self, name: str) -> str:
        return name

    def wait(self) -> str:
        return ""


class Rewriter:
    """Rewrites declarations and the body of one kernel."""

    def __init__(
        self,
        names: Mapping[str, str],
        storage: set[str],
        renamed: Mapping[str, str],
        body: tuple[str, ...],
        access: Access,
        prefix: str,
    ) -> None:
        self._body = body
        self._names, self._storage, self._renamed, self._access, self._prefix = names, storage, renamed, access, prefix

    def rewrite(self, tokens: tuple[str, ...]) -> str:
        """Return the text of a declaration, or of the body of `main`."""
        self._tokens = tokens

        self._closes: list[int] = []  # for each open brace: how many scopes end with it
        self._loops = 0  # for loops whose header is being rewritten
        self._declared: list[str] = []  # names that are in scope from the next semicolon on
        self._previous = ""  # token other than space
        first = next((t for t in tokens if t.strip()), "")
        self._header = first == "fn"
        self._fields = first == "struct"
        self._scopes = [set(_MAIN_NAMES) if tokens is self._body else set()]
        return self._emit(0, len(tokens))

    def _emit(self, i: int, end: int) -> str:
        out: list[str] = []
        while i < end:
            token = self._tokens[i]
            if token[0].isalpha() or token[0] == "_":
                text, i = self._name(i)
                out.append(text)
                continue
            i += 1
            if token.startswith("//"):
                out.append(self._access.wait() if token == INDEPENDENT else "")
                continue
            out.append(token)
            if not token.strip():
                continue
            self._previous = token
            if token == "{":
                self._header = False
                self._scopes.append(set())
                self._closes.append(1 + self._loops)
                self._loops = 0
            elif token == "}":
                del self._scopes[-self._closes.pop() :]
            elif token == ";":
                self._scopes[-1].update(self._declared)
                self._declared = []
        return "".join(out)

    def _name(self, i: int) -> tuple[str, int]:
        """Return the text for the name at `i`, with everything that belongs to it, and the place after that."""
        token, after, previous = self._tokens[i], self._next(i + 1), self._previous
        following = self._tokens[after] if after < len(self._tokens) else ""
        self._previous = token
        if token in ("let", "var", "const"):
            if following == "<":  # var<function>
                after = self._next(self._next(self._next(after + 1) + 1))
            if self._closes or self._tokens is self._body:
                self._declared.append(self._tokens[after])
                self._previous = self._tokens[after]
                return "".join(self._tokens[i : after + 1]), after + 1
            return token, i + 1
        if token == "for":
            self._scopes.append(set())
            self._loops += 1
            return token, i + 1
        if following == ":" and (self._header or self._fields):
            if self._header:
                self._scopes[-1].add(token)
            return token, i + 1
        if previous == "." or any(token in scope for scope in self._scopes):
            return token, i + 1
        if token == "P":
            if following != ".":
                raise Unmergeable("parameters are passed on")
            name = self._next(after + 1)
            self._previous = self._tokens[name]
            return self._access.param(self._tokens[name]), name + 1
        if token in self._storage:
            return self._element(i, after)
        if token in self._renamed:
            return self._renamed[token], i + 1
        if token not in self._names:
            return token, i + 1
        text = self._prefix + token
        if self._names[token] != "fn":
            return text, i + 1
        if following != "(":
            raise Unmergeable(f"{token} is not called")
        self._previous = "("
        inside = self._next(after + 1)
        record = f"m_stage: {self._prefix}Stage" if previous == "fn" else "m_stage"
        return f"{text}({record}{'' if self._tokens[inside] == ')' else ', '}", after + 1

    def _element(self, i: int, opening: int) -> tuple[str, int]:
        """Rewrite an element of an array, and the assignment to it."""
        name = self._tokens[i]
        before = [t for t in self._tokens[max(0, i - 4) : i] if t.strip()]
        if before[-1:] == ["&"] and before[-2:-1] and before[-2] in ("(", ",", "=", "return"):
            raise Unmergeable(f"the address of {name} is taken")
        if opening >= len(self._tokens) or self._tokens[opening] != "[":
            raise Unmergeable(f"{name} is not indexed")
        closing = self._matching(opening)
        self._previous = "["
        index = self._emit(opening + 1, closing)
        path_end = closing + 1
        while (k := self._next(path_end)) < len(self._tokens) and self._tokens[k] in (".", "["):
            path_end = self._next(k + 1) + 1 if self._tokens[k] == "." else self._matching(k) + 1
        operator = self._tokens[k] if k < len(self._tokens) else ""
        self._previous = "]"
        if place := self._access.place(name, index):
            return place, closing + 1
        if operator in ("++", "--"):
            raise Unmergeable(f"{name} is counted")
        if operator not in _ASSIGNING:
            return self._access.load(name, index), closing + 1
        path = self._emit(closing + 1, path_end)
        end = self._end(k + 1)
        self._previous = operator
        value = self._emit(k + 1, end).strip()
        if operator != "=":
            value = f"{self._access.load(name, index)}{path} {operator[:-1]} ({value})"
        return self._access.store(name, index, path, value), end

    def _next(self, i: int) -> int:
        while i < len(self._tokens) and (not self._tokens[i].strip() or self._tokens[i].startswith("//")):
            i += 1
        return i

    def _matching(self, i: int) -> int:
        depth = 0
        for k in range(i, len(self._tokens)):
            depth += (self._tokens[k] in _OPENING) - (self._tokens[k] in _CLOSING)
            if depth == 0:
                return k
        raise Unmergeable("a bracket is not closed")

    def _end(self, i: int) -> int:
        """Return the place of the semicolon or bracket that ends the expression at `i`."""
        depth = 0
        for k in range(i, len(self._tokens)):
            token = self._tokens[k]
            if depth == 0 and (token == ";" or token in _CLOSING):
                return k
            depth += (token in _OPENING) - (token in _CLOSING)
        raise Unmergeable("an assignment does not end")
