"""Random programs: a seed in, the text of a function and the shapes of its inputs out.

Every statement is run while the program is written, so that the next one knows shapes, dtypes and sizes of values. A
value remembers whether it is exact: what comes out of rounded arithmetic is never compared, sorted or cut to integers,
where the last bit would decide.
"""

from __future__ import annotations

import linecache
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

import torch
from conformance.checks import Case

from superkernel import super_kernel

FLOATS = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32)
_LARGE = ((2, 6000), (6000,), (20000,), (3, 2100), (1100, 3), (2, 3, 1000), (64, 65))
_MOST = 60.0  # larger values are not kept: errors would grow with them


@dataclass(frozen=True)
class Layout:
    """How an input lies in memory: contiguous, or a piece of something larger, or turned."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "plain"  # plain, turned, step, expanded
    of: str = ""  # another input whose memory it looks at

    def make(self, source: torch.Generator) -> torch.Tensor:
        if self.kind == "turned":
            return _values(self.shape[::-1], self.dtype, source).permute(*reversed(range(len(self.shape))))
        if self.kind == "step":
            wide = _values((*self.shape[:-1], 2 * self.shape[-1] + 1), self.dtype, source)
            return wide[..., 1::2]
        if self.kind == "expanded":
            return _values((1, *self.shape[1:]), self.dtype, source).expand(self.shape)
        return _values(self.shape, self.dtype, source)


def _values(shape: Sequence[int], dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    """Eighths between -2 and 2: no rounding when they are cast to any of the dtypes, and few ties at borders."""
    eighths = torch.randint(-16, 17, tuple(shape), generator=source)
    if dtype is torch.bool:
        return eighths > 0
    if not dtype.is_floating_point:
        return (eighths % 5).to(dtype)
    return (eighths / 8).to(dtype)


@dataclass
class Value:
    """A name of the program."""

    name: str
    tensor: torch.Tensor
    exact: bool
    is_input: bool = False
    may_write: bool = True


@dataclass
class Program:
    seed: int
    inputs: dict[str, Layout]
    text: str
    coarse: bool  # computes in half precision

    @property
    def name(self) -> str:
        return f"program{self.seed}"

    def case(self) -> Case:
        return Case(self.name, load(self), self.arguments, tolerance=2e-2 if self.coarse else 2e-4)

    def arguments(self, seed: int) -> tuple[Sequence[Any], dict[str, Any]]:
        return make_inputs(self.inputs, seed), {}


def make_inputs(layouts: dict[str, Layout], seed: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for name, layout in layouts.items():
        made[name] = made[layout.of].flatten()[:] if layout.of else layout.make(source)
    return list(made.values())


def load(program: Program) -> Callable[..., Any]:
    """The function of a program; its text can be found by what looks for source lines."""
    file = f"<{program.name}>"
    linecache.cache[file] = (len(program.text), None, program.text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"torch": torch, "super_kernel": super_kernel}
    exec(compile(program.text, file, "exec"), scope)
    return scope["program"]  # type: ignore[no-any-return]


class Rejected(Exception):
    """The statement does not fit; another is tried."""


@dataclass
class _Writer:
    """Writes one program."""

    seed: int
    choose: random.Random
    values: list[Value] = field(default_factory=list)
    count: int = 0

    # what to take

    def any(self, accept: Callable[[Value], bool] = lambda value: True) -> Value:
        fitting = [value for value in self.values if accept(value)]
        if not fitting:
            raise Rejected
        # the newer, the likelier: programs shall be deep
        return self.choose.choices(fitting, weights=range(1, len(fitting) + 1))[0]

    def float(self) -> Value:
        return self.any(lambda value: value.tensor.is_floating_point())

    def single(self) -> Value:
        """float32 or float64, where long sums are not coarse."""
        return self.any(lambda value: value.tensor.dtype in (torch.float32, torch.float64))

    def exact(self) -> Value:
        return self.any(lambda value: value.exact)

    def ranked(self, least: int, most: int = 9) -> Value:
        return self.any(lambda value: least <= value.tensor.dim() <= most and value.tensor.is_floating_point())

    def dim(self, value: Value) -> int:
        if value.tensor.dim() == 0:
            raise Rejected
        return self.choose.randrange(-value.tensor.dim(), value.tensor.dim())

    def partner(self, value: Value) -> str:
        """Something that can be combined with the value: a number, or a tensor that broadcasts."""
        if self.choose.random() < 0.2:
            return self.choose.choice(["2", "0.5", "-1.5", "3"])
        shape = value.tensor.shape
        return self.any(lambda other: _broadcasts(shape, other.tensor.shape)).name


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return len(other) <= len(one) and all(b in (1, a) for a, b in pairs)


@dataclass(frozen=True)
class _Statement:
    """An expression, or a statement without a result that writes `wrote`."""

    text: str
    exact: bool = False
    wrote: Value | None = None


_UNARY = ("{x}.neg()", "{x}.abs()", "torch.relu({x})", "torch.clamp({x}, -1, 1)")
_SMOOTH = (
    "torch.tanh({x})",
    "torch.sigmoid({x})",
    "torch.nn.functional.gelu({x})",
    "torch.nn.functional.silu({x})",
    "torch.exp(-{x}.abs())",
    "torch.rsqrt({x} * {x} + 1)",
    "torch.sqrt({x}.abs() + 1)",
    "torch.log1p({x}.abs())",
    "torch.sin({x})",
    "torch.erf({x})",
    "torch.nn.functional.softplus({x})",
    "{x} / ({x}.abs() + 1)",
    "{x}.square()",
)


def _unary(w: _Writer) -> _Statement:
    x = w.float()
    return _Statement(w.choose.choice(_UNARY).format(x=x.name), x.exact)


def _smooth(w: _Writer) -> _Statement:
    return _Statement(w.choose.choice(_SMOOTH).format(x=w.float().name))


def _binary(w: _Writer) -> _Statement:
    x = w.float()
    word = w.choose.choice(
        ["{x} + {y}", "{x} * {y}", "{x} - {y}", "torch.maximum({x}, {x} * {y})", "torch.lerp({x}, {x} * {y}, 0.25)"]
    )
    return _Statement(word.format(x=x.name, y=w.partner(x)))


def _integer(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dtype is torch.int64)
    word = w.choose.choice(
        [
            "{x} + {y}",
            "{x} * 2 - {y}",
            "{x} // 3",
            "{x} % 5",
            "{x} & 7",
            "torch.div({x}, 2, rounding_mode='floor')",
            "{x}.bitwise_xor(3)",
            "{x}.clamp(0, 3)",
        ]
    )
    y = w.any(lambda v: v.tensor.dtype in (torch.int64, torch.bool) and _broadcasts(x.tensor.shape, v.tensor.shape))
    return _Statement(word.format(x=x.name, y=y.name), True)


def _comparison(w: _Writer) -> _Statement:
    x = w.exact()
    y = w.any(lambda other: other.exact and _broadcasts(x.tensor.shape, other.tensor.shape))
    return _Statement(f"{x.name} {w.choose.choice(['<', '>=', '=='])} {y.name}", True)


def _logical(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dtype is torch.bool)
    word = w.choose.choice(
        ["~{x}", "{x}.any()", "{x}.all()", "{x}.logical_or({x}.any())", "{x}.sum()", "{x}.to(torch.int64)"]
    )
    return _Statement(word.format(x=x.name), True)


def _where(w: _Writer) -> _Statement:
    x = w.float()
    mask = w.any(lambda v: v.tensor.dtype is torch.bool and _broadcasts(x.tensor.shape, v.tensor.shape))
    word = w.choose.choice(["torch.where({m}, {x}, {y})", "{x}.masked_fill({m}, 0.5)"])
    return _Statement(word.format(m=mask.name, x=x.name, y=w.partner(x)))


def _sum(w: _Writer) -> _Statement:
    x = w.float()
    keep = w.choose.choice(["", ", keepdim=True"])
    n = x.tensor.dim()
    if w.choose.random() < 0.3 or n == 0:
        word = w.choose.choice(
            [
                "{x}.mean()",
                "{x}.sum() * 0.01",
                "{x}.float().var()",
                "{x}.float().std(correction=0)",
                "{x}.float().norm() * 0.1",
                "{x}.abs().amax()",
            ]
        )
        return _Statement(word.format(x=x.name))
    dims = f"({w.dim(x)},)" if n == 1 or w.choose.random() < 0.7 else "(0, -1)" if n > 1 else "0"
    word = w.choose.choice(
        [
            "{x}.mean({d}{k})",
            "({x} * 0.1).sum({d}{k})",
            "{x}.float().var({d}, correction=0{k})",
            "torch.logsumexp({x}.float(), {d}{k})",
        ]
    )
    return _Statement(word.format(x=x.name, d=dims, k=keep))


def _extreme(w: _Writer) -> _Statement:
    x = w.exact()
    if x.tensor.dtype is torch.bool:
        raise Rejected
    if x.tensor.dim() == 0 or w.choose.random() < 0.3:
        return _Statement(f"{x.name}.{w.choose.choice(['amax', 'amin'])}()", True)
    dim = w.dim(x)
    word = w.choose.choice(
        [
            "{x}.amax({d})",
            "{x}.amin({d}, keepdim=True)",
            "{x}.argmax({d})",
            "{x}.argmin({d}, keepdim=True)",
            "{x}.max({d}).values",
            "{x}.argmax()",
        ]
    )
    return _Statement(word.format(x=x.name, d=dim), True)


def _integer_sum(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dtype in (torch.int64, torch.bool))
    word = w.choose.choice(["{x}.sum()", "{x}.sum({d})", "{x}.prod({d})", "{x}.any({d})", "{x}.amax({d})"])
    return _Statement(word.format(x=x.name, d=w.dim(x)), True)


def _softmax(w: _Writer) -> _Statement:
    x = w.ranked(1)
    word = w.choose.choice(["torch.softmax({x}, {d})", "torch.log_softmax({x}, {d})"])
    return _Statement(word.format(x=x.name, d=w.dim(x)))


def _norm(w: _Writer) -> _Statement:
    x = w.ranked(1)
    size = x.tensor.shape[-1]
    word = w.choose.choice(
        [
            "torch.nn.functional.layer_norm({x}, ({n},), eps=0.1)",
            "torch.nn.functional.rms_norm({x}, ({n},), eps=0.1)",
            "{x} * torch.rsqrt({x}.float().pow(2).mean(-1, keepdim=True) + 0.1)",
        ]
    )
    return _Statement(word.format(x=x.name, n=size))


def _matmul(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dtype is torch.float32 and 1 <= value.tensor.dim() <= 3)
    inner = x.tensor.shape[-1]
    if inner > 128 or x.tensor.numel() > 5000:
        raise Rejected

    def fits(other: Value) -> bool:
        shape = other.tensor.shape
        same = len(shape) == 2 or shape[:-2] == x.tensor.shape[:-2]
        return other.tensor.dtype is torch.float32 and len(shape) in (2, 3) and same and inner in shape[-2:]

    y = w.any(fits)
    right = y.name if y.tensor.shape[-2] == inner else f"{y.name}.transpose(-1, -2)"
    if x.tensor.dim() == 2 and y.tensor.dim() == 2:
        bias = w.any(lambda value: value.tensor.dtype is torch.float32)
        word = w.choose.choice(
            ["torch.mm({x}, {y}) * 0.2", "torch.addmm({b}, {x}, {y}, alpha=0.2)", "({x} @ {y}) * 0.2"]
        )
        return _Statement(word.format(x=x.name, y=right, b=bias.name))
    return _Statement(f"torch.matmul({x.name}, {right}) * 0.2")


def _look(w: _Writer) -> _Statement:
    """Another look at the same memory."""
    x = w.any()
    n, shape = x.tensor.dim(), tuple(x.tensor.shape)
    words = ["{x}.flatten()", "{x}.unsqueeze(0)", "{x}[None]", "{x}.squeeze()", "{x}.reshape(-1)"]
    if n >= 1:
        d = w.dim(x)
        start = w.choose.randrange(max(1, shape[d]))
        words += [
            f"{{x}}.narrow({d}, {start}, {max(0, shape[d] - start)})",
            "{x}[::2]",
            "{x}[-1]",
            "{x}[:1]",
            "{x}[1:]",
        ]
        words += [f"{{x}}.unsqueeze(-1).expand({', '.join('-1' for _ in shape)}, 3)", f"{{x}}.select({d}, 0)"]
    if n >= 2:
        order = list(range(n))
        w.choose.shuffle(order)
        words += [
            "{x}.transpose(0, -1)",
            "{x}.mT",
            f"{{x}}.permute({', '.join(map(str, order))})",
            "{x}[:, 1:]",
            "{x}[..., ::2]",
        ]
        words += ["{x}.diagonal(0, 0, 1)", "{x}.flatten(0, 1)", "{x}.t() if {x}.dim() == 2 else {x}"]
    return _Statement(w.choose.choice(words).format(x=x.name), x.exact)


def _copy(w: _Writer) -> _Statement:
    x = w.any()
    word = w.choose.choice(
        [
            "{x}.clone()",
            "{x}.contiguous()",
            "{x}.flip(0) if {x}.dim() else {x}.clone()",
            "torch.roll({x}, 1)",
            "{x}.repeat_interleave(2)[:200]",
        ]
    )
    return _Statement(word.format(x=x.name), x.exact)


def _join(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dim() >= 1)
    y = w.any(lambda other: other.tensor.shape == x.tensor.shape and other.tensor.dtype == x.tensor.dtype)
    d = w.dim(x)
    word = w.choose.choice(
        ["torch.cat([{x}, {y}], {d})", "torch.stack([{x}, {y}], {d})", "torch.cat([{y}, {x}, {y}], {d})"]
    )
    return _Statement(word.format(x=x.name, y=y.name, d=d), x.exact and y.exact)


def _split(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dim() >= 1 and value.tensor.shape[0] >= 2)
    word = w.choose.choice(["torch.split({x}, {h})[1]", "torch.chunk({x}, 2)[0]", "{x}.unbind(0)[1]"])
    return _Statement(word.format(x=x.name, h=(x.tensor.shape[0] + 1) // 2), x.exact)


def _gather(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.tensor.dim() >= 1 and value.tensor.numel() > 0)
    index = w.any(lambda value: value.tensor.dtype is torch.int64 and value.tensor.numel() > 0)
    d = w.dim(x)
    size = x.tensor.shape[d]
    within = f"({index.name} % {size})"
    words = [
        f"{{x}}.index_select({d}, {within}.reshape(-1)[:9])",
        f"{{x}}[{within}.reshape(-1)[:7] % {x.tensor.shape[0]}]",
    ]
    if x.tensor.shape == index.tensor.shape:
        words += [f"{{x}}.gather({d}, {within})", f"torch.take_along_dim({{x}}, {within}, {d})"]
    if x.tensor.dim() == 2:
        words += [f"torch.nn.functional.embedding({index.name} % {x.tensor.shape[0]}, {{x}})"]
    return _Statement(w.choose.choice(words).format(x=x.name), x.exact)


def _scatter(w: _Writer) -> _Statement:
    """Written without ties: the order in which equal places are written is nobody's promise."""
    x = w.any(
        lambda value: value.tensor.dim() == 1 and 1 <= value.tensor.numel() <= 64 and value.tensor.is_floating_point()
    )
    n = x.tensor.numel()
    words = [
        f"torch.zeros({n + 3}, dtype={{x}}.dtype).scatter(0, torch.arange({n}).flip(0), {{x}})",
        f"torch.zeros({n + 3}, dtype={{x}}.dtype).index_add(0, torch.arange({n}) + 2, {{x}})",
        f"{{x}}.index_put((torch.arange({n}).roll(1),), {{x}} * 2, accumulate=True)",
    ]
    return _Statement(w.choose.choice(words).format(x=x.name))


def _cast(w: _Writer) -> _Statement:
    x = w.any()
    if x.exact and w.choose.random() < 0.4:
        return _Statement(f"{x.name}.to({w.choose.choice([torch.int64, torch.bool, torch.int32])})", True)
    dtype = w.choose.choice(FLOATS)
    return _Statement(
        f"{x.name}.to({dtype})", x.exact and x.tensor.dtype in (torch.bool, torch.float32, torch.bfloat16)
    )


def _library(w: _Writer) -> _Statement:
    """What no sub-kernel stands for: it ends a segment."""
    x = w.any(lambda value: value.exact and value.tensor.dim() >= 1 and value.tensor.dtype is not torch.bool)
    d = w.dim(x)
    n = x.tensor.shape[d]
    word = w.choose.choice(
        [
            "torch.sort({x}, {d}).values",
            "torch.topk({x}, {k}, {d}).values",
            "torch.cumsum({x}, {d}) * 0.125",
            "torch.cummax({x}, {d}).values",
        ]
    )
    if n == 0:
        raise Rejected
    return _Statement(word.format(x=x.name, d=d, k=min(3, n)), "cumsum" not in word)


def _in_place(w: _Writer) -> _Statement:
    x = w.any(lambda value: value.may_write and value.tensor.is_floating_point())
    words = [
        "{x}.mul_({y})",
        "{x}.add_({y})",
        "{x}.tanh_()",
        "{x}.clamp_(-1, 1)",
        "{x}.copy_({x} * 0.5 + 1)",
        "{x}.zero_()",
        "{x}.fill_(0.25)",
        "{x}.relu_()",
    ]
    if x.tensor.dim() >= 1 and x.tensor.shape[0] >= 2:
        words += ["{x}[1:].mul_(0.5)", "{x}[0] = 0.5", "{x}[::2].add_({x}[1])", "{x}[:1].copy_({x}[-1:])"]
    y = w.partner(x)
    if any(other.name == y and _memory(other) == _memory(x) and other is not x for other in w.values):
        raise Rejected  # reading what is being written
    return _Statement(w.choose.choice(words).format(x=x.name, y=y), wrote=x)


def _memory(value: Value) -> int:
    return value.tensor.untyped_storage().data_ptr()


def _create(w: _Writer) -> _Statement:
    x = w.any()
    shape = tuple(x.tensor.shape)
    word = w.choose.choice(
        [
            "torch.zeros({s})",
            "torch.ones({s}, dtype=torch.float64)",
            "torch.full({s}, 0.75)",
            "torch.arange(12).reshape(3, 4)",
            "torch.eye(4)",
            "torch.tensor([1.0, 2.0, 4.0])",
            "{x}.new_full({s}, 1)",
        ]
    )
    return _Statement(word.format(s=shape, x=x.name), True)


_KINDS: tuple[tuple[Callable[[_Writer], _Statement], int], ...] = (
    (_unary, 3),
    (_smooth, 6),
    (_binary, 8),
    (_integer, 2),
    (_comparison, 2),
    (_logical, 2),
    (_where, 3),
    (_sum, 6),
    (_extreme, 3),
    (_integer_sum, 2),
    (_softmax, 3),
    (_norm, 3),
    (_matmul, 5),
    (_look, 8),
    (_copy, 2),
    (_join, 3),
    (_split, 2),
    (_gather, 4),
    (_scatter, 1),
    (_cast, 4),
    (_library, 2),
    (_in_place, 5),
    (_create, 1),
)


def write(seed: int, choose: random.Random | None = None) -> Program:
    """The program of a seed, or of somebody else's choices."""
    choose = choose or random.Random(seed)
    inputs = _inputs(choose)
    writer = _Writer(seed, choose)
    tensors = make_inputs(inputs, 0)
    for name, tensor in zip(inputs, tensors, strict=True):
        own = inputs[name].kind != "expanded"
        writer.values.append(Value(name, tensor, True, is_input=True, may_write=own))
    lines = [line for _ in range(choose.randint(3, 12)) if (line := _line(writer))]
    results = _results(writer, lines)
    body = [*_scoped(lines, choose), f"return {', '.join(results)}"]
    text = f"def program({', '.join(inputs)}):\n" + indent("\n".join(body), "    ") + "\n"
    halves = (torch.bfloat16, torch.float16)
    return Program(seed, inputs, text, any(value.tensor.dtype in halves for value in writer.values))


def _inputs(choose: random.Random) -> dict[str, Layout]:
    """Two to four inputs, most of them of shapes that go together."""
    rank = choose.choice([0, 1, 2, 2, 2, 3])
    shape = choose.choice(_LARGE) if choose.random() < 0.25 else tuple(choose.choice(_SIZES) for _ in range(rank))
    if shape and choose.random() < 0.05:
        shape = (*shape[:-1], 0)
    found: dict[str, Layout] = {}
    for number in range(choose.randint(2, 4)):
        own = choose.choice([shape, shape, shape[-1:], shape[::-1], (*shape[:-1], 1) if shape else ()])
        dtype = choose.choice([*FLOATS, torch.float32, torch.float32, torch.int64, torch.bool])
        if number == 0:
            own, dtype = shape, torch.float32
        kinds = ["plain"] * 5 + (["turned", "step"] if own else []) + (["expanded"] if len(own) > 1 else [])
        found[f"a{number}"] = Layout(own, dtype, choose.choice(kinds))
    if choose.random() < 0.05 and found["a0"].kind == "plain":
        found["twin"] = Layout((), torch.float32, of="a0")
    return found


def _line(writer: _Writer) -> str | None:
    """One more statement that runs; None if none was found in some attempts."""
    kinds, weights = zip(*_KINDS, strict=True)
    for _ in range(8):
        try:
            statement = writer.choose.choices(kinds, weights=weights)[0](writer)
            return _run(writer, statement)
        except Rejected:
            continue
    return None


def _run(writer: _Writer, statement: _Statement) -> str:
    """Run it on the values; refuse what fails, is not finite, or is large."""
    scope: dict[str, Any] = {"torch": torch, **{value.name: value.tensor for value in writer.values}}
    if statement.wrote is not None:
        kept = statement.wrote.tensor.clone()
        try:
            exec(statement.text, scope)
        except RuntimeError as reason:
            raise Rejected from reason
        if not _tame(statement.wrote.tensor):
            statement.wrote.tensor.copy_(kept)
            raise Rejected
        _taint(writer, statement.wrote)
        return statement.text
    try:
        made = eval(statement.text, scope)
    except (RuntimeError, IndexError, TypeError) as reason:
        raise Rejected from reason
    if not isinstance(made, torch.Tensor) or not _tame(made) or made.numel() > 40000 or made.dim() > 4:
        raise Rejected
    name = f"t{writer.count}"
    writer.count += 1
    expanded = 0 in made.stride() and made.numel() > 1
    writer.values.append(Value(name, made, statement.exact, may_write=not expanded))
    return f"{name} = {statement.text}"


def _taint(writer: _Writer, written: Value) -> None:
    """Whatever shares memory with it is no longer exact."""
    for value in writer.values:
        if _memory(value) == _memory(written):
            value.exact = False


def _tame(tensor: torch.Tensor) -> bool:
    if tensor.dtype is torch.bool or tensor.numel() == 0:
        return True
    return bool(torch.isfinite(tensor).all()) and float(tensor.abs().max()) <= _MOST


def _results(writer: _Writer, lines: Sequence[str]) -> list[str]:
    """What no statement uses, so that nothing is computed in vain; others; sometimes an input, or one twice."""
    choose = writer.choose
    made = [value.name for value in writer.values if not value.is_input]
    used = Counter(word for line in lines for word in re.findall(r"\bt\d+", line))
    results = [name for name in made if used[name] == 1 or choose.random() < 0.2]
    if choose.random() < 0.15:
        results.append(next(iter(writer.values)).name)
    if results and choose.random() < 0.05:
        results.append(results[0])
    return results or [writer.values[0].name]


def _scoped(lines: list[str], choose: random.Random) -> list[str]:
    """The lines with scopes around some of them."""
    way = choose.choice(["none", "none", "one", "several", "several", "nested", "excluded"])
    if way == "none" or not lines:
        return lines
    if way == "excluded":
        return _around(lines, choose, "None")
    if way == "one":
        return _around(lines, choose, "'first'")
    if way == "nested":
        first, last = sorted((choose.randint(0, len(lines)), choose.randint(0, len(lines))))
        inner = _around(lines[first:last], choose, choose.choice(["'inner'", "None", "'outer'"]))
        return [*lines[:first], *_with("'outer'", inner), *lines[last:]]
    done: list[str] = []
    at = 0
    while at < len(lines):
        length = choose.randint(1, 4)
        piece = lines[at : at + length]
        name = choose.choice(["'first'", "'second'", "'first'", "None", ""])
        done += _with(name, piece) if name else piece
        at += length
    return done


def _around(lines: list[str], choose: random.Random, name: str) -> list[str]:
    first, last = sorted((choose.randint(0, len(lines)), choose.randint(0, len(lines))))
    return [*lines[:first], *_with(name, lines[first:last]), *lines[last:]]


def _with(name: str, lines: list[str]) -> list[str]:
    return [f"with super_kernel({name}):", *(f"    {line}" for line in lines)] if lines else []
