"""The C types that need no parser are those that cffi's parser gives."""

from __future__ import annotations

import pytest
from cffi.cparser import Parser

from ptegpu.gpu.wgpu_native import ffi


@pytest.mark.parametrize(
    "text",
    ["WGPULimits *", "WGPUAdapter[]", "WGPUBindGroupLayout[1]", "WGPUBufferMapCallback", "uint64_t[2]", "char[3]"],
)
def test_a_quick_type_is_the_parsed_one(text: str) -> None:
    assert ffi._parser.parse_type is not Parser.parse_type
    quick, parsed = ffi._parser.parse_type(text), Parser.parse_type(ffi._parser, text)
    assert quick == parsed
    with ffi._lock:
        assert ffi._get_cached_btype(quick) is ffi._get_cached_btype(parsed)
