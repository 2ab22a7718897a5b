"""Options that several commands have: which program, which method, on what inputs, on which device and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[Path, typer.Argument(help="The program, a .pte file or a bundle.", show_default=False)]
MethodName = Annotated[str | None, typer.Option(help="The method to run.", show_default="forward, or the only one")]
Data = Annotated[list[Path] | None, typer.Option(help="A .ptd file with constants; repeat for more.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        help="In input order: FILE.npy, FILE.npz (all inputs, arr_0 … or input0 …), random, random:SEED, "
        "random:LOW..HIGH, ones, zeros, or a number. A single value other than a .npy is used for all inputs.",
        show_default="random:0, a single int 0",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(help="Shape of a dynamic input, such as 0=1x17; repeat for more.", show_default="the maximum"),
]
DeviceName = Annotated[str, typer.Option(help="auto, an index, or part of a name; see `ptegpu doctor`.")]
Engine = Annotated[
    Literal["auto", "wgpu", "dawn"], typer.Option(help="What drives it; auto takes dawn where it offers matrices.")
]
Precision = Annotated[
    Literal["auto", "exact", "fast"],
    typer.Option(help="Whether products may round to f16; auto: where weights are quantized or f16."),
]
CacheType = Annotated[
    Literal["f32", "f16"],
    typer.Option(help="What key-value caches are stored in; f16 takes half the memory and is faster when long."),
]
LimitNames = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help="What the program may take at most, such as memory=2G or seconds=10; repeat for more: docs/limits.md.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A name that clients may ask for, such as that of a proxy before this server; repeat for more. * is any.",
        show_default="localhost and the address that it listens on",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
