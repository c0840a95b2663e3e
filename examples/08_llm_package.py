"""08 LLM package: a Llama-shaped decoder becomes a package; a C program without torch writes 64 tokens with it.

    1. export      two entries, prefill for prompts of up to 8, 16 or 32 tokens and decode; weights are stored once
    2. build       examples/c/generate.c, with the flags of `superkernel package build-env`
    3. generate    64 tokens in the C program
    4. check       the tokens are those of eager torch

Weights are random; nothing is downloaded. The caches of keys and values are buffers of the model: in the package they
are states, which both entries share and each context has for itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import superkernel as sk
from superkernel.package.library import build_environment
from superkernel.targets.native.toolchain import find_toolchain

PROMPT = (1, 17, 42, 7, 99, 23, 5, 64, 11, 3)
PREFILL_SIZES = (8, 16, 32)
VOCABULARY, ROOM = 1024, 128  # words, and tokens in the cache
HEAD = 48
PROGRAM = Path(__file__).parent / "c" / "generate.c"


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding."""
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = positions[:, None] * torch.cat((frequencies, frequencies))
    left, right = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-right, left), dim=-1) * angles.sin()


class Layer(nn.Module):
    keys: Tensor
    values: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 8 * width // 3, bias=False) for _ in range(2))
        self.down = nn.Linear(8 * width // 3, width, bias=False)
        self.first, self.second = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.register_buffer("keys", torch.zeros(1, heads, ROOM, HEAD))
        self.register_buffer("values", torch.zeros(1, heads, ROOM, HEAD))

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        def heads(rows: Tensor) -> Tensor:
            return rows.view(1, rows.shape[1], -1, HEAD).transpose(1, 2)

        normal = self.first(x)
        self.keys.index_copy_(2, positions, rotated(heads(self.key(normal)), positions))
        self.values.index_copy_(2, positions, heads(self.value(normal)))
        query = rotated(heads(self.query(normal)), positions)
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        normal = self.second(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class LanguageModel(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = RootMeanSquareNorm(width)

    def logits(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """How likely each word is after the `last` of these tokens."""
        mask = torch.arange(ROOM) <= positions[:, None]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions, mask)
        return F.linear(self.norm(x)[0].index_select(0, last), self.embedding.weight)

    def prefill(self, tokens: Tensor, last: Tensor) -> Tensor:
        """Reads a prompt up to its `last` token; the padding behind it fills places that decode overwrites."""
        return self.logits(tokens, torch.arange(tokens.shape[1]), last.reshape(1))

    def decode(self, token: Tensor, position: Tensor) -> Tensor:
        """Reads the token at a position."""
        return self.logits(token, position.reshape(1), torch.zeros(1, dtype=torch.int64))


def model_of(width: int, layers: int) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(width, layers).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 0.2)  # or random weights say the same token for ever
    return model


def export_model(model: LanguageModel, path: Path) -> Path:
    prompts = [(torch.zeros(1, size, dtype=torch.int64), torch.tensor(0)) for size in PREFILL_SIZES]
    step = (torch.zeros(1, 1, dtype=torch.int64), torch.tensor(0))
    return sk.export(model, {"prefill": prompts, "decode": step}, path)


def write_eagerly(model: LanguageModel, steps: int) -> list[int]:
    logits = model.prefill(torch.tensor([PROMPT]), torch.tensor(len(PROMPT) - 1))
    tokens = [int(logits.argmax())]
    for position in range(len(PROMPT), len(PROMPT) + steps - 1):
        logits = model.decode(torch.tensor([[tokens[-1]]]), torch.tensor(position))
        tokens.append(int(logits.argmax()))
    return tokens


def build_program(folder: Path) -> Path:
    environment = build_environment(folder / "superkernel")
    program = folder / "generate"
    flags = [*environment.compile_flags, "-std=c99", "-O2", "-x", "c", str(PROGRAM), "-x", "none"]
    command = [*find_toolchain().cxx, *flags, *environment.link_flags, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def check(found: list[int], expected: list[int]) -> list[str]:
    """What is wrong with the tokens; nothing, if all is well."""
    wrong = []
    if found != expected:
        wrong.append(f"the C program wrote {found}, eager torch {expected}")
    if len(set(expected)) < 4:
        wrong.append("the tokens hardly change: this shows nothing")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192, help=f"hidden size, a multiple of {HEAD}")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--output", type=Path, help="where the package stays; by default it is removed")
    asked = parser.parse_args()
    model = model_of(asked.width, asked.layers)
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        path = export_model(model, asked.output or folder / "llm.sk")
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"1. exported: prefill for {', '.join(map(str, PREFILL_SIZES))} tokens, and decode: {size / 1e6:.1f} MB")
        program = build_program(folder)
        print(f"2. built: {PROGRAM.name}")
        command = [str(program), str(path), str(asked.steps), *map(str, PROMPT)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            print(f"execute sample failed: {ended.stderr}", file=sys.stderr)
            return 1
        found = [int(word) for word in ended.stdout.split()]
        print(f"3. generated: {' '.join(map(str, found[:12]))} ...")
        expected = write_eagerly(model, asked.steps)
    if wrong := check(found, expected):
        print(f"execute sample failed: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    print(f"4. checked: {len(found)} tokens, the same as eager torch writes")
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
