"""03 moe_compare: what fusion changes in a mixture-of-experts model of six scopes, in numbers.

    x --> transpose --> sk1 --> concat --> sk2 --> mean --> sk3 --> tile --> sk4 --> slice --> sk5 --> cast --> sk6 --+
                                                                                       two halves <-- split <---------+

Each scope is a layer of experts for a few tokens, as when a model writes text: norm, matmul, gating, transpose, sort,
tile, grouped matmul, dequantise-SwiGLU-quantise, grouped matmul, weighted mean. sk1 and sk3 are identical and share a
binary, and so do sk2 and sk4. sk5 has an optional bias and sk6 other options: they are compiled anew.

The model runs fused and with fuse=off, both under a profile; the results must be equal, bit for bit. Each is profiled
five times and the calmest profile is kept, since what else a machine does can only add time. The two are left in
prof_result/sk_model and prof_result/no_sk_model of the current directory. `--calls` and `--turns` say how many.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import superkernel as sk
from superkernel import ops
from superkernel.observe.compare import compare
from superkernel.observe.compare_text import comparison_lines

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 8, 64, 32, 4, 2
SEED = 3
WARM_UP = 20
SK_MODEL, NO_SK_MODEL = "prof_result/sk_model", "prof_result/no_sk_model"
FUSED = {"profit_gate": 0}  # in every call, also in those that would be measured unfused
UNFUSED = {"fuse": "off"}

Compiled = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Kind:
    """In what a scope differs from the others."""

    options: str = ""
    bias: bool = False


KINDS = {
    "sk1": Kind(),
    "sk2": Kind(),
    "sk3": Kind(),
    "sk4": Kind(),
    "sk5": Kind(bias=True),
    "sk6": Kind(options="stream-fusion=1:preload-code=max"),
}


class Experts(nn.Module):
    """A layer of experts: every token is computed by the best two of them."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.register_buffer("gain", torch.rand(WIDTH))
        self.register_buffer("gate", torch.randn(WIDTH, EXPERTS))
        self.register_buffer("up", torch.randn(EXPERTS, WIDTH, 2 * INNER) / WIDTH**0.5)
        self.register_buffer("up_bias", torch.randn(EXPERTS, 2 * INNER) if kind.bias else None)
        self.register_buffer("down", torch.randint(-20, 20, (EXPERTS, WIDTH, INNER), dtype=torch.int8))
        self.register_buffer("down_scale", torch.rand(EXPERTS, WIDTH) / 500)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[0]
        normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain
        weights, experts, _ = ops.moe_gating_top_k(normal @ self.gate, CHOSEN)
        wanted = experts.t().reshape(-1)  # all first choices, then all second ones
        order = torch.argsort(wanted, stable=True)
        counts = (wanted[:, None] == torch.arange(EXPERTS)).sum(0)
        rows = normal.repeat(CHOSEN, 1)[order]
        bias = None if self.up_bias is None else [self.up_bias]
        (up,) = ops.grouped_matmul([rows], [self.up], bias=bias, group_list=counts, group_list_type=1, split_item=2)
        hidden, scale = ops.dequant_swiglu_quant(up, quant_mode=1)
        (down,) = ops.grouped_matmul(
            [hidden],
            [self.down.transpose(1, 2)],  # a view: rows of weights are read where they are
            scale=[self.down_scale],
            per_token_scale=[scale],
            group_list=counts,
            group_list_type=1,
            split_item=2,
            output_dtype=torch.bfloat16,
        )
        back = down[torch.argsort(order)].view(CHOSEN, tokens, WIDTH).float()
        return x + (back * weights.t()[:, :, None]).mean(0)


class Model(nn.Module):
    """Six scopes, and between them what most models have there: data is moved, joined and reduced."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.ModuleDict({name: Experts(kind) for name, kind in KINDS.items()})

    def forward(self, x: Tensor, history: Tensor) -> tuple[Tensor, ...]:
        x = x.transpose(0, 1).contiguous()
        with sk.super_kernel("sk1", KINDS["sk1"].options):
            x = self.layers["sk1"](x)
        x = torch.cat((x, history))
        with sk.super_kernel("sk2", KINDS["sk2"].options):
            x = self.layers["sk2"](x)
        x = x.view(2, TOKENS, WIDTH).mean(0)
        with sk.super_kernel("sk3", KINDS["sk3"].options):
            x = self.layers["sk3"](x)
        x = x.repeat(2, 1)
        with sk.super_kernel("sk4", KINDS["sk4"].options):
            x = self.layers["sk4"](x)
        x = x[::2].contiguous()
        with sk.super_kernel("sk5", KINDS["sk5"].options):
            x = self.layers["sk5"](x)
        x = x.to(torch.bfloat16)
        with sk.super_kernel("sk6", KINDS["sk6"].options):
            x = self.layers["sk6"](x.float())
        left, right = x.split(WIDTH // 2, dim=1)
        return left.contiguous(), right.contiguous()


def inputs() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(SEED)
    return torch.randn(WIDTH, TOKENS, generator=random), torch.randn(TOKENS, WIDTH, generator=random)


def profiled(
    model: nn.Module, options: dict[str, object], directory: str, calls: int, turns: int
) -> tuple[Tensor, ...]:
    """Compile, warm up, then record some calls, in several turns of which one is kept; the result of the last call."""
    torch._dynamo.reset()
    compiled: Compiled = torch.compile(model, backend="superkernel", fullgraph=True, dynamic=False, options=options)
    given = inputs()
    for _ in range(WARM_UP):
        compiled(*given)
    turn, least = Path(f"{directory}.turn"), math.inf
    for _ in range(turns):
        with sk.profile(turn) as recorded:
            for _ in range(calls):
                found = compiled(*given)
        if recorded.result.total_us < least:
            least = recorded.result.total_us
            shutil.rmtree(directory, ignore_errors=True)
            turn.rename(directory)
    shutil.rmtree(turn, ignore_errors=True)
    return found


def check(expected: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> list[str]:
    """Which results differ in any bit; none, if all is well."""
    pairs = zip(("left", "right"), expected, found, strict=True)
    return [name for name, one, other in pairs if not np.array_equal(_bits(one), _bits(other))]


def _bits(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def shared_binaries(model: nn.Module) -> list[list[str]]:
    """Scopes by the binary that they are launched from."""
    report = sk.explain(model, *inputs(), options=FUSED)
    binaries: dict[str, list[str]] = {}
    for scope in report.scopes:
        for segment in scope.segments:
            binaries.setdefault(str(segment.kernel.executable.binary), []).append(scope.name)
    return list(binaries.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="what fusion changes in a mixture-of-experts model of six scopes")
    parser.add_argument("--calls", type=int, default=100, help="calls under each profile")
    parser.add_argument("--turns", type=int, default=5, help="profiles of each, of which the calmest is kept")
    asked = parser.parse_args()
    model = Model().eval()
    with torch.no_grad():
        print("-------------------- run no sk --------------------", flush=True)
        expected = profiled(model, UNFUSED, NO_SK_MODEL, asked.calls, asked.turns)
        print("-------------------- run sk -----------------------", flush=True)
        found = profiled(model, FUSED, SK_MODEL, asked.calls, asked.turns)
        binaries = shared_binaries(model)
    for names in binaries:
        print(f"{' and '.join(names)}: {'one binary, shared' if len(names) > 1 else 'a binary of its own'}")
    compared = compare(NO_SK_MODEL, SK_MODEL)
    print(f"times of {asked.calls} calls, the calmest of {asked.turns} turns each")
    print("\n".join(comparison_lines(compared)))
    if wrong := check(expected, found):
        print(f"execute sample failed: {', '.join(wrong)} differ", file=sys.stderr)
        return 1
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
