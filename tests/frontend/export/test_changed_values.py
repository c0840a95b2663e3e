"""What a call changes in Python is found wherever it is held, and a model is after an export as it was before."""

from __future__ import annotations

import io
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import count, cycle
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import superkernel as sk
from superkernel.errors import UnsupportedError


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Changing(nn.Module):
    """Every entry changes something that it computes with."""

    of_class = 0

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[int] = []
        self.noted = {"calls": [1]}
        self.unordered: set[int] = set()
        self.ring = deque([1, 2, 3])
        self.pair = (1, 2)
        self.array = np.ones(3, np.float32)
        self.slots = Slots()
        self.count = 0
        self.register_buffer("missing", None)

    def new_attribute(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return x * self.calls

    def first_call(self, x: Tensor) -> Tensor:
        if hasattr(self, "called"):
            return x
        self.called = True
        return x * 2

    def grows(self, x: Tensor) -> Tensor:
        self.listed.append(1)
        return x * len(self.listed)

    def replaced(self, x: Tensor) -> Tensor:
        self.noted = {"calls": [*self.noted["calls"], 1]}
        return x * len(self.noted["calls"])

    def adds(self, x: Tensor) -> Tensor:
        self.unordered.add(len(self.unordered))
        return x * len(self.unordered)

    def rotates(self, x: Tensor) -> Tensor:
        self.ring.rotate()
        return x * self.ring[0]

    def exchanges(self, x: Tensor) -> Tensor:
        self.pair = self.pair[::-1]
        return x * self.pair[0]

    def writes_array(self, x: Tensor) -> Tensor:
        self.array += 1
        return x * float(self.array[0])

    def slot(self, x: Tensor) -> Tensor:
        self.slots.calls += 1
        return x * self.slots.calls

    def class_attribute(self, x: Tensor) -> Tensor:
        Changing.of_class += 1
        return x * self.of_class

    def constant(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * torch.tensor([float(self.count)])

    def first_value(self, x: Tensor) -> Tensor:
        self.missing = x if self.missing is None else self.missing + x
        return self.missing * 2

    def keeps(self, x: Tensor) -> Tensor:
        self.kept = getattr(self, "kept", 0) + x
        return self.kept + 1


def holding(model: Changing) -> Any:
    names = [name for name in vars(model) if not name.startswith("_")]
    held = {name: (id(vars(model)[name]), repr(vars(model)[name])) for name in names if name != "slots"}
    return names, held, model.slots.calls, Changing.of_class, dict(model._buffers)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("new_attribute", r"Python value that calls change: self.calls \(from nothing to 1\)"),
        ("first_call", r"self.called \(from nothing to True\)"),
        ("grows", r"self.listed\[0\] \(from nothing to 1\)"),
        ("replaced", r"self.noted \(from {'calls': \[1\]} to {'calls': \[1, 1\]}\)"),
        ("adds", r"self.unordered \(from set\(\) to \{0\}\)"),
        ("rotates", r"self.ring\[0\] \(from 1 to 3\)"),
        ("exchanges", r"self.pair \(from \(1, 2\) to \(2, 1\)\)"),
        ("writes_array", r"self.array \(from array\(\[1., 1., 1.\]"),
        ("slot", r"self.slots.calls \(from 0 to 1\)"),
        ("class_attribute", r"Changing.of_class \(from 0 to 1\)"),
        ("constant", r"self.count \(from 0 to 1\).*make it a buffer"),
        ("first_value", r"assigns a tensor of float32\[3\] to its buffer 'missing', which is None before"),
        ("keeps", r"assigns a new tensor to self.kept"),
    ],
)
def test_a_value_that_calls_change_is_refused_and_put_back(tmp_path: Path, entry: str, message: str) -> None:
    model = Changing()
    before = holding(model)
    with pytest.raises(UnsupportedError, match=message):
        sk.export(model, {entry: (torch.ones(3),)}, tmp_path / "x.sk")
    assert holding(model) == before


CALLS = 0
SETTINGS = ModuleType("settings_of_the_user")
SETTINGS.calls = 0


def counting(x: Tensor) -> Tensor:
    counting.calls += 1
    return x * counting.calls


counting.calls = 0


def remembering(x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    seen.append(1)
    return x * len(seen)


def numbers() -> Iterator[int]:
    yield from (1, 1, 2)


class Unseen(nn.Module):
    """Every entry changes something that is no attribute of the model, or whose state is in no attribute."""

    of_class = count(1)

    def __init__(self) -> None:
        super().__init__()
        self.counter, self.generator, self.repeated = count(1), numbers(), cycle([1, 1, 2])
        self.random, self.numpy_random = random.Random(0), np.random.default_rng(0)
        self.text, self.raw, self.array = io.StringIO("1\n2\n3\n"), bytearray([1]), np.ones(3, np.float32)
        self.order, self.queue = {"a": 1, "b": 2}, SimpleQueue()
        self.queue.put(1)
        self.queue.put(2)
        self.function = closure()
        self.partial = partial(lambda seen, x: (seen.append(1), x * len(seen))[1], [])

    def counts(self, x: Tensor) -> Tensor:
        return x * next(self.counter)

    def generates(self, x: Tensor) -> Tensor:
        return x * next(self.generator)

    def repeats(self, x: Tensor) -> Tensor:
        return x * next(self.repeated)

    def counts_in_class(self, x: Tensor) -> Tensor:
        return x * next(self.of_class)

    def draws(self, x: Tensor) -> Tensor:
        return x * 2 if self.random.random() < 2 else x

    def draws_with_numpy(self, x: Tensor) -> Tensor:
        return x * float(self.numpy_random.random())

    def draws_from_all(self, x: Tensor) -> Tensor:
        return x * random.randint(1, 2)

    def draws_from_all_of_numpy(self, x: Tensor) -> Tensor:
        return x * np.random.randint(1, 3)

    def reads_text(self, x: Tensor) -> Tensor:
        return x * int(self.text.readline())

    def writes_bytes(self, x: Tensor) -> Tensor:
        self.raw[0] += 1
        return x * self.raw[0]

    def sets_array(self, x: Tensor) -> Tensor:
        self.array[0] = 5
        return x * torch.from_numpy(self.array)

    def orders(self, x: Tensor) -> Tensor:
        key = next(iter(self.order))
        self.order[key] = self.order.pop(key)
        return x * next(iter(self.order.values()))

    def takes(self, x: Tensor) -> Tensor:
        return x * self.queue.get()

    def counts_in_file(self, x: Tensor) -> Tensor:
        global CALLS  # noqa: PLW0603
        CALLS += 1
        return x * CALLS

    def counts_in_import(self, x: Tensor) -> Tensor:
        SETTINGS.calls += 1
        return x * SETTINGS.calls

    def calls_function(self, x: Tensor) -> Tensor:
        return counting(x)

    def calls_with_default(self, x: Tensor) -> Tensor:
        return remembering(x)

    def calls_closure(self, x: Tensor) -> Tensor:
        return self.function(x)

    def calls_partial(self, x: Tensor) -> Tensor:
        return self.partial(x)

    def adds_module(self, x: Tensor) -> Tensor:
        self.add_module(f"layer{len(self._modules)}", nn.Identity())
        return x * len(self._modules)

    def asks_the_process(self, x: Tensor) -> Tensor:
        return x * float(time.perf_counter())


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("counts", r"Python value that calls change: self.counter \(a count, whose state the call changes\)"),
        ("generates", r"self.generator \(a generator, whose state"),
        ("repeats", r"self.repeated \(a cycle"),
        ("counts_in_class", r"Unseen.of_class \(a count"),
        ("draws", r"self.random \(a Random"),
        ("draws_with_numpy", r"self.numpy_random \(a Generator"),
        ("draws_from_all", r"change: random \(a Random"),
        ("draws_from_all_of_numpy", r"change: numpy.random \(a RandomState"),
        ("reads_text", r"self.text \(a StringIO"),
        ("writes_bytes", r"self.raw \(a bytearray"),
        ("sets_array", r"self.array \(from array\(\[1., 1., 1.\]"),
        ("orders", r"self.order \(from the order 'a', 'b' to the order 'b', 'a'\)"),
        ("takes", r"something in Python that is another in each call \(.*return x \* self.queue.get\(\)\)"),
        ("counts_in_file", r"CALLS \(from 0 to 1\)"),
        ("counts_in_import", r"settings_of_the_user.calls \(from 0 to 1\)"),
        ("calls_function", r"counting.calls \(from 0 to 1\)"),
        ("calls_with_default", r"remembering.__defaults__\[0\]\[0\] \(from nothing to 1\)"),
        ("calls_closure", r"calls\[0\] \(from 0 to 1\), last \(from 1 to 2\)"),
        ("calls_partial", r"self.partial\[1\]\[0\] \(from nothing to 1\)"),
        ("adds_module", r"self._modules\['layer0'\] \(from nothing to Identity\(\)\)"),
        ("asks_the_process", r"another in each call \(.*perf_counter.*\), such as the time"),
    ],
)
def test_a_change_that_no_attribute_of_the_model_shows_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    for _ in range(2):  # the first export puts back what can be put back
        with pytest.raises(UnsupportedError, match=message):
            sk.export(Unseen(), {entry: (torch.ones(3),)}, tmp_path / "x.sk")


def test_random_numbers_are_drawn_as_if_there_had_been_no_export(tmp_path: Path) -> None:
    def numbers(model: Unseen) -> list[float]:
        return [random.random(), np.random.rand(), model.random.random(), model.numpy_random.random()]

    random.seed(1)
    np.random.seed(1)
    model = Unseen()
    for entry in ("draws", "draws_with_numpy", "draws_from_all", "draws_from_all_of_numpy"):
        with pytest.raises(UnsupportedError):
            sk.export(model, {entry: (torch.ones(3),)}, tmp_path / "x.sk")
    after = numbers(model)
    random.seed(1)
    np.random.seed(1)
    assert after == numbers(Unseen())


def test_a_dict_that_makes_what_it_gives_is_left_as_it_is(tmp_path: Path) -> None:
    """As the table of activations in transformers does."""

    class Making(OrderedDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(key)()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds = Making(relu=nn.ReLU)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.kinds["relu"](x)
            return found

    model = Model()
    with sk.load_model(sk.export(model, (torch.ones(3),), tmp_path / "x.sk", cores=1)) as loaded:
        assert loaded(-torch.ones(3)).tolist() == [0, 0, 0]
    assert list(OrderedDict.values(model.kinds)) == [nn.ReLU] or isinstance(model.kinds["relu"], nn.ReLU)


@lru_cache
def table(size: int) -> Tensor:
    return torch.arange(size).float()


def test_results_that_are_kept_for_the_next_call_are_no_tensors_of_the_export(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + table(3)

    with sk.load_model(sk.export(Model(), (torch.ones(3),), tmp_path / "x.sk", cores=1)) as loaded:
        assert loaded(torch.ones(3)).tolist() == Model()(torch.ones(3)).tolist() == [1, 2, 3]


class Counter:
    def __init__(self) -> None:
        self.calls, self.total = 0, torch.zeros(3)

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls

    def assign(self, x: Tensor) -> Tensor:
        self.total = self.total + x
        return self.total * 2

    def first(self, x: Tensor) -> Tensor:
        self.rows = getattr(self, "rows", None) or [x * 2]
        self.last = x + 1
        return self.rows[0] + self.last

    def write(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 2


def closure() -> Callable[[Tensor], Tensor]:
    calls, last = [0], 1

    def function(x: Tensor) -> Tensor:
        nonlocal last
        calls[0] += 1
        last = 2
        return x * calls[0] * last

    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Counter(), r"self.calls \(from 0 to 1\)"),
        (Counter().assign, "assigns a new tensor to self.total, which is no buffer.* or return it$"),
        (Counter().first, r"assigns a new tensor to self.last, .*only the first call makes it, .*call the model once"),
        (closure(), r"calls\[0\] \(from 0 to 1\), last \(from 1 to 2\)"),
    ],
)
def test_objects_and_variables_of_functions_are_observed(
    tmp_path: Path, function: Callable[[Tensor], Tensor], message: str
) -> None:
    for _ in range(2):  # the first export puts everything back
        with pytest.raises(UnsupportedError, match=message):
            sk.export(function, (torch.ones(3),), tmp_path / "x.sk")


def test_a_tensor_that_an_object_writes_is_a_state(tmp_path: Path) -> None:
    counter, eager, x = Counter(), Counter(), torch.ones(3)
    with sk.load_model(sk.export(counter.write, (x,), tmp_path / "x.sk", cores=1)) as loaded:
        assert loaded.states == ("total",)
        assert all(torch.equal(loaded(x), eager.write(x)) for _ in range(3))
    assert not counter.total.any()


class Keeping(nn.Module):
    """Assigns tensors that no later call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.weight_norm(nn.Linear(3, 3))
        self.outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x)
        self.outputs.append(self.hidden * 2)
        self.parts = (self.hidden, x)
        return self.hidden + 1

    def look(self, x: Tensor) -> Tensor:
        return self.hidden + x


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("model", [Keeping(), nn.utils.weight_norm(nn.Linear(3, 3))])
def test_a_tensor_that_is_assigned_and_not_read_by_later_calls_is_taken(tmp_path: Path, model: nn.Module) -> None:
    weight = next(inner for inner in model.modules() if hasattr(inner, "weight_g")).weight
    with sk.load_model(sk.export(model, (torch.ones(3),), tmp_path / "x.sk", cores=1)) as loaded, torch.no_grad():
        assert not hasattr(model, "hidden") and not getattr(model, "outputs", None), "the model is as before"
        assert any(getattr(inner, "weight", None) is weight for inner in model.modules())
        for x in (torch.ones(3), torch.randn(3)):
            torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_tensor_that_another_entry_reads_is_refused(tmp_path: Path) -> None:
    model, x = Keeping(), torch.ones(3)
    model.hidden = torch.zeros(3)
    with pytest.raises(UnsupportedError, match=r"entry 'forward': the model assigns a new tensor to .*self.hidden"):
        sk.export(model, {"forward": (x,), "look": (x,)}, tmp_path / "x.sk")


def test_a_number_that_another_entry_computes_with_is_refused(tmp_path: Path) -> None:
    class Switch(nn.Module):
        factor = 1

        def set(self, x: Tensor) -> Tensor:
            self.factor = 3
            return x + 1

        def use(self, x: Tensor) -> Tensor:
            return x * self.factor

    x = torch.ones(3)
    with pytest.raises(UnsupportedError, match=r"entry 'set': .* self.factor \(from nothing to 3\)"):
        sk.export(Switch(), {"set": (x,), "use": (x,)}, tmp_path / "x.sk")


def test_what_a_model_writes_into_a_file_stays_there(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self, log: Any) -> None:
            super().__init__()
            self.log = log

        def forward(self, x: Tensor) -> Tensor:
            self.log.write("called\n")
            return x * 2

    with (tmp_path / "log").open("w") as log:
        sk.export(Model(log), (torch.ones(3),), tmp_path / "x.sk", cores=1)
        log.write("exported\n")
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "called" and lines.count("exported") == 1 and lines[-1] == "exported"
