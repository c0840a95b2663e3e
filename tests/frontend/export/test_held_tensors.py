"""Tensors that are written in place are states, wherever the model holds them, and however many names they have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import superkernel as sk
from superkernel.errors import UnsupportedError


class Cache:
    """As model libraries have it: no module."""

    def __init__(self) -> None:
        self.bias = torch.full((3,), 5.0)
        self.rows = torch.zeros(3)
        self.count = torch.zeros((), dtype=torch.int64)
        self.registered = torch.zeros(3)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x
        return self.total * 2


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache, self.sums = Cache(), [torch.ones(3)]  # torch.export doubles and counts for real while it traces
        self.register_buffer("registered", self.cache.registered, persistent=False)
        self.layer = self.same_layer = Layer()

    def put(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.cache.rows.add_(x)
        self.cache.count.add_(1)
        self.sums[0].mul_(2)
        self.sums[0].add_(x.sum())
        self.cache.registered.mul_(2).add_(x)
        return self.cache.rows * self.cache.count, self.registered + 1, self.layer(x) + self.same_layer(x)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.bias * x, self.cache.rows + self.sums[0] + self.registered


def test_tensors_that_are_written_are_states_of_all_entries(tmp_path: Path) -> None:
    x, model, eager = torch.tensor([1.0, 2.0, 3.0]), Held(), Held()
    path = sk.export(model, {"put": (x,), "read": (x,)}, tmp_path / "held.sk", cores=1)
    assert model.cache.count == 0 and model.sums[0].tolist() == [1, 1, 1], "the model is as before"
    with sk.load_model(path) as loaded:
        assert set(loaded.states) == {"cache.rows", "cache.count", "sums[0]", "registered", "layer.total"}
        for _ in range(3):
            assert all(map(torch.equal, loaded.put(x), eager.put(x)))
            assert all(map(torch.equal, loaded.read(x), eager.read(x)))


@pytest.mark.parametrize(("made", "exported"), [(True, False), (False, True)])
def test_inference_mode_changes_nothing(tmp_path: Path, made: bool, exported: bool) -> None:
    """Tensors made in it cannot be written outside of it."""
    x = torch.ones(3)
    with torch.inference_mode(made):
        model = Layer()
        model.scale = nn.Parameter(torch.ones(3))
    with torch.inference_mode(exported):
        path = sk.export(model, (x,), tmp_path / "x.sk", cores=1)
    with sk.load_model(path) as loaded:
        assert [loaded(x).tolist() for _ in range(2)] == [[2, 2, 2], [4, 4, 4]]


class Assigned(nn.Module):
    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache = cache
        self.register_buffer("rows", cache.rows)

    def forward(self, x: Tensor) -> Tensor:
        self.rows = self.rows + x
        return self.cache.rows + 1


def test_a_buffer_with_two_names_is_not_assigned(tmp_path: Path) -> None:
    """The other name would keep the old value."""
    with pytest.raises(UnsupportedError, match=r"its buffer 'rows', which shares memory with another tensor .*copy_"):
        sk.export(Assigned(Cache()), (torch.ones(3),), tmp_path / "x.sk")


HELD, OTHER = torch.zeros(3), torch.ones(3)


class Global(nn.Module):
    def put(self, x: Tensor) -> Tensor:
        return HELD.add_(x) * 2

    def read(self, x: Tensor) -> Tensor:
        return OTHER * x + HELD


def test_a_tensor_outside_of_the_model_is_no_state_of_several_entries(tmp_path: Path) -> None:
    x = torch.ones(3)
    with pytest.raises(UnsupportedError, match=r"entries 'put', 'read': .* that is no buffer.*with register_buffer"):
        sk.export(Global(), {"put": (x,), "read": (x,)}, tmp_path / "x.sk")


class Linked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "seen", "start"):
            self.register_buffer(name, torch.zeros(3))

    def link(self, x: Tensor) -> Tensor:
        self.seen = self.total
        return x + 1

    def begin(self, x: Tensor) -> Tensor:
        self.total = self.start
        return x + 1

    def add(self, x: Tensor) -> Tensor:
        self.total = self.total + x
        return self.seen * 2

    def write(self, x: Tensor) -> Tensor:
        self.total += x
        return self.seen * 2


def test_a_buffer_that_becomes_a_state_is_refused(tmp_path: Path) -> None:
    """A later write to one of them would change both."""
    x = torch.ones(3)
    with pytest.raises(
        UnsupportedError, match=r"entry 'link': .* assigns 'total', .* to its buffer 'seen'.*\.clone\(\)"
    ):
        sk.export(Linked(), {"link": (x,), "write": (x,)}, tmp_path / "x.sk")
    model, eager = Linked(), Linked()
    with sk.load_model(sk.export(model, {"begin": (x,), "add": (x,)}, tmp_path / "y.sk", cores=1)) as loaded:
        for entry in ("add", "add", "begin", "add"):
            assert torch.equal(getattr(loaded, entry)(x), getattr(eager, entry)(x))
        assert torch.equal(torch.from_numpy(loaded.save_state()["total"]), eager.total)


class Joined(nn.Module):
    """Buffers become one memory, or other buffers."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("left", "right"):
            self.register_buffer(name, torch.zeros(3))
        self.register_buffer("rows", torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(3))
        self.held = torch.ones(3)

    def join(self, x: Tensor) -> Tensor:
        self.left = self.right = x * 2
        return x + 1

    def view(self, x: Tensor) -> Tensor:
        self.rows = torch.cat([x, x[:1]])
        self.left = self.rows[1:]
        return x + 1

    def take(self, x: Tensor) -> Tensor:
        self.left = self.right
        return x + 1

    def widen(self, x: Tensor) -> Tensor:
        self.left = x[:1].expand(3)
        return x + 1

    def write(self, x: Tensor) -> Tensor:
        self.left += x
        return self.right * 1

    def write_one(self, x: Tensor) -> Tensor:
        self.left[0] += 1
        return self.left * 1

    def write_and_join(self, x: Tensor) -> Tensor:
        self.left += x
        before = self.right * 1
        self.left = self.right = x * 2
        return before

    def exchange(self, x: Tensor) -> Tensor:
        self.left, self.right = self.right, self.rows[1:]
        return x + 1

    def hold(self, x: Tensor) -> Tensor:
        self.left, self.right = self.right, self.held.view(3)
        return x + 1

    def write_held(self, x: Tensor) -> Tensor:
        self.held += x
        return self.right * 1

    def scale_of(self, x: Tensor) -> Tensor:
        self.left = self.scale.detach()
        return x + 1

    def split(self, x: Tensor) -> Tensor:
        self.left, self.right = torch.cat([x, x * 2]).chunk(2)
        return x + 1

    def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.left = self.left + x
        return self.left * 1, self.right * 1

    def scales(self, x: Tensor) -> Tensor:
        self.scale = nn.Parameter(self.scale * 2)
        return self.scale * x

    def data(self, x: Tensor) -> Tensor:
        self.left.data = x * 2
        return self.left * 1

    def registers(self, x: Tensor) -> Tensor:
        self.register_buffer("new", x * 2)
        return self.new + 1

    def forward(self, x: Tensor) -> Tensor:
        before = self.left + x
        self.left = None
        return before


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ("join", "write"),
            r"entry 'join': .* assigns one memory to its buffers 'left' and 'right', and entry 'write'",
        ),
        (("view", "write"), r"one memory to its buffers 'left' and 'rows', and entry 'write' writes into 'left' in pl"),
        (("take", "write"), r"'right', or a view of it, to its buffer 'left', and entry 'write' .*\.clone\(\)"),
        (
            ("widen", "write_one"),
            r"elements that are one memory, as of expand\(\), to its buffer 'left', and entry 'wr",
        ),
        (("write_and_join",), r"entry 'write_and_join': .* and entry 'write_and_join' writes into 'left' in place"),
        (
            ("exchange", "write"),
            r"'rows', or a view of it, to its buffer 'right', and entry 'write' .* 'left' in place, wh",
        ),
        (("hold", "write_held"), r"'held', or a view of it, to its buffer 'right', and entry 'write_held' writes"),
        (
            ("scale_of", "write"),
            r"'scale', or a view of it, to its buffer 'left', and entry 'write' writes into 'left'",
        ),
        (("scales",), r"assigns a new parameter to 'scale', and a package keeps the first one: make it a buffer"),
        (("data",), r"gives its buffer 'left' other memory, as with .data = or set_\(\): write into it with copy_"),
        (("registers",), r"the call registers the buffer 'new': register it before, in __init__"),
        (("forward",), r"assigns None, or a tensor .* to a buffer \(.*self.left = None\): .* write into the buffer"),
    ],
)
def test_buffers_that_become_others_are_refused(tmp_path: Path, entries: tuple[str, ...], message: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(UnsupportedError, match=message):
        sk.export(Joined(), {entry: (x,) for entry in entries}, tmp_path / "x.sk")


@pytest.mark.parametrize(("assigning", "other"), [("join", "step"), ("split", "write")])
def test_buffers_of_one_memory_that_is_not_written_are_states(tmp_path: Path, assigning: str, other: str) -> None:
    """As where both are only assigned, or are parts of one tensor."""
    x, eager = torch.tensor([1.0, 2.0, 3.0]), Joined()
    with sk.load_model(sk.export(Joined(), {assigning: (x,), other: (x,)}, tmp_path / "x.sk", cores=1)) as loaded:
        for entry in (other, assigning, other, other, assigning, other):
            expected, found = getattr(eager, entry)(x), getattr(loaded, entry)(x)
            pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
            assert all(torch.equal(*pair) for pair in pairs)
        saved = loaded.save_state()
    assert all(
        torch.equal(torch.from_numpy(saved[name]), buffer) for name, buffer in eager.named_buffers() if name in saved
    )


def test_a_tensor_of_the_file_is_after_an_export_as_it_was_before(tmp_path: Path) -> None:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            OTHER.mul_(2).add_(1)
            return OTHER * x

    x = torch.ones(3)
    with sk.load_model(sk.export(Doubling(), (x,), tmp_path / "x.sk", cores=1)) as loaded:
        assert OTHER.tolist() == [1, 1, 1]
        assert [loaded(x)[0].item() for _ in range(2)] == [3, 7]
