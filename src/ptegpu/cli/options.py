"""Options that several commands share, each declared once, and `command`, which turns a function into a command.

A group of options is a dataclass. A command takes it as one parameter: its fields become options, with their own
defaults or those of the parameter's default, in a panel of --help. An option that the command declares itself replaces
the group's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import typer

from ..errors import InvalidInput
from ..limits import Limits
from ..progress import Progress, silent
from ..runtime import LoadOptions
from .report import CommandReport

ModelPath = Annotated[Path, typer.Argument(help="The program: a .pte file or a bundle.", show_default=False)]
DataFiles = Annotated[list[Path] | None, typer.Option(help="A .ptd file with constants; repeat for more.")]
EngineName = Annotated[
    Literal["auto", "wgpu", "dawn"], typer.Option(help="GPU backend; auto prefers dawn when it has tensor cores.")
]
PrecisionName = Annotated[
    Literal["auto", "exact", "fast"],
    typer.Option(
        help="fast rounds operands of products to f16, exact does not; auto: fast if weights are quantized or f16."
    ),
]
CacheType = Annotated[
    Literal["f32", "f16", "q8"],
    typer.Option(
        help="Type of key-value caches; f16 takes half the memory of f32, q8 9/32, and both are faster when long."
    ),
]
PersistentMode = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(help="Make dispatches of a run stages of a single one; auto: on GPUs that can (see `ptegpu doctor`)."),
]
DraftModel = Annotated[
    Path | None,
    typer.Option(help="A smaller model with the same tokens that proposes them.", show_default="the text itself"),
]
TokenizerPath = Annotated[
    Path | None, typer.Option(help="tokenizer.json, or a folder that contains it.", show_default="next to the model")
]
PlannedSizes = Annotated[
    list[str] | None,
    typer.Option(
        help="Sizes to plan for, such as 'input 0[1]=1..512' or 'input 0[0]=1,8'; repeat for more.",
        show_default="all that the program allows",
    ),
]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A host name to accept from clients, such as a proxy's; repeat for more. * accepts any.",
        show_default="localhost and the address that it listens on",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonAtEnd = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """The options for loading a program."""

    PANEL: ClassVar[str] = "How to load the model"

    device: Annotated[str, typer.Option(help="auto, an index, or part of a name; see `ptegpu doctor`.")] = "auto"
    engine: EngineName = "auto"
    precision: PrecisionName = "auto"
    cache: CacheType = "f32"
    persistent: PersistentMode = "auto"
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="An upper bound, such as memory=2G or seconds=10 (see docs/limits.md); repeat for more.",
        ),
    ] = None

    def options(self, progress: Progress = silent) -> LoadOptions:
        limits = Limits.parse(self.limit or [])
        return LoadOptions(self.device, self.engine, self.precision, self.cache, self.persistent, limits, progress)


class Quantize(StrEnum):
    none = "none"
    bits4 = "4bit"
    bits4_dynamic = "8da4w"
    bits8 = "8bit"


class Embedding(StrEnum):
    float = "float"
    bits4 = "4bit"


QuantizeName = Annotated[
    Quantize, typer.Option(help="Weights of linear layers in 4 or 8 bits; 8da4w: in 4 bits, activations in 8.")
]


@dataclass(frozen=True, slots=True)
class QuantizeFlags:
    """The options for storing the weights of a language model."""

    PANEL: ClassVar[str] = "How to store weights"

    quantize: QuantizeName = Quantize.none
    group: Annotated[int, typer.Option(help="Number of weights that share a scale: 32, 64 or 128.")] = 32
    embedding: Annotated[
        Embedding | None,
        typer.Option(help="Form of the token table.", show_default="4bit if the weights are in 4 bits"),
    ] = None

    def options(self) -> dict[str, Any]:
        """Return the fields of those names in `ptegpu.export.Options`."""
        embedding = self.embedding.value if self.embedding else None
        return {"quantize": self.quantize.value, "group": self.group, "embedding": embedding}


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The options for sampling tokens."""

    PANEL: ClassVar[str] = "How to choose tokens"

    max_tokens: Annotated[int, typer.Option(help="The most tokens to generate.", min=1)] = 256
    temperature: Annotated[
        float, typer.Option(help="0 always takes the likeliest token; higher is more varied.", min=0)
    ] = 0.0
    top_k: Annotated[int, typer.Option(help="Choose only among the K likeliest tokens; 0 means all.", min=0)] = 0
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest tokens that together have this probability.")
    ] = 1.0
    min_p: Annotated[
        float, typer.Option(help="Choose among tokens at least this likely, relative to the likeliest.")
    ] = 0.0
    repeat_penalty: Annotated[float, typer.Option(help="Above 1, tokens that already occurred become less likely.")] = (
        1.0
    )
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.", show_default="random")] = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `LanguageModel.stream`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """The options for speculative decoding."""

    PANEL: ClassVar[str] = "How to decode faster"

    speculate: Annotated[
        str | None,
        typer.Option(
            metavar="off|auto|NUMBER",
            help="Verify proposed tokens, several in one run: auto as long as that is faster, or always this NUMBER.",
            show_default="off, or auto with --draft",
        ),
    ] = None
    draft: DraftModel = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `LanguageModel.stream`; raise InvalidInput for values that contradict."""
        if self.speculate is None:
            return {}
        if self.speculate == "off" and self.draft is not None:
            raise InvalidInput("--draft has no effect with --speculate off: leave one of them out")
        return {"speculate": parsed_speculation(self.speculate)}


def parsed_speculation(text: str) -> Any:
    """Return the option `speculate` as in Python, where a number is an int; raise InvalidInput for other values."""
    from ..models.text.speculation import count_of

    value: Any = int(text) if text.isdecimal() else text
    count_of(value)
    return value


def command(function: Callable[..., CommandReport | None]) -> Callable[..., None]:
    """Return a command for typer that expands groups of options, runs `function` and prints the report it returns.

    The command has the option --json if the function returns a report or has a parameter `json`.
    """
    declared = signature(function, eval_str=True)
    own = dict(declared.parameters)
    groups: dict[str, Any] = {name: p.default for name, p in own.items() if is_dataclass(p.annotation)}
    expanded: dict[str, list[str]] = {}  # the fields of each group that become options
    parameters: list[Parameter] = []
    for name, parameter in own.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        if parameter.default is Parameter.empty:
            groups[name] = parameter.annotation()
        types = get_type_hints(parameter.annotation, include_extras=True)
        expanded[name] = [f.name for f in fields(parameter.annotation) if f.name not in own]
        for option in expanded[name]:
            default = getattr(groups[name], option)
            info = copy(types[option].__metadata__[0])
            info.rich_help_panel = groups[name].PANEL
            hint: Any = Annotated[types[option].__origin__, info]
            parameters.append(Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    if declared.return_annotation is CommandReport and "json" not in own:
        parameters.append(Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson))

    @functools.wraps(function)
    def run(**values: Any) -> None:
        as_json = values["json"] if "json" in own else values.pop("json", False)
        for name, options in expanded.items():
            values[name] = replace(groups[name], **{option: values.pop(option) for option in options})
        report = function(**values)
        if report is not None:
            report.print(as_json)
            if report.exit_code:
                raise typer.Exit(report.exit_code)

    run.__signature__ = declared.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
