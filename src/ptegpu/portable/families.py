"""The modules of NumPy kernels and their operators: running one operator imports one module.

`tests/portable/test_portable.py` compares this table with the registrations.
"""

from __future__ import annotations

FAMILIES = {  # module → its operators, without namespace and overload
    "convolution": "convolution convolution_backward",
    "create": """_empty_dim_order arange empty fill full full_like native_dropout ones rand randn scalar_tensor
        tril_indices triu_indices zeros""",
    "elementwise": """__lshift__ __rshift__ _conj_physical abs acos acosh add asin asinh atan atan2 atanh bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp cos cosh div elu eq
        erf erfc exp expm1 floor floor_divide fmod ge gelu gt hardtanh hypot isinf isnan le leaky_relu lgamma
        log log10 log1p log2 logical_and logical_not logical_or logical_xor logit lt masked_fill max maximum min
        minimum mul ne neg pow reciprocal relu remainder round rsqrt rsub sigmoid sign silu sin sinh sqrt sub
        tan tanh trunc where""",
    "index": """embedding gather index index_put index_reduce index_select masked_scatter masked_select nonzero
        repeat_interleave scatter scatter_add scatter_reduce""",
    "linalg": "_cdist_forward _fft_c2r _fft_r2c _pdist_forward addmm bmm linear mm",
    "moves": """_clone_dim_order _d2h_copy _h2d_copy _to_copy _to_dim_order_copy alias_copy as_strided_copy cat clone
        constant_pad_nd copy detach_copy diagonal_copy expand_copy flip lift_fresh_copy narrow_copy permute_copy
        pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat
        replication_pad1d replication_pad2d replication_pad3d reshape roll select_copy select_scatter slice_copy
        slice_scatter split_copy split_with_sizes_copy squeeze_copy stack t_copy transpose_copy tril triu
        unbind_copy unfold_copy unsqueeze_copy view_as_real_copy view_copy""",
    "nn": """_log_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training _softmax glu
        native_group_norm native_layer_norm""",
    "pool": """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d
        max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices""",
    "quantized": """choose_qparams choose_qparams_per_token_asymmetric dequantize_per_channel dequantize_per_tensor
        dequantize_per_token embedding_2bit embedding_4bit embedding_byte quantize_per_channel
        quantize_per_tensor quantize_per_token""",
    "reduce": """all amax amin any argmax argmin cummax cummin cumsum linalg_vector_norm logcumsumexp max mean min prod
        std sum var var_mean""",
    "resample": "_upsample_bilinear2d_aa grid_sampler_2d upsample_bilinear2d upsample_nearest2d",
    "sort": "bucketize kthvalue median searchsorted sort topk",
}
