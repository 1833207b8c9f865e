"""As a program: `python -m fakes.generates KIND FOLDER` fuses a small model of transformers ("Llama" or "GPT2") and
prints the tokens that it and the original generate from a static cache, and the fallbacks."""

from __future__ import annotations

import copy
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fakes import net
from fakes.decoders import calls_of
from tilewright.faces.examples import ExampleCall
from tilewright.faces.live import fallbacks

SIZES: dict[str, dict[str, Any]] = {
    "Llama": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
}  # fmt: skip
CLASSES = {"Llama": "LlamaForCausalLM", "GPT2": "GPT2LMHeadModel"}


def main(kind: str, folder: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=100, bos_token_id=0, eos_token_id=0, **SIZES[kind])
    model = getattr(transformers, CLASSES[kind])(config).eval()
    prompt = torch.randint(3, 100, (2, 7))
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def generate(module: Any) -> Tensor:
        cache = transformers.StaticCache(config=config, max_cache_len=16)
        cache.early_initialization(2, 2 if kind == "Llama" else 4, 16, torch.float32, torch.device("cpu"))
        found: Tensor = module.generate(
            prompt, **{name: cache}, do_sample=False, max_new_tokens=6, min_new_tokens=6, pad_token_id=0,
            disable_compile=True,
        )  # fmt: skip
        return found

    calls = [ExampleCall(args=args, kwargs=kwargs) for args, kwargs in calls_of(model, lambda: generate(model))]
    mine = net.fused_as_given(folder, copy.deepcopy(model), calls)
    tokens = [generate(module).tolist() for module in (model, mine, mine)]
    print(json.dumps({"tokens": tokens, "fallbacks": fallbacks(mine)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
