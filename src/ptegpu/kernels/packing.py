"""Packed weights: their storage, and WGSL that reads their elements.

Weights are integers of 4 or 8 bits, stored [N, bytes of K], with a scale for each group of a row's elements. An element
becomes f32 in two instructions: its bits are shifted to the top of the mantissa of a number between 1 and 2, which is
then the *fraction* 1 + u / 2ᵇ for the unsigned u = w + 2ᵇ⁻¹.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from .matmul import Loader
from .wgsl import Storage

WHOLE = 0  # value of `Packing.run` for one scale per row
PARAMS = (("row_bytes", "u32"), ("group", "u32"), ("scale_stride", "u32"), ("scale_first", "u32"))
RAW = {1: "u32", 2: "vec2<u32>", 4: "vec4<u32>"}


@dataclass(frozen=True, slots=True)
class Packing:
    """The storage of a weight. 4-bit elements are offset by 8, 8-bit elements are two's complement."""

    bits: int
    high_first: bool  # the high half of a byte is its even element
    aligned: bool  # rows are whole words
    run: int  # elements, a power of two, that share a scale if they begin at a multiple of it; or WHOLE
    dtype: DType
    scales: DType

    @property
    def elements(self) -> int:
        return 32 // self.bits

    @property
    def unit(self) -> float:
        """The factor of sums of fractions."""
        return float(1 << self.bits)

    def shares(self, elements: int) -> bool:
        """Return True if this many elements have one scale wherever they begin at a multiple of their number."""
        return self.run == WHOLE or self.run >= elements


def four_of(word: str, first: int, packing: Packing) -> str:
    """Return four elements of a word, from element `first` on, as fractions."""

    def fraction(place: int) -> str:
        left = 23 - packing.bits - place
        shifted = f"({word} << {left}u)" if left > 0 else f"({word} >> {-left}u)"
        return f"bitcast<f32>(({shifted} & {((1 << packing.bits) - 1) << (23 - packing.bits):#x}u) | 0x3f800000u)"

    places = [(j ^ packing.high_first) * packing.bits for j in range(first, first + 4)]
    return f"vec4<f32>({', '.join(map(fraction, places))})"


def unsigned(word: str, packing: Packing) -> str:
    return f"({word} ^ 0x80808080u)" if packing.bits == 8 else word


def scale_at(k: str, column: str, weight: str = "") -> str:
    return f"scales{weight}_at(P.scale_first + {k} / P.group * P.scale_stride{weight} + {column})"


def word_loader(aligned: bool, weight: str = "") -> str:
    """Return `b_word(row, i)`: word i of a row, undefined beyond its end. `weight` is the suffix of another `b`."""
    b = f"b{weight}"
    if aligned:
        load = f"return {b}[row * (P.row_bytes >> 2u) + i];"
    else:
        load = (
            f"let at = row * P.row_bytes + i * 4u; let shift = (at & 3u) * 8u; let last = arrayLength(&{b}) - 1u;\n"
            f"  let low = {b}[min(at >> 2u, last)]; let high = {b}[min((at >> 2u) + 1u, last)];\n"
            "  return (low >> shift) | ((high << 1u) << (31u - shift));"
        )
    return f"fn b_word{weight}(row: u32, i: u32) -> u32 {{\n  {load}\n}}"


def loader(packing: Packing, width: str = "P.k") -> Loader:
    """Return the loader of the weight for `gemm.gemm`, which dequantises; `width` is that of the weight's rows."""
    per_word, unit = packing.elements, packing.unit
    if packing.run == WHOLE or packing.run >= 4:
        scale = f"vec4<f32>({unit} * {scale_at(f'min(k, {width} - 1u)', 'row')})"
    else:
        scales = (scale_at(f"min(k + {j}u, {width} - 1u)", "row") for j in range(4))
        scale = f"{unit} * vec4<f32>({', '.join(scales)})"
    word = unsigned(f"b_word(row, min(k, {width} - 1u) / {per_word}u)", packing)
    half = f"({word}) >> ((k & 4u) * 4u)" if per_word == 8 else word
    quad = (
        f"{word_loader(packing.aligned)}\n"
        "fn b_quad(row: u32, k: u32) -> vec4<f32> {\n"
        f"  let word = {half};\n"
        f"  return ({four_of('word', 0, packing)} - vec4<f32>(1.5)) * {scale};\n"
        "}"
    )
    return Loader((("b", Storage(packing.dtype, raw="u32")), ("scales", Storage(packing.scales))), PARAMS, quad)


def eight_of(packing: Packing) -> str:
    """Return WGSL that declares eight elements of a row from 8 i on as `low` and `high`, and their common `scale`."""
    last, count = "(P.row_bytes >> 2u) - 1u", 8 // packing.elements
    words = [f"b[row * (P.row_bytes >> 2u) + min(i * {count}u + {j}u, {last})]" for j in range(count)]
    lines = [f"let w{j} = {unsigned(w, packing)};" for j, w in enumerate(words)]
    quads = [four_of("w0", 0, packing), four_of("w0", 4, packing) if packing.bits == 4 else four_of("w1", 0, packing)]
    lines += [f"let {n} = {q} - vec4<f32>(1.5);" for n, q in zip(("low", "high"), quads, strict=True)]
    at = "0u" if packing.run == WHOLE else "min(8u * i, P.k - 1u)"
    lines.append(f"let scale = {packing.unit} * {scale_at(at, 'row')};")
    return "\n  ".join(lines)


def bound_of(packing: Packing) -> str:
    """Return WGSL for an upper bound of the magnitude of elements in group i of a row."""
    return f"{float(1 << (packing.bits - 1))} * abs(scales_at(P.scale_first + i * P.scale_stride + row))"
