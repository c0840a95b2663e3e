"""torch's operator database as cases: each operator with its first samples on CPU tensors, float32 where it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from conformance.checks import Case
from torch.testing._internal import common_methods_invocations as database
from torch.utils._pytree import tree_map

_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
# Only exist for a GPU; fail in eager mode here.
_ELSEWHERE = "jiterator_"
_UNDEFINED = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)


@cache
def operators() -> dict[str, Any]:
    """OpInfo by name."""
    found = {}
    for op in database.op_db:
        if _dtype(op) is not None and not op.name.startswith(_ELSEWHERE):
            found[f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name] = op
    return found


def _dtype(op: Any) -> torch.dtype | None:
    return next((dtype for dtype in _DTYPES if op.supports_dtype(dtype, "cpu")), None)


def _samples(op: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    return iter(op.sample_inputs("cpu", _dtype(op), requires_grad=False))


@contextmanager
def seeded_outside() -> Iterator[None]:
    """The database sets the seed inside each random operator, which ends the graph there; we set it before the call."""

    def call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    with patch.object(database, "wrapper_set_seed", call):
        yield


def cases(names: Sequence[str], samples: int = 1) -> list[Case]:
    return [case for name in names for case in _cases(name, operators()[name], samples)]


def _cases(name: str, op: Any, samples: int) -> Iterator[Case]:
    for number, sample in enumerate(islice(_samples(op), samples)):
        yield Case(
            name if number == 0 else f"{name}#{number + 1}",
            op.op,
            _arguments(sample),
            other_data=False,
            random=_is_random(op, sample),
            undefined=op.name in _UNDEFINED,
        )


def _arguments(sample: Any) -> Callable[[int], tuple[Sequence[Any], dict[str, Any]]]:
    def fresh(seed: int) -> tuple[Sequence[Any], dict[str, Any]]:
        args, kwargs = tree_map(_copy, ((sample.input, *sample.args), dict(sample.kwargs)))
        return args, kwargs

    return fresh


def _copy(value: Any) -> Any:
    """The same values in fresh memory, laid out the same way."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    if value.is_conj() or value.is_neg() or value.numel() == 0:
        return value.clone()
    room = value.new_empty(value.untyped_storage().nbytes() // value.element_size())
    room.copy_(value.as_strided(room.shape, (1,), 0))
    return room.as_strided(value.shape, value.stride(), value.storage_offset())


def _is_random(op: Any, sample: Any) -> bool:
    """Dropout may be in one sample and not in another."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            args, kwargs = _arguments(sample)(0)
            op.op(*args, **kwargs)
    except RuntimeError:
        return False
    return not torch.equal(before, torch.get_rng_state())
