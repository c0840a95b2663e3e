"""Small models of well-known families, from configurations and random weights: 64 wide, nothing loaded.

Most have one layer, since every layer has the same operators. Where layers differ, and once where they do not, there
are two: `_TWO_LAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

VOCABULARY = 256
ROOM = 32  # positions of a cache
PROMPT = 7
BATCH = 2

_SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": VOCABULARY}
_DECODER = {
    **_SIZES,
    "intermediate_size": 96,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_TWO_LAYERS = {"num_hidden_layers": 2}


def llama(layers: int = 2) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**_DECODER, "num_hidden_layers": layers}))


def qwen3() -> Any:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_DECODER, head_dim=16))


def qwen3_moe() -> Any:
    config = hf.Qwen3MoeConfig(
        **_DECODER, head_dim=16, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True
    )
    return hf.Qwen3MoeForCausalLM(config)


def mixtral() -> Any:
    return hf.MixtralForCausalLM(hf.MixtralConfig(**_DECODER, num_local_experts=4, num_experts_per_tok=2))


def deepseek_v3() -> Any:
    config = hf.DeepseekV3Config(
        **{**_DECODER, **_TWO_LAYERS, "num_key_value_heads": 4},
        moe_intermediate_size=48,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,  # the first layer is dense, the second one of experts
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    )
    return hf.DeepseekV3ForCausalLM(config)


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=1, n_head=4))


def bert() -> Any:
    return hf.BertModel(hf.BertConfig(**_SIZES, intermediate_size=96, max_position_embeddings=64))


def t5_encoder() -> Any:
    # two layers: the first computes the positions' bias for all
    return hf.T5EncoderModel(
        hf.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4)
    )


def vit() -> Any:
    sizes = {name: size for name, size in _SIZES.items() if name != "vocab_size"}
    return hf.ViTModel(hf.ViTConfig(**sizes, intermediate_size=96, image_size=32, patch_size=8))


DECODERS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "mixtral": mixtral,
    "deepseek_v3": deepseek_v3,
    "gpt2": gpt2,
}
ENCODERS: dict[str, Callable[[], Any]] = {"bert": bert, "t5_encoder": t5_encoder, "vit": vit}
ALL = {**DECODERS, **ENCODERS}


def built(name: str) -> Any:
    """The model, ready for inference, with the same weights in every run."""
    torch.manual_seed(0)
    model = ALL[name]().eval()
    for parameter in model.parameters():  # zeros and ones at the start would hide mistakes
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model


@dataclass
class Task:
    """A function of tensors, and a maker of arguments: a step changes its cache, so every run needs one of its own."""

    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]


def prefill(name: str, model: Any) -> Task:
    """All of the prompt at once; a decoder writes the cache that it is given."""
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        pixels = torch.randn(BATCH, 3, 32, 32, generator=generator)
        return Task(lambda image: model(pixel_values=image).last_hidden_state, lambda: (pixels,))
    tokens = torch.randint(0, VOCABULARY, (BATCH, PROMPT), generator=generator)
    if name in ENCODERS:
        return Task(lambda ids: model(input_ids=ids).last_hidden_state, lambda: (tokens,))
    return Task(lambda ids, cache: _step(model, ids, cache), lambda: (tokens, empty_cache(model)))


def decode(model: Any) -> Task:
    """One more token, after a prompt."""
    generator = torch.Generator().manual_seed(2)
    prompt = torch.randint(0, VOCABULARY, (BATCH, PROMPT), generator=generator)
    token = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)

    def arguments() -> tuple[Any, ...]:
        cache = empty_cache(model)
        _step(model, prompt, cache)
        return token, cache

    return Task(lambda ids, cache: _step(model, ids, cache), arguments)


def empty_cache(model: Any) -> Any:
    return hf.StaticCache(config=model.config, max_cache_len=ROOM)


def _step(model: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    return model(tokens, past_key_values=cache, use_cache=True).logits


def cached(arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """What a step wrote: keys, values and lengths of every layer."""
    caches = [argument for argument in arguments if isinstance(argument, hf.StaticCache)]
    layers = [layer for cache in caches for layer in cache.layers]
    return [part for layer in layers for part in (layer.keys, layer.values, layer.cumulative_length)]
