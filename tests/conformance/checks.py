"""One function, compiled by the back end: its results against eager, against its own unfused run, and called again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from unittest.mock import patch

import torch
from conformance.texts import collecting_texts, compile_together
from torch.utils._pytree import tree_flatten

from superkernel.frontend.lowering import cpp_outline
from superkernel.frontend.report import CompileReport, collecting

FUSED: dict[str, object] = {"profit_gate": 0}
UNFUSED: dict[str, object] = {"fuse": "off", "profit_gate": 0}


@dataclass(frozen=True)
class Case:
    """A function and its arguments: for a seed always the same values, in fresh memory, of the same shapes."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Sequence[Any], dict[str, Any]]]
    other_data: bool = True  # another seed gives other values, and nothing but other values
    random: bool = False  # draws random numbers
    undefined: bool = False  # returns memory that nobody wrote
    tolerance: float | None = None  # None: what torch's own tests allow


class State(Enum):
    FUSED = "fused"
    PARTLY = "partly fused"  # torch runs some library calls between super kernels
    FELL_BACK = "fell back"
    NOTHING = "nothing to fuse"
    STOCK = "fails under stock Inductor"
    FAILED = "failed"


@dataclass
class Outcome:
    name: str
    state: State
    reasons: list[str] = field(default_factory=list)  # why not everything is fused; or the failure


class Mismatch(AssertionError):
    """The results are not what they should be."""


def warm_up(cases: Sequence[Case], cores: Sequence[int]) -> int:
    """Compile the kernels of all cases together; how many there are."""
    with collecting_texts() as texts:
        for case in cases:
            for count in cores:
                try:
                    run(case, compiled(case, cores=count, **FUSED))
                except Exception:  # told when the case is checked
                    continue
    compile_together(texts)
    return len(texts)


def check(case: Case, cores: int) -> Outcome:
    """What became of the case; failures are told, not raised."""
    try:
        return _checked(case, cores)
    except Exception as failure:
        if not isinstance(failure, Mismatch) and _stock_fails(case, cores):
            return Outcome(case.name, State.STOCK, [f"{type(failure).__name__}: {failure}"])
        return Outcome(case.name, State.FAILED, [f"{type(failure).__name__}: {failure}"])


def _checked(case: Case, cores: int) -> Outcome:
    seed = 1 if case.other_data else 0
    function = compiled(case, cores=cores, **FUSED)
    with collecting() as report:
        got = run(case, function)
    kept = _copies(got)
    again = run(case, function, seed)
    _same_bits(case, kept, got, "a later call changed the results of an earlier one")
    if seed == 0:
        _same_bits(case, kept, again, "the second call differs from the first")
    # Other compilations throw this one away: from here on nothing calls `function`.
    _compare(case, cores, run(case, case.function), got)
    if seed != 0:
        _compare(case, cores, run(case, case.function, seed), again, seed)
    _compare_with_unfused(case, cores, report, got)
    return Outcome(case.name, *_state(report))


def _compare_with_unfused(case: Case, cores: int, report: CompileReport, got: list[Any]) -> None:
    """One op alone is launched the same way, fused or not."""
    if any(len(segment.ops) > 1 for scope in report.scopes for segment in scope.segments):
        _same_bits(case, run(case, compiled(case, cores=cores, **UNFUSED)), got, "fused differs from fuse=off")


def compiled(case: Case, **options: object) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(case.function, backend="superkernel", dynamic=False, options=options)  # type: ignore[no-any-return]


def run(case: Case, function: Callable[..., Any], seed: int = 0) -> list[Any]:
    """The results, the arguments as they are after the call, and which results lie in the memory of arguments."""
    args, kwargs = case.arguments(seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        made = function(*args, **kwargs)
    given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    results = tree_flatten(made)[0]
    return [*results, *given, f"in the memory of arguments: {[_shared(result, given) for result in results]}"]


def _shared(result: Any, given: Sequence[torch.Tensor]) -> list[int]:
    return [
        index for index, value in enumerate(given) if _memory(result) is not None and _memory(result) == _memory(value)
    ]


def _memory(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage().data_ptr() or None


def _compare(case: Case, cores: int, want: list[Any], got: list[Any], seed: int = 0) -> None:
    """With eager; where that rounds otherwise, with what Inductor makes of the same function."""
    if case.undefined or case.random:
        _same_form(want, got)
        return
    try:
        _close(case, want, got)
    except Mismatch as mismatch:
        try:
            _close(case, _stock(case, cores, seed), got)
        except Mismatch as still:
            raise Mismatch(f"eager: {mismatch}\nstock Inductor: {still}") from mismatch


def _close(case: Case, want: list[Any], got: list[Any]) -> None:
    _same_form(want, got)
    for index, (one, other) in enumerate(zip(want, got, strict=True)):
        wide = _width(case, one)
        try:
            torch.testing.assert_close(other, one, rtol=wide, atol=wide, equal_nan=True, check_stride=False)
        except AssertionError as failure:
            raise Mismatch(f"value {index}: {failure}") from failure
        except TypeError:  # neither tensors nor numbers
            if one != other:
                raise Mismatch(f"value {index}: {other!r} instead of {one!r}") from None


def _width(case: Case, value: Any) -> float | None:
    if case.tolerance is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    return case.tolerance


def _same_form(want: list[Any], got: list[Any]) -> None:
    if len(want) != len(got):
        raise Mismatch(f"{len(got)} values instead of {len(want)}")
    for index, (one, other) in enumerate(zip(want, got, strict=True)):
        if _form(one) != _form(other):
            raise Mismatch(f"value {index}: {_form(other)} instead of {_form(one)}")


def _form(value: Any) -> object:
    return (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else type(value)


def _same_bits(case: Case, want: list[Any], got: list[Any], what: str) -> None:
    _same_form(want, got)
    if case.undefined:
        return
    for index, (one, other) in enumerate(zip(want, got, strict=True)):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided and not _equal_bits(one, other):
            raise Mismatch(f"value {index}: {what}: {other} instead of {one}")


def _equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)


def _copies(values: list[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _stock(case: Case, cores: int, seed: int) -> list[Any]:
    torch._dynamo.reset()
    with torch._inductor.config.patch({"fallback_random": True, "cpp.threads": cores}):
        return run(case, torch.compile(case.function, backend="inductor", dynamic=False), seed)


def _stock_fails(case: Case, cores: int) -> bool:
    try:
        _stock(case, cores, 0)
    except Exception:
        return True
    return False


def _state(report: CompileReport) -> tuple[State, list[str]]:
    segments = [segment for scope in report.scopes for segment in scope.segments]
    unfusible = [found for scope in report.scopes for found in scope.unfusible]
    reasons = [f"{found.op}: {found.reason}" for found in unfusible]
    reasons += [segment.reason for segment in segments if not segment.fused]
    if any(segment.fused for segment in segments):
        return (State.PARTLY if reasons else State.FUSED), reasons
    return (State.FELL_BACK if reasons else State.NOTHING), reasons


@contextmanager
def small_chunks() -> Iterator[None]:
    """Even the smallest loops are shared among threads; the back end's warnings are in the report anyway."""
    log = logging.getLogger("superkernel")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with torch._inductor.config.patch({"cpp.min_chunk_size": 1}), patch.object(cpp_outline, "ELEMENTS_PER_SYNC", 0):
            yield
    finally:
        log.setLevel(level)


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    found = Counter(outcome.state for outcome in outcomes)
    return {state.value: found[state] for state in State}
