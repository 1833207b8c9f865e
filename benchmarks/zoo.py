"""Real modules of transformers, torchvision, timm and torch with random weights, at sizes that people run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Zoo:
    """A module on a device and what it is called with. `training`: a step is forward and backward. `tokens`: so many
    are generated from the inputs, by `generate` with a static cache; 0: forward alone is called."""

    module: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    training: bool = False
    tokens: int = 0


def _ids(batch: int, length: int, words: int) -> Tensor:
    return torch.randint(words, (batch, length))


def _configured(config: str, module: str, more: Mapping[str, Any]) -> nn.Module:
    import transformers

    return getattr(transformers, module)(getattr(transformers, config)(**more))  # type: ignore[no-any-return]


def _bert(batch: int, length: int, dtype: torch.dtype, *, training: bool = False) -> Zoo:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[batch // 2 :, length * 3 // 4 :] = 0
    module = _configured("BertConfig", "BertModel", {}).to(dtype).train(training)
    return Zoo(module=module, kwargs={"input_ids": _ids(batch, length, 30522), "attention_mask": mask},
               training=training)  # fmt: skip


def _gpt2(batch: int, length: int, *, training: bool = False, tokens: int = 0) -> Zoo:
    more = {"use_cache": bool(tokens), "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    module = _configured("GPT2Config", "GPT2LMHeadModel", more).to(BRAIN).train(training)
    return Zoo(module=module, kwargs={"input_ids": _ids(batch, length, 50257)}, training=training, tokens=tokens)


def _llama(batch: int, length: int, *, kind: str = "Llama", layers: int = 2, tokens: int = 0, **more: Any) -> Zoo:
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
             "num_hidden_layers": layers, "vocab_size": 32000, "use_cache": bool(tokens)} | more  # fmt: skip
    module = _configured(f"{kind}Config", f"{kind}ForCausalLM" if tokens else f"{kind}Model", shape).to(BRAIN).eval()
    return Zoo(module=module, kwargs={"input_ids": _ids(batch, length, 32000)}, tokens=tokens)


def _whisper() -> Zoo:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072)
    return Zoo(module=WhisperEncoder(config).half().eval(), args=(torch.randn(8, 80, 3000, dtype=HALF),))


def _experts() -> Zoo:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(hidden_size=2048, intermediate_size=7168, num_local_experts=8)
    return Zoo(module=MixtralSparseMoeBlock(config).to(BRAIN).eval(), args=(torch.randn(4, 512, 2048, dtype=BRAIN),))


def _t5() -> Zoo:
    module = _configured("T5Config", "T5EncoderModel", {"d_model": 768, "num_layers": 12, "num_heads": 12})
    return Zoo(module=module.to(BRAIN).eval(), kwargs={"input_ids": _ids(16, 512, 32000)})


def _picture(
    module: nn.Module, dtype: torch.dtype, batch: int = 64, *, training: bool = False, last: bool = False
) -> Zoo:
    """`last`: in channels-last memory, as whoever cares for speed has it."""
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(batch, 3, 224, 224, dtype=dtype).to(memory_format=form)
    module = module.to(dtype).to(memory_format=form).train(training)  # type: ignore[call-overload]
    return Zoo(module=module, args=(x,), training=training)


def _vision(name: str, dtype: torch.dtype, batch: int = 64, *, training: bool = False, last: bool = True) -> Zoo:
    import torchvision

    return _picture(getattr(torchvision.models, name)(), dtype, batch, training=training, last=last)


def _timm(name: str, dtype: torch.dtype, batch: int = 64, *, training: bool = False) -> Zoo:
    import timm

    return _picture(timm.create_model(name, pretrained=False), dtype, batch, training=training)


def _encoder(batch: int, length: int, width: int, layers: int) -> Zoo:
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    return Zoo(module=module, args=(torch.randn(batch, length, width),))


MODELS: Mapping[str, Callable[[], Zoo]] = {
    "BERT-base 32x384, mask, fp16": lambda: _bert(32, 384, HALF),
    "BERT-base 16x128, fp32": lambda: _bert(16, 128, FULL),
    "GPT-2 small 8x1024, bf16": lambda: _gpt2(8, 1024),
    "Llama, 2 layers of 8B, 2x2048, bf16": lambda: _llama(2, 2048),
    "Mistral, 2 layers of 7B, 2x2048, bf16": lambda: _llama(2, 2048, kind="Mistral"),
    "Qwen2, 2 layers of 1.5B, 4x1024, bf16": lambda: _llama(
        4, 1024, kind="Qwen2", hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2
    ),
    "Mixtral block, 8 experts, 4x512, bf16": _experts,
    "T5-base encoder 16x512, bf16": _t5,
    "Whisper-small encoder 8x3000, fp16": _whisper,
    "ResNet-50, 64, fp16": lambda: _vision("resnet50", HALF),
    "ResNet-50, 64, fp32": lambda: _vision("resnet50", FULL, last=False),
    "ConvNeXt-T, 64, fp16": lambda: _vision("convnext_tiny", HALF),
    "EfficientNet-B0, 64, fp16": lambda: _vision("efficientnet_b0", HALF),
    "MobileNetV3-L, 64, bf16": lambda: _vision("mobilenet_v3_large", BRAIN),
    "Swin-T, 64, fp16": lambda: _vision("swin_t", HALF, last=False),
    "ViT-B/16, 64, fp16": lambda: _vision("vit_b_16", HALF, last=False),
    "DeiT-S, 128, bf16": lambda: _timm("deit_small_patch16_224", BRAIN, 128),
    "MLP-Mixer-B/16, 64, bf16": lambda: _timm("mixer_b16_224", BRAIN),
    "torch encoder, 6 layers of 512, 32x256, fp32": lambda: _encoder(32, 256, 512, 6),
    "torch encoder, 2 layers of 128, 4x32, fp32": lambda: _encoder(4, 32, 128, 2),
    "training: GPT-2 small 4x512, bf16": lambda: _gpt2(4, 512, training=True),
    "training: BERT-base 16x256, bf16": lambda: _bert(16, 256, BRAIN, training=True),
    "training: ResNet-50, 64, bf16": lambda: _vision("resnet50", BRAIN, training=True),
    "training: ViT-S/16, 64, fp32": lambda: _timm("vit_small_patch16_224", FULL, training=True),
    "generate: GPT-2 small 4x256, 64 tokens, bf16": lambda: _gpt2(4, 256, tokens=64),
    "generate: Llama, 8 layers of 1024, 4x256, 64 tokens, bf16": lambda: _llama(
        4, 256, layers=8, tokens=64, hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
        num_key_value_heads=4,
    ),
}  # fmt: skip
