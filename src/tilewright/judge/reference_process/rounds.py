"""How operations round, by the names that torch gives them when it dispatches."""

from __future__ import annotations

# Operations that round nothing, though floats leave them. Views need not be named.
EXACT = frozenset((
    "_conj", "_conj_physical", "_index_put_impl", "_local_scalar_dense", "_neg_view", "_reshape_alias",
    "_reshape_copy", "_unique2", "_unsafe_index", "_unsafe_view", "abs", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "alias_copy", "amax", "amin", "aminmax", "arange", "as_strided_copy", "bernoulli", "cat", "ceil", "clamp",
    "clamp_max", "clamp_min", "clone", "col2im", "constant_pad_nd", "copy", "copysign", "cummax", "cummin", "detach",
    "diag_embed", "diagonal_copy", "embedding", "empty", "empty_like", "empty_strided", "expand_copy", "exponential",
    "eye", "fill", "flip", "floor", "fmax", "fmin", "fractional_max_pool2d", "full", "full_like", "gather",
    "geometric", "hardshrink", "hardtanh", "hardtanh_backward", "im2col", "imag", "index", "index_copy", "index_fill",
    "index_select", "isfinite", "kthvalue", "lift_fresh", "lift_fresh_copy", "linspace", "log_normal", "masked_fill",
    "masked_scatter", "masked_select", "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_unpool2d",
    "max_unpool3d", "maximum", "median", "min", "minimum", "mode", "multinomial", "nan_to_num", "nanmedian",
    "native_dropout_mask", "neg", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero",
    "normal", "normal_functional", "ones", "ones_like", "permute_copy", "pixel_shuffle", "pixel_unshuffle",
    "positive", "put", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "randperm",
    "real", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "relu", "relu6", "repeat",
    "repeat_interleave", "replication_pad1d", "replication_pad2d", "replication_pad3d", "resize", "roll", "rot90",
    "round", "scalar_tensor", "scatter", "select_copy", "select_scatter", "sign", "slice_copy", "slice_scatter",
    "sort", "split_copy", "squeeze_copy", "stack", "t_copy", "take", "threshold", "threshold_backward", "topk",
    "transpose_copy", "tril", "triu", "trunc", "unbind_copy", "unfold_copy", "uniform", "unique_dim",
    "unsqueeze_copy", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "view_as_real", "view_copy",
    "where", "zero", "zeros", "zeros_like",
))  # fmt: skip
# Pointwise operations whose result is rounded once or twice, and whose operands are used as they are.
PLAIN = frozenset((
    "_prelu_kernel", "add", "addcdiv", "addcmul", "celu", "div", "dropout", "floor_divide", "fmod", "frac",
    "hardsigmoid", "hardswish", "hypot", "leaky_relu", "lerp", "mul", "native_dropout", "prelu", "reciprocal",
    "remainder", "rsqrt", "rsub", "softshrink", "sqrt", "square", "sub",
))  # fmt: skip
# Pointwise operations that are often made of values near one, and are then rounded as these.
OF_ONE = frozenset((
    "acos", "asin", "asinh", "atan", "atanh", "cos", "digamma", "elu", "erf", "erfc", "expm1", "lgamma", "log1p",
    "log_sigmoid_forward", "logit", "sigmoid", "sin", "softplus", "tan", "tanh",
))  # fmt: skip
# Pointwise operations that are often made of a value near their operand, and are then rounded as that.
OF_OPERAND = frozenset((
    "gelu", "mish", "silu",
))  # fmt: skip
# Sums whose terms are operands or products of these: of whole numbers they are exact, whatever the order.
SUMS = frozenset((
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_embedding_bag", "addbmm", "addmm", "addmv", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "baddbmm", "bmm", "convolution", "cumsum", "dot", "embedding_bag", "index_add",
    "index_put", "index_reduce", "mean", "mm", "mv", "nansum", "scatter_add", "scatter_reduce", "sum", "trace",
    "vdot",
))  # fmt: skip
# Operations that give indices: which of their results holds them; -1: they give nothing else.
INDICES = {
    "argmax": -1, "argmin": -1, "max": 1, "min": 1, "topk": 1, "kthvalue": 1, "median": 1, "nanmedian": 1,
    "mode": 1, "sort": 1,
}  # fmt: skip
