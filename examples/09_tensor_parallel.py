"""09 tensor parallel: a Llama-shaped decoder, sharded over two ranks by torch's own API; a step is one super kernel.

    python examples/09_tensor_parallel.py                                   starts its two ranks itself
    torchrun --nproc-per-node 2 examples/09_tensor_parallel.py              the same, started by torchrun

    1. eager       one process writes tokens with the whole model
    2. shard       parallelize_module: heads and the inner width are divided between the ranks, so are the logits
    3. compile     backend="superkernel": the all_reduces and the all_gather are ops of the super kernel of a step
    4. check       every rank has written the same tokens as the whole model

Weights are random; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.run import main as torchrun
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from superkernel.frontend.report import CompileReport, collecting

RANKS = 2
PROMPT = (1, 17, 42, 7)


@dataclass(frozen=True)
class Config:
    width: int = 256
    layers: int = 4
    heads: int = 4
    vocabulary: int = 1024
    room: int = 128  # tokens in the cache

    @property
    def head(self) -> int:
        return self.width // self.heads


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x: Tensor, position: Tensor) -> Tensor:
    """Rotary position embedding."""
    size = x.shape[-1]
    angles = position * 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.cat((angles, angles))
    left, right = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-right, left), dim=-1) * angles.sin()


class Layer(nn.Module):
    """Attention over a cache of the heads that this rank has, then a gated feed-forward network."""

    keys: Tensor
    values: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner = config.width, 2 * config.width
        self.head = config.head
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.first, self.second = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.make_caches(config, 1)

    def make_caches(self, config: Config, ranks: int) -> None:
        shape = (1, config.heads // ranks, config.room, config.head)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        def heads(rows: Tensor) -> Tensor:
            return rows.view(1, 1, -1, self.head).transpose(1, 2)

        normal = self.first(x)
        self.keys.index_copy_(2, position, rotated(heads(self.key(normal)), position))
        self.values.index_copy_(2, position, heads(self.value(normal)))
        query = rotated(heads(self.query(normal)), position)
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, -1))
        normal = self.second(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Decoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.room = config.room
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RootMeanSquareNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """The logits of the token that follows `token`, which stands at `position`."""
        mask = (torch.arange(self.room) <= position).view(1, 1, 1, -1)
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.head(self.norm(x))


def model_of(config: Config) -> Decoder:
    """The same weights on every rank."""
    torch.manual_seed(0)
    model = Decoder(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 0.2)  # or random weights say the same token for ever
    return model


def shard(model: Decoder, config: Config, ranks: int) -> None:
    """As torch's tutorial of tensor parallelism does it; a rank keeps its part of the weights."""
    mesh = init_device_mesh("cpu", (ranks,))
    columns = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
    rows = {name: RowwiseParallel() for name in ("out", "down")}
    for layer in model.layers:
        assert isinstance(layer, Layer)
        parallelize_module(layer, mesh, {**columns, **rows})
        layer.make_caches(config, ranks)
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


def write(step: nn.Module, count: int) -> list[int]:
    """Reads the prompt token by token, then writes `count` tokens."""
    tokens = list(PROMPT)
    for position in range(len(PROMPT) + count - 1):
        logits = step(torch.tensor([[tokens[position]]]), torch.tensor([position]))
        if position >= len(PROMPT) - 1:
            tokens.append(int(logits.argmax()))
    return tokens[len(PROMPT) :]


def check(found: list[int], expected: list[int], report: CompileReport) -> list[str]:
    """What is wrong with the tokens and with the compiled step; nothing, if all is well."""
    segments = [segment for scope in report.scopes for segment in scope.segments]
    wrong = []
    if found != expected:
        wrong.append(f"the ranks wrote {found}, one process {expected}")
    if len(set(expected)) < 4:
        wrong.append("the tokens hardly change: this shows nothing")
    if len(segments) != 1 or any(scope.unfusible for scope in report.scopes):
        wrong.append(f"a step is {len(segments)} segments, and torch runs ops between them:\n{report}")
    return wrong


def run_rank(config: Config, steps: int) -> int:
    """What each rank does; the first one prints."""
    dist.init_process_group("gloo")
    ranks, is_first = dist.get_world_size(), dist.get_rank() == 0
    model = model_of(config)
    expected = write(model, steps)
    shard(model, config, ranks)
    with collecting() as report:
        found = write(torch.compile(model, backend="superkernel", fullgraph=True, dynamic=False), steps)
    wrong = check(found, expected, report)
    if is_first:
        segments = [segment for scope in report.scopes for segment in scope.segments]
        print(f"1. one process, eager: {' '.join(map(str, expected[:12]))} ...")
        print(f"2. {ranks} ranks of {torch.get_num_threads()} thread(s), each with {config.heads // ranks} heads")
        collectives = [collective for segment in segments for collective in segment.collectives]
        print(f"3. a step: {len(segments)} super kernel, {len(collectives)} collectives in it")
    dist.destroy_process_group()
    if wrong:
        print(f"execute sample failed: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    if is_first:
        print(f"4. checked: {len(found)} tokens, the same as one process writes")
        print("execute sample success")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=Config.width, help="hidden size")
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--steps", type=int, default=32)
    asked = parser.parse_args()
    if "RANK" not in os.environ:  # not started by torchrun
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // RANKS)))
        torchrun(["--standalone", "--nproc-per-node", str(RANKS), __file__, *sys.argv[1:]])  # raises if a rank fails
        return 0
    with torch.no_grad():
        return run_rank(Config(asked.width, asked.layers), asked.steps)


if __name__ == "__main__":
    sys.exit(main())
