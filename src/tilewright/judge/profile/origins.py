"""By a kernel's name, whose code it is; and the share of a call's time that each has.

Names are those that torch's profiler gives: demangled kernels on a GPU, operators on the CPU. A name that no library is
known by counts as the candidate's own. That is a description, never a verdict: names can be forged, and a library of
tomorrow has names that are not listed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...facts.problem import Target
from ..wire.messages import SpentClocks

OWN = "own"
_LEAST_NS = 1e5  # of a call on the CPU: under it, Python's own time says more than the operators'

# On a GPU: the first that matches the start of the name, after "void " and "static". What decides is the kernel's own
# name: types of torch among its parameters (`my_kernel(at::PackedTensorAccessor...)`) make it no kernel of torch's.
_GPU = tuple(
    (origin, re.compile(pattern, re.IGNORECASE))
    for origin, pattern in (
        ("copy", r"mem(cpy|set)\b"),
        ("inductor", r"triton_(poi|red|per|tem|for|spl|unk|mm|bmm|convolution|flex)_"),
        ("NCCL", r"nccl"),
        (
            "cuDNN",
            r"cudnn|[a-z0-9_]*(scudnn|_cudnn)|[a-z0-9_]*xmma_(fprop|dgrad|wgrad|conv)|cutlass[a-z0-9_:]*_?5x_cudnn|"
            r"cutlass_[a-z0-9_]*(fprop|dgrad|wgrad)|(im|ex)plicit_convolve|[a-z_]*winograd|conv2d_grouped_direct|"
            r"(nchwToNhwc|nhwcToNchw|nhwcToFoldedNhwc|foldedNhwcTo)|[cd]grad2d|wgrad2d|fft2d_|flip_filter|"
            r"convolve_|op_generic_tensor|bn_(fw|bw)_|im2col4d|scalePackedTensor",
        ),
        (
            "cuBLAS",
            r"cublas|nvjet_|(ampere|volta|turing|maxwell|hopper|blackwell|pascal)_[a-z0-9_]*gemm|sm\d+_xmma_gemm|"
            r"cutlass::kernel2?<cutlass_\d|cutlass_\d+_[a-z0-9_]*gemm|gemv(2T|2N|NSP|N|T)?_kernel|gemv2[TN]|"
            r"internal::gemvx|gemm(SN|k1)_|splitKreduce|dot_kernel|reduce_1Block|[sdchz]gemm_\d+x\d+|gemm_kernel1x1|"
            r"trsm_|batch_gemm_kernel",
        ),
        ("cuFFT and others", r"(vector|regular|multi|real)_(fft|bluestein)|cusparse|cusolver|curand|cufft"),
        ("CUB", r"cub::|thrust::"),
        (
            "torch",
            r"at::|at_cuda_detail::|c10::|pytorch_flash::|PyTorchMemEffAttention|fmha_cutlass|"
            r"\(anonymous namespace\)::(softmax_warp_(forward|backward)|elementwise_kernel_with_index|"
            r"[A-Za-z_0-9]+<[^(]*at::native)",
        ),
    )
)
_CPU = (
    ("torch", re.compile(r"aten::|mkldnn|torch::")),
    ("inductor", re.compile(r"Torch-Compiled|TorchDynamo|## Call CompiledFxGraph|AOTDispatcher|Pregraph|Inductor")),
)


def origin(name: str, target: Target) -> str:
    """Whose kernel or operator this is: OWN, or the name of a library."""
    head = re.sub(r"^(void|static|float|int)\s+", "", name.strip())
    rules = _GPU if target == "cuda" else _CPU
    return next((who for who, pattern in rules if pattern.match(head)), OWN)


def shares(spent: Sequence[SpentClocks], target: Target) -> tuple[tuple[str, float], ...]:
    """The share of the time by origin, the largest first; empty where nothing was seen, or too little to tell."""
    total = sum(s.ns for s in spent)
    if total <= 0 or (target == "cpu" and total < _LEAST_NS):
        return ()
    found: dict[str, float] = {}
    for entry in spent:
        who = origin(entry.name, target)
        found[who] = found.get(who, 0.0) + entry.ns / total
    return tuple(sorted(found.items(), key=lambda pair: -pair[1]))
