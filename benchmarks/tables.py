"""The tables of `harness.py`: named tasks, each a problem file's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from subjects import Task

F32, BF16, F16 = "float32", "bfloat16", "float16"
SHORT = {F32: "f32", BF16: "bf16", F16: "f16"}
Shape = tuple[int, ...] | str  # or the expression that makes it
FILE = """import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(){init}

    def forward(self, {names}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def problem(
    body: str, inputs: Mapping[str, Shape], weights: Mapping[str, Shape] | None = None, *, dtype: str = F32,
    buffers: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """A problem file of `body`, an expression or statements, in which weights stand as `self.NAME`."""
    made = {name: drawn(shape, dtype, scaled=True) for name, shape in (weights or {}).items()}
    init = [f"self.{name} = torch.nn.Parameter({text})" for name, text in made.items()]
    init += [f"self.register_buffer({name!r}, {text})" for name, text in (buffers or {}).items()]
    lines = body.strip().split("\n") if "return" in body else [f"return {body}"]
    return FILE.format(
        init="".join(f"\n        {line}" for line in init), names=", ".join(inputs), body="\n        ".join(lines),
        inputs=", ".join(drawn(shape, dtype) for shape in inputs.values()),
    )  # fmt: skip


def drawn(shape: Shape, dtype: str, *, scaled: bool = False) -> str:
    if isinstance(shape, str):
        return shape
    kind = f", dtype=torch.{dtype}" if dtype != F32 else ""
    scale = f" * {shape[-1]}**-0.5" if scaled and len(shape) > 1 else ""
    return f"torch.randn({', '.join(map(str, shape))}{kind}){scale}"


def named(*parts: object) -> str:
    return " ".join("x".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in parts if p != "")


# ---- products: KernelBench's shapes, how tiles fit the chip, zeros in factors, what algebra spares

PRODUCTS = {  # batch (0: none), M, N, K, layout of A and B ("t": stored transposed), dtype
    "1_square": (0, 4096, 4096, 4096, "nn", F32), "2_standard": (0, 2048, 4096, 8192, "nn", F32),
    "3_batched": (128, 512, 2048, 1024, "nn", F32), "6_large_k": (0, 256, 256, 524288, "nn", F32),
    "7_small_k": (0, 32768, 32768, 64, "nn", F32), "8_irregular": (0, 8205, 5921, 2949, "nn", F32),
    "9_tall_skinny": (0, 32768, 32768, 32, "nn", F32), "10_3d": (0, 16384, 768, 2048, "nn", F32),
    "11_4d": (0, 1048576, 768, 256, "nn", F32), "16_transposed_a": (0, 2048, 4096, 8192, "tn", F32),
    "17_transposed_b": (0, 2048, 4096, 8192, "nt", F32), "18_transposed_both": (0, 2048, 4096, 8192, "tt", F32),
    "layer_128": (0, 128, 32768, 32768, "nt", F32), "bf16_4096": (0, 4096, 4096, 4096, "nt", BF16),
    "bf16_8192": (0, 8192, 8192, 8192, "nt", BF16),
}  # fmt: skip
TILES = ((8, 512, 512, 65536), (32, 1024, 1024, 8192), (64, 1024, 2048, 8192), (96, 1536, 2048, 8192),
         (132, 1536, 2816, 8192), (144, 2048, 2304, 8192), (192, 2048, 3072, 8192))  # fmt: skip


def matmul(
    name: str, batch: int, m: int, n: int, k: int, layout: str, dtype: str, body: str = "a @ b", algebra: bool = False
) -> Task:
    def stored(height: int, width: int, how: str) -> str:
        shape = ((batch,) if batch else ()) + ((height, width) if how == "n" else (width, height))
        return f"torch.rand({', '.join(map(str, shape))}).to(torch.{dtype})" + (".mT" if how == "t" else "")

    inputs = {"a": stored(m, k, layout[0]), "b": stored(k, n, layout[1])}
    return Task(name=name, source=problem(body, inputs), algebra=algebra)


def products() -> Iterator[Task]:
    yield from (matmul(name, *task) for name, task in PRODUCTS.items())
    for name, body in (("14_upper", "torch.triu(a @ b)"), ("15_lower", "torch.tril(a @ b)")):
        yield matmul(name, 0, 4096, 4096, 4096, "nn", F32, body)


def balance() -> Iterator[Task]:
    """So many tiles of 128 x 256 on 132 multiprocessors: what balance costs, beside one whole wave."""
    for (tiles, m, n, k), dtype in product(TILES, (BF16, F32)):
        yield matmul(f"tiles_{tiles}_{SHORT[dtype]}", 0, m, n, k, "nt", dtype)


def spared() -> Iterator[Task]:
    """What declared algebra leaves out: zeros of factors, half of a product with itself, scales of batch norms."""
    bodies = {"lower": "torch.tril(a) @ b", "upper": "a @ torch.triu(b)", "both": "torch.tril(a) @ torch.tril(b)",
              "band": "torch.triu(torch.tril(a, 256), -256) @ b"}  # fmt: skip
    sizes = (("lower", 4096), ("lower", 8192), ("upper", 4096), ("both", 4096), ("band", 8192))
    for (kind, n), dtype in product(sizes, (BF16, F32)):
        yield matmul(f"zeros_{kind}_{n}_{SHORT[dtype]}", 0, n, n, n, "nn", dtype, bodies[kind], algebra=True)
    for (n, k), dtype in product(((4096, 4096), (8192, 8192), (16384, 1024)), (F32, BF16)):
        source = problem("x @ x.T", {"x": (n, k)}, dtype=dtype)
        yield Task(name=named("gram", (n, k), SHORT[dtype]), source=source, algebra=True)
    body = "F.relu(F.linear(F.batch_norm(x, self.mean, self.var, self.s, self.t, training=False), self.w, self.b))"
    for rows, width in ((65536, 768), (16384, 4096)):
        held = {"mean": f"torch.zeros({width}).bfloat16()", "var": f"torch.ones({width}).bfloat16()"}
        weights = {"w": (width, width), **dict.fromkeys(("b", "s", "t"), (width,))}
        yield Task(name=named("batch norm, linear", (rows, width)), algebra=True,
                   source=problem(body, {"x": (rows, width)}, weights, buffers=held, dtype=BF16))  # fmt: skip


def vectors() -> Iterator[Task]:
    """Products that memory bounds."""
    yield Task(name="matrix, vector", source=problem("a @ x", {"a": (32768, 32768), "x": (32768,)}))
    yield Task(name="row, matrix", source=problem("a @ b", {"a": (1, 32768), "b": (32768, 32768)}))
    yield Task(name="four rows, matrix", source=problem("a @ b", {"a": (4, 16384), "b": (16384, 65536)}))
    yield Task(name="batch of vectors", source=problem("a @ b", {"a": (4096, 1, 512), "b": (4096, 512, 512)}))
    yield Task(name="short sums", source=problem("a @ b", {"a": (65536, 8), "b": (8, 4096)}))
    yield linear(4, 28672, 8192, F32, name="four rows, linear")


# ---- convolutions: layers of networks, a batch norm and what follows behind each

LAYERS = {  # batch, channels, size, results, window, stride, groups; "+" where a residual is added
    "resnet stem": (64, 3, 224, 64, 7, 2, 1), "resnet 64 1x1": (64, 256, 56, 64, 1, 1, 1),
    "resnet 64 3x3": (64, 64, 56, 64, 3, 1, 1), "resnet 64 out +": (64, 64, 56, 256, 1, 1, 1),
    "resnet 128 3x3 /2": (64, 128, 56, 128, 3, 2, 1), "resnet 128 3x3": (64, 128, 28, 128, 3, 1, 1),
    "resnet 256 3x3": (64, 256, 14, 256, 3, 1, 1), "resnet 512 3x3": (64, 512, 7, 512, 3, 1, 1),
    "resnet 512 out +": (64, 512, 7, 2048, 1, 1, 1), "unet 64": (16, 64, 256, 64, 3, 1, 1),
    "unet 256": (16, 256, 64, 256, 3, 1, 1), "convnext 96 7x7": (64, 96, 56, 96, 7, 1, 96),
    "convnext 384 7x7": (64, 384, 14, 384, 7, 1, 384), "efficientnet 144 5x5 /2": (64, 144, 56, 144, 5, 2, 144),
    "efficientnet 672 5x5": (64, 672, 14, 672, 5, 1, 672),
}  # fmt: skip


STEPS = ("resnet 64 3x3", "resnet 128 3x3 /2", "resnet 256 3x3", "convnext 96 7x7")  # of which training is measured


def convolution(name: str, dtype: str, *, last: bool, step: bool = False) -> Task:
    """`last`: in channels-last, as networks in 16 bits are run. `step`: of training, with the batch's statistics."""
    batch, channels, size, made, window, stride, groups = LAYERS[name]
    lies = ".to(memory_format=torch.channels_last)" if last else ""

    def tensor(*shape: int, scale: str = "") -> str:
        return f"torch.randn({', '.join(map(str, shape))}, dtype=torch.{dtype}){lies}{scale}"

    depth = channels // groups * window * window
    weights: dict[str, Shape] = {"w": tensor(made, channels // groups, window, window, scale=f" * {depth}**-0.5"),
               **dict.fromkeys(("s", "t"), (made,))}  # fmt: skip
    buffers = {"mean": f"torch.zeros({made}, dtype=torch.{dtype})", "var": f"torch.ones({made}, dtype=torch.{dtype})"}
    inputs: dict[str, Shape] = {"x": tensor(batch, channels, size, size)}
    body = f"F.conv2d(x, self.w, stride={stride}, padding={window // 2}, groups={groups})"
    body = f"F.batch_norm({body}, self.mean, self.var, self.s, self.t{', training=True' * step})"
    if "+" in name:
        inputs["y"] = tensor(batch, made, size // stride, size // stride)
        body += " + y"
    source = problem(f"F.relu({body})", inputs, weights, dtype=dtype, buffers=buffers)
    words = "convolution", name, SHORT[dtype], "channels-last" if last else "", "step" if step else ""
    return Task(name=named(*words), source=source, step=step)


def convolutions() -> Iterator[Task]:
    for name, (dtype, last) in product(LAYERS, ((F16, True), (BF16, False), (F32, False))):
        yield convolution(name, dtype, last=last)
    for name, dtype in product(STEPS, (BF16, F32)):
        yield convolution(name, dtype, last=False, step=True)


# ---- transformers

MODELS = {  # hidden size, of queries, keys and values together, of one matrix of the (gated) MLP, vocabulary; rows
    "llama3-8b": (4096, 6144, 14336, 128256, (512, 4096), (1, 8, 16, 64)),
    "llama3-70b": (8192, 10240, 28672, 128256, (512, 4096), (1, 32)),
    "qwen2.5-7b": (3584, 4608, 18944, 152064, (1024, 4096), (1, 16)),
    "mistral-7b": (4096, 6144, 14336, 32768, (8192,), (4,)),
    "gpt2": (768, 2304, 3072, 50257, (8192,), (1,)),
    "gpt2-xl": (1600, 4800, 6400, 50257, (4096,), (8,)),
    "minigpt": (768, 2304, 3072, 0, (65536,), ()),  # KernelBench's level 3, task 44
}
GELU = {"gpt2": (1, 1024, 8192), "gpt2-xl": (16, 4096), "minigpt": (65536,)}
SWIGLU = {"llama3-8b": (1, 16, 512, 4096), "llama3-70b": (1, 2048), "qwen2.5-7b": (64, 2048)}


def linear(rows: int, columns: int, k: int, dtype: str, *, name: str = "") -> Task:
    source = problem("F.linear(x, self.w)", {"x": (rows, k)}, {"w": (columns, k)}, dtype=dtype)
    return Task(name=name or named("linear", (rows, columns, k), SHORT[dtype]), source=source, library="linear")


def transformers() -> Iterator[Task]:
    """104 products of prefill and decode in 16 bits; of a prompt, words are computed for 1024 tokens at most."""
    number = 0
    for phase in ("prefill", "decode"):
        for model, (hidden, qkv, wide, words, prefill, decode) in MODELS.items():
            up = wide if model.startswith(("gpt", "mini")) else 2 * wide
            layers = {"qkv": (qkv, hidden), "out": (hidden, hidden), "up": (up, hidden), "down": (hidden, wide)}
            for rows in prefill if phase == "prefill" else decode:
                for layer, (columns, k) in (layers | ({"words": (words, hidden)} if words else {})).items():
                    tokens, dtype = min(rows, 1024) if layer == "words" else rows, (BF16, F16)[number % 2]
                    number += 1
                    yield linear(tokens, columns, k, dtype, name=f"{phase}:{model}:{layer}:{tokens}:{SHORT[dtype]}")


def swiglu(rows: int, wide: int, k: int, dtype: str) -> str:
    weights = {"w": (wide, k), "v": (wide, k)}
    return problem("F.silu(F.linear(x, self.w)) * F.linear(x, self.v)", {"x": (rows, k)}, weights, dtype=dtype)


def layers() -> Iterator[Task]:
    """Of MLPs the first half: GELU with a residual in bf16, SwiGLU in fp16."""
    for model, rows in ((model, rows) for model, many in GELU.items() for rows in many):
        hidden, wide = MODELS[model][0], MODELS[model][2]
        inputs, weights = {"x": (rows, hidden), "residual": (rows, wide)}, {"w": (wide, hidden), "b": (wide,)}
        source = problem("F.gelu(F.linear(x, self.w, self.b)) + residual", inputs, weights, dtype=BF16)
        yield Task(name=f"fused:{model}:gelu:{rows}:bf16", source=source, apart=True)
    for model, rows in ((model, rows) for model, many in SWIGLU.items() for rows in many):
        source = swiglu(rows, MODELS[model][2], MODELS[model][0], F16)
        yield Task(name=f"fused:{model}:swiglu:{rows}:f16", source=source, apart=True)


def gates() -> Iterator[Task]:
    """DualGemm pairs in one kernel or two: fp32, and of every other column."""
    for m, n, k in ((8192, 3072, 768), (4096, 8192, 2048), (512, 14336, 4096), (2048, 18944, 3584), (256, 4096, 1024)):
        yield Task(name=named("gate f32", (m, n, k)), source=swiglu(m, n, k, F32), apart=True)
    body = "y = F.linear(x, self.w)\nreturn F.gelu(y[..., ::2]) * y[..., 1::2]"
    for dtype, (m, n, k) in ((BF16, (16, 14336, 4096)), (BF16, (2048, 14336, 4096)), (F32, (4096, 8192, 2048))):
        yield Task(name=named("interleaved gate", SHORT[dtype], (m, n, k)), apart=True,
                   source=problem(body, {"x": (m, k)}, {"w": (2 * n, k)}, dtype=dtype))  # fmt: skip


def results() -> Iterator[Task]:
    """Linear layers that write several results, or eight bits."""
    bodies = {
        "y, gelu(y)": "y = F.linear(x, self.w, self.b)\nreturn y, F.gelu(y)",
        "relu(y), mask": "y = F.linear(x, self.w, self.b)\nreturn F.relu(y), y > 0",
        "int8": "torch.round(F.linear(x, self.w).float() * self.b.float().abs() * 30).clamp(-127, 127).to(torch.int8)",
        "float8": "(F.linear(x, self.w).float() * self.b.float()).clamp(-448, 448).to(torch.float8_e4m3fn)",
    }
    for (kind, body), dtype, (m, n, k) in product(bodies.items(), (F32, BF16), ((4096, 4096, 4096), (8192, 3072, 768))):
        yield Task(name=named(kind, SHORT[dtype], (m, n, k)), apart=True,
                   source=problem(body, {"x": (m, k)}, {"w": (n, k), "b": (n,)}, dtype=dtype))  # fmt: skip


def reduced() -> Iterator[Task]:
    """Products whose columns are reduced in groups, or as whole rows: one kernel, or two."""
    y, affine = "F.linear(x, self.w, self.b)", "self.s, self.t"

    def layer(name: str, body: str, m: int, n: int, k: int, dtype: str = F32) -> Task:
        source = problem(body, {"x": (m, k)}, {"w": (n, k), "b": (n,), "s": (n,), "t": (n,)}, dtype=dtype)
        return Task(name=named(name, SHORT[dtype], (m, n, k)), source=source, apart=True)

    swish = f"y = {y}\nreturn F.group_norm(torch.sigmoid(y) * y, 64, {affine})"
    yield layer("swish, group norm of 64", swish, 32768, 4096, 1024)
    for size in (16, 32):
        yield layer(
            f"group norm of {size}", f"F.leaky_relu(F.group_norm({y}, {8192 // size}, {affine}))", 1024, 8192, 8192
        )
    yield layer("means of 16", f"F.gelu({y}.unflatten(1, (-1, 16)).mean(2)) * 2", 1024, 8192, 8192)
    for dtype in (F32, BF16):
        yield layer("maxima of 2", f"{y}.unflatten(1, (-1, 2)).amax(2)", 8192, 3072, 768, dtype)
    batch = f"y = F.batch_norm({y}, None, None, {affine}, training=True)\nreturn torch.sigmoid(y) * y"
    yield from (layer("batch norm", batch, m, n, k) for m, n, k in ((1024, 8192, 8192), (16384, 4096, 4096)))
    yield layer("softmax", f"F.gelu({y}).softmax(1)", 1024, 8192, 8192)
    heads = "F.rms_norm(F.linear(x, self.w).unflatten(1, (-1, 128)), (128,), self.s[:128], 1e-6).flatten(1)"
    yield layer("heads' norms", heads, 8192, 4096, 4096, BF16)
    rows = {"softmax": f"{y}.softmax(-1)", "layer norm": f"F.layer_norm({y}, self.s.shape, {affine})",
            "rms norm": f"F.rms_norm({y}, self.s.shape, self.s, 1e-6)"}  # fmt: skip
    for k, n, (name, body) in product((512, 1024, 2048, 4096), (64, 128, 256), rows.items()):
        yield layer(f"rows: {name}", body, 65536, n, k, BF16)
    for k, m, size in product((1024, 2048, 4096), (4096, 16384), (32, 64, 128, 256)):
        body = f"F.leaky_relu(F.group_norm({y}, {4096 // size}, {affine}))"
        yield layer(f"groups of {size}", body, m, 4096, k, BF16)


def eight_bit() -> Iterator[Task]:
    """Layers of few rows with weights of eight bits; torch's own products of float8 and of groups of rows."""
    int8 = "torch.randint(-127, 128, ({n}, {k}), dtype=torch.int8)"
    f8 = "torch.randn({n}, {k}).to(torch.float8_e4m3fn)"
    scale, groups = "(torch.rand({n}) / 64).bfloat16()", "(torch.rand({n}, {k} // 128) / 64).bfloat16()"
    scaled = "self.w.to(x.dtype) * self.s[:, None]"
    grouped = "self.w.unflatten(1, (-1, 128)).to(x.dtype) * self.s[:, :, None]"
    kinds = {
        "int8": (int8, scale, f"F.linear(x, {scaled})"), "float8": (f8, scale, f"F.linear(x, {scaled})"),
        "int8, scaled behind": (int8, scale, "F.linear(x, self.w.to(x.dtype)) * self.s"),
        "int8, groups of 128": (int8, groups, f"F.linear(x, ({grouped}).flatten(1))"),
        "16 bits": ("torch.randn({n}, {k}).bfloat16()", "torch.ones(1)", "F.linear(x, self.w)"),
    }  # fmt: skip
    for (kind, (w, s, body)), m, (n, k) in product(kinds.items(), (1, 4, 16, 32), ((14336, 4096), (4096, 14336))):
        held = {"w": w.format(n=n, k=k), "s": s.format(n=n, k=k)}
        yield Task(name=named(kind, (m, n, k)), source=problem(body, {"x": (m, k)}, dtype=BF16, buffers=held))
    for m, n, k in ((4096, 14336, 4096), (4096, 4096, 14336), (8192, 8192, 8192), (512, 6144, 4096), (64, 14336, 4096)):
        inputs = {"x": f"torch.randn({m}, {k}).to(torch.float8_e4m3fn)", "a": f"torch.rand({m}, 1) + 0.5"}
        held = {"w": f8.format(n=n, k=k), "s": f"torch.rand(1, {n}) + 0.5"}
        yield Task(name=named("scaled float8", (m, n, k)), source=problem(
            "torch._scaled_mm(x, self.w.t(), a, self.s, out_dtype=torch.bfloat16)", inputs, buffers=held))  # fmt: skip
    for experts, m, n, k in ((8, 8192, 14336, 4096), (8, 8192, 4096, 14336), (128, 16384, 768, 2048)):
        routed: dict[str, Shape] = {
            "x": (m, k),
            "ends": f"(torch.arange(1, {experts + 1}) * {m // experts}).to(torch.int32)",
        }
        yield Task(name=named("grouped", (experts, m, n, k)), source=problem(
            "torch._grouped_mm(x, self.w.mT, offs=ends)", routed, {"w": (experts, n, k)}, dtype=BF16))  # fmt: skip


def training() -> Iterator[Task]:
    """Steps of linear layers and feed-forwards in fp32, of Llama, GPT-2 and BERT."""
    bodies = {
        "linear": ("F.linear(x, self.w, self.b)", "wb"),
        "mlp": ("F.linear(F.gelu(F.linear(x, self.w, self.b)), self.d, self.c)", "wbdc"),
        "swiglu": ("F.linear(F.silu(F.linear(x, self.w)) * F.linear(x, self.v), self.d)", "wvd"),
    }
    for kind, m, k, n in (
        ("linear", 8192, 4096, 4096), ("linear", 4096, 4096, 14336), ("mlp", 16384, 768, 3072),
        ("linear", 16384, 768, 2304), ("linear", 8192, 1600, 4800), ("mlp", 8192, 1600, 6400),
        ("mlp", 4096, 4096, 14336), ("linear", 8192, 1024, 1024), ("swiglu", 2048, 4096, 11008),
        ("swiglu", 8192, 2048, 5632),
    ):  # fmt: skip
        shapes = {"w": (n, k), "v": (n, k), "d": (k, n), "b": (n,), "c": (k,)}
        weights = {name: shapes[name] for name in bodies[kind][1]}
        yield Task(name=f"{kind}:{m}:{k}:{n}", source=problem(bodies[kind][0], {"x": (m, k)}, weights), step=True)


# ---- rows: what is no product. Of each operation the operands beside x, and what is computed

MASK, LABELS = "torch.rand({rows}, {width}) > 0.3", "torch.randint(0, {width}, ({rows},))"
ROWS: dict[str, tuple[dict[str, Shape], str]] = {
    "gelu chain": ({}, "y = x * 1.5\nreturn (torch.erf(y * 0.7071067811865476) + 1.0) * y * 0.5"),
    "gelu": ({}, "F.gelu(x + self.b)"), "swiglu": ({"u": ()}, "F.silu(x) * u"),
    "gelu by tanh": ({}, "0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))"),
    "transposed add": ({"u": "torch.randn({width}, {rows}).t()"}, "torch.relu(x + u)"),
    "softmax": ({}, "torch.softmax(x, -1)"), "log softmax": ({}, "torch.log_softmax(x, -1)"),
    "masked softmax": ({"m": MASK}, "torch.softmax(torch.where(m, x * 0.125, -1e9), -1)"),
    "half far softmax": ({}, "torch.softmax(torch.where(x > 0, x, -1e38), -1)"),
    "layer norm": ({}, "F.layer_norm(x, ({width},), self.w, self.b, 1e-6)"),
    "layer norm, residual": ({"u": ()}, "F.layer_norm(x + u, ({width},), self.w, self.b)"),
    "rms norm": ({}, "F.rms_norm(x, ({width},), self.w, 1e-6)"),
    "add, rms norm": ({"u": ()}, "(x + u, F.rms_norm(x + u, ({width},), self.w, 1e-6))"),
    "l1 norm": ({}, "x / torch.mean(torch.abs(x), dim=1, keepdim=True)"),
    "l2 norm": ({}, "x / torch.norm(x, p=2, dim=1, keepdim=True)"),
    "sum": ({}, "x.sum(1)"), "logsumexp": ({}, "torch.logsumexp(x, 1)"), "gelu, sum": ({}, "F.gelu(x).sum(1)"),
    "argmax of softmax": ({}, "torch.softmax(x, 1).argmax(1)"), "mse": ({"u": ()}, "torch.mean((x - u) ** 2)"),
    "huber": ({"u": ()}, "F.huber_loss(x, u)"), "cosine": ({"u": ()}, "F.cosine_similarity(x, u, dim=1)"),
    "cross entropy": ({"labels": LABELS}, "F.cross_entropy(x, labels)"),
    "cumsum": ({}, "x.cumsum(1)"), "cumprod": ({}, "torch.cumprod(x, 1)"),
    "reverse cumsum": ({}, "x.flip(1).cumsum(1).flip(1)"),
    "masked cumsum": ({"m": MASK}, "torch.cumsum(x * m, 1)"), "cummax": ({}, "torch.cummax(x, 1)"),
    "logcumsumexp": ({}, "torch.logcumsumexp(x, 1)"), "top 8": ({}, "x.topk(8)"), "top 64": ({}, "x.topk(64)"),
    "top 8 of softmax": ({}, "torch.softmax(x, -1).topk(8)"), "transpose": ({}, "x.t().contiguous()"),
    "rms norm to int8": ({}, "y = F.rms_norm(x, x.shape[-1:]).float()\nscale = y.abs().amax(-1, keepdim=True) / 127\n"
                             "return torch.round(y / scale).to(torch.int8), scale"),
    "to e4m3": ({}, "scale = x.abs().amax(-1, keepdim=True) / 448\nreturn (x / scale).to(torch.float8_e4m3fn), scale"),
}  # fmt: skip
SHAPED: dict[str, tuple[dict[str, Shape], str]] = {  # at shapes of their own
    "rms 112x64x512x512": ({"x": (112, 64, 512, 512)}, "x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)"),
    "group norm 112x64x512x512": ({"x": (112, 64, 512, 512)}, "F.group_norm(x, 8)"),
    "instance norm 112x64x512x512": ({"x": (112, 64, 512, 512)}, "F.instance_norm(x)"),
    "batch norm 64x64x512x512": ({"x": (64, 64, 512, 512)}, "F.batch_norm(x, None, None, training=True)"),
    "sum of columns 128x4096x4095": ({"x": (128, 4096, 4095)}, "x.sum(1, keepdim=True)"),
    "argmax of columns 128x4096x4095": ({"x": (128, 4096, 4095)}, "x.argmax(1)"),
    "softmax of channels 64x256x4096": ({"x": (64, 256, 4096)}, "torch.softmax(x, 1)"),
    "cumsum of columns 64x4096x4096": ({"x": (64, 4096, 4096)}, "torch.cumsum(x, 1)"),
    "cumsum 16x16777216": ({"x": (16, 1 << 24)}, "torch.cumsum(x, 1)"),
    "top 64 of 16x16777216": ({"x": (16, 1 << 24)}, "x.topk(64)"),
    "recurrence 64x32x4096": ({"x": (64, 32, 4096), "g": (64, 32, 4096)}, "h, states = torch.zeros_like(x[:, 0]), []\n"
        "for step, gate in zip(x.unbind(1), torch.sigmoid(g).unbind(1)):\n    h = gate * h + (1 - gate) * step\n"
        "    states.append(h)\nmade = torch.stack(states, 1)\nreturn made, made * x"),
    "max pool 256x64x112x112": ({"x": (256, 64, 112, 112)}, "F.max_pool2d(x, 3, 2, 1) * 0.25"),
    "average pool 128x96x112x112": ({"x": (128, 96, 112, 112)}, "F.avg_pool2d(x, 3, 1, 1)"),
    "embedding 262144x1024": (
        {"t": "torch.randint(0, 50257, (262144,))", "x": (50257, 1024)}, "F.embedding(t, x) * 3.0 + 1.0"),
    "embedding bag 65536x32x256": (
        {"t": "torch.randint(0, 100000, (65536, 32))", "x": (100000, 256)}, "F.embedding_bag(t, x, mode='mean')"),
    "rotary pairs 256x4096x128": ({"x": (256, 4096, 128), "c": (4096, 64, 1), "s": (4096, 64, 1)},
        "a, b = x[..., ::2, None], x[..., 1::2, None]\nreturn torch.cat((a * c - b * s, b * c + a * s), -1)"),
    "NCHW to NHWC 128x64x112x112": ({"x": (128, 64, 112, 112)}, "x.permute(0, 2, 3, 1).contiguous()"),
    "NHWC to NCHW 128x64x112x112": ({"x": (128, 112, 112, 64)}, "x.permute(0, 3, 1, 2).contiguous()"),
    "pixel shuffle 64x256x128x128": ({"x": (64, 256, 128, 128)}, "F.pixel_shuffle(x, 2)"),
}  # fmt: skip


def row(operation: str, rows: int, width: int, dtype: str = F32) -> Task:
    beside, body = ROWS[operation]
    inputs: dict[str, Shape] = {"x": (rows, width)}
    for name, shape in beside.items():
        made = shape.format(rows=rows, width=width) if isinstance(shape, str) else (rows, width)
        inputs[name] = f"{made}.to(torch.{dtype})" if isinstance(made, str) and "randn" in made else made
    weights: dict[str, Shape] = {name: (width,) for name in ("w", "b") if f"self.{name}" in body}
    source = problem(body.replace("{width}", str(width)), inputs, weights, dtype=dtype)
    return Task(name=named(operation, (rows, width), SHORT[dtype]), source=source)


def rows() -> Iterator[Task]:
    """Of a GPU, most of a gigabyte; whatever has no product in it."""
    for operation in ROWS:
        yield row(operation, 32768, 256 if operation.startswith("top 8") else 32768)
    more = (("softmax", 32768, 4096), ("softmax", 4096, 65536), ("softmax", 4096, 393216), ("softmax", 128, 1024),
            ("top 64", 16384, 4096), ("cumsum", 32768, 32767))  # fmt: skip
    yield from (row(*each) for each in more)
    for operation in ("gelu chain", "log softmax", "transpose", "layer norm", "rms norm to int8"):
        yield row(operation, 16384, 16384, BF16)
    yield from (Task(name=name, source=problem(body, inputs)) for name, (inputs, body) in SHAPED.items())


def cpu() -> Iterator[Task]:
    """All of `rows` at three sizes for caches of a CPU, and short rows of some (`--target cpu`)."""
    for (count, width), operation in product(((8, 64), (512, 1024), (2048, 4096)), ROWS):
        yield row(operation, count, width)
    short = ("softmax", "layer norm", "logsumexp", "sum", "gelu, sum", "argmax of softmax")
    yield from (row(operation, (1 << 20) // width, width) for width, operation in product((7, 16, 32, 64), short))


def libraries() -> Iterator[Task]:
    """Rows of 2^27 elements beside quack and Liger: forward, and a step of training."""
    names = {"softmax": "softmax", "layer_norm": "layer norm", "rms_norm": "rms norm", "cross_entropy": "cross entropy"}
    for (library, operation), dtype, width in product(names.items(), (F32, BF16), (1024, 4096, 16384, 65536, 262144)):
        for step in (False, True):
            task = row(operation, (1 << 27) // width, width, dtype)
            name = f"{task.name} {'step' if step else 'forward'}"
            yield Task(name=name, source=task.source, library=library, step=step)


def common() -> Iterator[Task]:
    """Operations and widths that many modules have; their winners are shipped (`--write FOLDER`, `tilewright tune`)."""
    operations = ("softmax", "layer norm", "rms norm", "add, rms norm", "swiglu", "gelu", "cross entropy")
    for operation, width, count in product(operations, (1024, 2048, 4096, 8192), (4096, 16384)):
        yield row(operation, count, width, BF16)


TABLES: dict[str, Callable[[], Iterator[Task]]] = {
    "products": products, "balance": balance, "spared": spared, "vectors": vectors, "transformers": transformers,
    "convolutions": convolutions, "layers": layers, "gates": gates, "results": results, "reduced": reduced,
    "eight-bit": eight_bit, "training": training, "rows": rows, "cpu": cpu, "libraries": libraries, "common": common,
}  # fmt: skip


def tasks(names: Sequence[str]) -> Iterator[Task]:
    for name in names:
        yield from TABLES[name]()
