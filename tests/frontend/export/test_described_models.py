"""What sk.export writes, sk.load_model opens: names, texts and numbers of a model that a package cannot hold."""

from __future__ import annotations

import functools
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import superkernel as sk
from superkernel.errors import UnsupportedError

X = torch.arange(3.0)


def with_buffer(name: str, dtype: torch.dtype, is_written: bool) -> nn.Module:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.padding = nn.Module()
            self.padding.register_buffer(name, torch.zeros(3, dtype=dtype))

        def forward(self, x: Tensor) -> Tensor:
            held = self.padding._buffers[name]
            return (held.add_(x.to(dtype)) if is_written else held) + x

    return Holding()


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize(("name", "dtype"), [("a\nb", torch.float32), ("\ud800", torch.float32), ("0", torch.uint8)])
def test_a_name_that_the_files_cannot_hold_is_refused(
    tmp_path: Path, name: str, dtype: torch.dtype, is_written: bool
) -> None:
    with pytest.raises(UnsupportedError, match="has a name that no tensor of a package can have: rename it"):
        sk.export(with_buffer(name, dtype, is_written), (X,), tmp_path / "x.sk")


@pytest.mark.parametrize("is_state", [True, False])
def test_the_name_of_the_metadata_of_safetensors_is_refused(tmp_path: Path, is_state: bool) -> None:
    model = with_buffer("__metadata__", torch.float32, is_state).padding
    held = model._buffers["__metadata__"]
    model.forward = lambda x: (held.add_(x) if is_state else held) + x
    with pytest.raises(UnsupportedError, match="'__metadata__' has a name that no tensor"):
        sk.export(model, (X,), tmp_path / "x.sk")


def wide(x: Tensor) -> Tensor:
    return x.reshape(*[1] * 16, -1) + 1


@pytest.mark.parametrize(
    ("function", "example", "message"),
    [
        (wide, X, "output 'output_0' has 17 dimensions; packages have at most 16"),
        (torch.sum, X.reshape(*[1] * 16, -1), "input .* has 17 dimensions"),
        (lambda x: (x, 10**60), X, "output 1 is 1000000.*; a package returns tensors"),
        (lambda x: (x, "\ud800"), X, r"output 1 is '\\ud800'; a package returns"),
        (lambda x: (x, float("nan")), X, "the model returns nan; a package returns tensors"),
    ],
)
def test_values_that_a_package_cannot_describe_are_refused(
    tmp_path: Path, function: Any, example: Tensor, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sk.export(function, (example,), tmp_path / "x.sk")


def test_texts_of_any_kind_are_loaded(tmp_path: Path) -> None:
    def function(x: Tensor) -> Any:
        """Computes $\alpha x$."""
        nested: Any = x + 2
        for _ in range(25):
            nested = [nested]
        return {"": x + 1, "deep": nested}, {"a\nb": x * 2}

    path = sk.export(function, (X,), tmp_path / "two\nlines.sk", cores=1)
    with sk.load_model(path) as model:
        (found, other), expected = model(X), function(X)
        assert torch.equal(found[""], expected[0][""]) and torch.equal(other[0], X * 2), "keys of one line"
        deep = found["deep"]
        while not isinstance(deep, Tensor):
            (deep,) = deep
        assert torch.equal(deep, X + 2)
        assert model.description.name == "two lines" and model.forward.__doc__ == "Computes $ lpha x$."


class ModelsOwnError(Exception):
    pass


def test_errors_of_the_model_are_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(x: Tensor) -> Tensor:
        raise ModelsOwnError("not today")

    with pytest.raises(UnsupportedError, match=r"cannot trace the model: ModelsOwnError: not today \(.*raise Models"):
        sk.export(fails, (X,), tmp_path / "x.sk")
    with caplog.at_level(logging.WARNING), pytest.raises(UnsupportedError, match="same reduction dim"):
        sk.export(nn.Linear(5, 4), (torch.ones(3, 4),), tmp_path / "x.sk")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "torch logs its traceback"


class Scale:
    def __init__(self) -> None:
        self.layer = nn.Linear(3, 3)

    def __call__(self, x: Tensor, by: float) -> Tensor:
        return self.layer(x) * by

    @staticmethod
    def twice(x: Tensor) -> Tensor:
        return x * 2


class Methods(nn.Module):
    twice = staticmethod(Scale.twice)

    @classmethod
    def name_length(cls, x: Tensor) -> Tensor:
        return x * len(cls.__name__)

    def forward(self, x: Tensor) -> Tensor:
        return x * 5


def test_callables_of_all_kinds_are_models(tmp_path: Path) -> None:
    for number, function in enumerate(
        (functools.partial(Scale(), by=3.0), functools.partial(nn.Linear(3, 2)), functools.lru_cache(Scale.twice))
    ):
        with sk.load_model(sk.export(function, (X,), tmp_path / f"{number}.sk", cores=1)) as model, torch.no_grad():
            torch.testing.assert_close(model(X), function(X))
    methods = sk.export(Methods(), {"twice": (X,), "name_length": (X,), "forward": (X,)}, tmp_path / "x.sk", cores=1)
    with sk.load_model(methods) as model:
        assert torch.equal(model.twice(X), X * 2) and torch.equal(model.name_length(X), X * 7)
        assert torch.equal(model(X), X * 5)
        assert str(inspect.signature(model.twice)) == "(x, *, out=None)"
