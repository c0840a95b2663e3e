"""05 generate: a language model writes 64 tokens, one super kernel per token.

The model is a Llama built from a configuration with random weights; nothing is downloaded. The prompt is read eagerly,
then each decode step (embedding, all layers with their cache, logits, the choice of the next token) is one compiled
call. The same steps run eagerly, through Inductor and through superkernel; all three must write the same tokens.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import superkernel as sk
from superkernel.frontend.report import collecting

try:
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
except ModuleNotFoundError:
    sys.exit("this example needs transformers: pip install transformers")

PROMPT = (1, 17, 42, 7, 99, 23, 5, 64)
ROOM = 128  # tokens in the cache


@dataclass
class Written:
    """What one runner wrote, and how fast, without the first steps."""

    tokens: list[int]
    per_second: float


def model_of(width: int, layers: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=8 * width // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=width // 48,
        num_key_value_heads=width // 48,
        vocab_size=4096,
        max_position_embeddings=ROOM,
        initializer_range=0.2,  # or random weights say the same token for ever
    )
    return LlamaForCausalLM(config).eval()


def write(model: Any, steps: int, compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Written:
    """Read the prompt, then write `steps` tokens, each the most likely one."""
    cache = StaticCache(config=model.config, max_cache_len=ROOM)

    def step(token: Tensor) -> Tensor:
        with sk.super_kernel("decode"):
            logits = model(token, past_key_values=cache, use_cache=True).logits
            return logits[:, -1:].argmax(-1)

    compiled = compiler(step)
    first = model(torch.tensor([PROMPT]), past_key_values=cache, use_cache=True).logits
    token = first[:, -1:].argmax(-1)
    tokens, moments = [int(token)], []
    for _ in range(steps - 1):
        moments.append(time.perf_counter())
        token = compiled(token)
        tokens.append(int(token))
    settled = min(16, len(moments) - 2)  # by then everything is compiled, and the profit gate has decided
    per_second = (len(moments) - 1 - settled) / (moments[-1] - moments[settled])
    return Written(tokens, per_second)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=288, help="hidden size, a multiple of 48")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=64)
    asked = parser.parse_args()
    model = model_of(asked.width, asked.layers)
    compilers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        "eager": lambda step: step,
        "inductor": lambda step: torch.compile(step, dynamic=False),
        "superkernel": lambda step: torch.compile(step, backend="superkernel", dynamic=False),
    }
    written: dict[str, Written] = {}
    with torch.no_grad(), collecting() as report:
        for name, compiler in compilers.items():
            torch._dynamo.reset()
            written[name] = write(model, asked.steps, compiler)
            print(f"{name:<12} {written[name].per_second:8.1f} tokens per second", flush=True)
    segments = [segment for scope in report.scopes for segment in scope.segments]
    left = [item.op for scope in report.scopes for item in scope.unfusible]
    print(f"decode step: {len(segments)} segment of {len(segments[0].ops)} ops, {len(left)} ops left to torch")

    different = [name for name, one in written.items() if one.tokens != written["eager"].tokens]
    if different or len(segments) != 1 or left:
        print(f"failed: other tokens than eager: {different}; left to torch: {left}", file=sys.stderr)
        return 1
    print(f"{asked.steps} tokens, the same by all: {' '.join(map(str, written['eager'].tokens[:12]))} ...")
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
