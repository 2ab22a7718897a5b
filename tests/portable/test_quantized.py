from __future__ import annotations

import torch
from tests.portable.harness import Case, case, f, i, positive, t

Q = "quantized_decomposed"
INT8, UINT8, FLOAT = torch.int8, torch.uint8, torch.float32
X = f(3, 4) * 3
BYTES = i(3, 4, low=-128, high=128, dtype=INT8)
SCALES, ZEROS = positive(3), t([1, 0, -5])

CASES: list[Case] = [
    *(
        case(f"{Q}.quantize_per_tensor.default", X, 0.05, zero, low, high, dtype_)
        for zero, low, high, dtype_ in ((3, -128, 127, INT8), (100, 0, 255, UINT8), (0, -8, 7, INT8))
    ),
    case(f"{Q}.quantize_per_tensor.tensor", X, t(0.05), t(3), -128, 127, INT8),
    *(
        case(f"{Q}.quantize_per_channel.default", X, s, z, d, -128, 127, INT8)
        for s, z, d in ((SCALES, ZEROS, 0), (positive(4), i(4), -1))
    ),
    case(f"{Q}.quantize_per_token.default", X, SCALES[:, None], ZEROS[:, None], -128, 127, INT8),
    case(f"{Q}.dequantize_per_tensor.default", BYTES, 0.05, 3, -128, 127, INT8),
    case(f"{Q}.dequantize_per_tensor.tensor", BYTES, t(0.05), t(3), -128, 127, INT8),
    *(case(f"{Q}.dequantize_per_channel.default", BYTES, SCALES, z, 0, -128, 127, INT8) for z in (ZEROS, None)),
    case(f"{Q}.dequantize_per_token.default", BYTES, SCALES[:, None], ZEROS[:, None], -128, 127, INT8, FLOAT),
    *(case(f"{Q}.choose_qparams.tensor", x, -128, 127, 1e-6, INT8) for x in (X, X.abs() + 1, -X.abs(), X * 0)),
    *(case(f"{Q}.choose_qparams_per_token_asymmetric.default", x, INT8) for x in (X, X.abs() + 1, X * 0, f(2, 3, 8))),
    *(
        case(f"{Q}.embedding_byte.{n}", BYTES, s, z, -128, 127, t([[2, 0], [1, 1]]), *a)
        for n, a in (("default", []), ("dtype", [FLOAT]), ("dtype", [torch.float16]))
        for s, z in ((SCALES, None), (SCALES, ZEROS.float()), (positive(3, 2), f(3, 2).round()))
    ),
    *(
        case(f"{Q}.embedding_{n}bit.{o}", i(3, 4, low=0, high=256, dtype=UINT8), s, None, low, high, t([2, 0, 1]), *a)
        for n, low, high in ((4, -8, 7), (2, -2, 1))
        for o, a in (("default", []), ("dtype", [FLOAT]))
        for s in (SCALES, positive(3, 2))
    ),
]
