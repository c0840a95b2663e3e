"""frontend.registry: an operator -> the function that supplies its ops, registered by a user or shipped by a target."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import GraphError, shown
from ..model.op import Op, Place
from ..model.tensor_arg import KernelFunction, TensorArg
from ..targets import DEFAULT_TARGET, find_target
from ..targets.protocol import Target
from .returned_ops import check_returned_ops

_EXTRAS = ("cores", "scratch")  # parameters that a function may have beside the operator's


@dataclass(frozen=True)
class RegisteredKernel:
    """A function that supplies the ops of an operator, and which of `cores` and `scratch` it takes."""

    operator: str
    target: str
    function: KernelFunction
    extras: tuple[str, ...]


_registered: dict[tuple[str, str], RegisteredKernel] = {}  # by operator and target


def register_kernel(op: Any, target: str = DEFAULT_TARGET) -> Callable[[KernelFunction], KernelFunction]:
    """Let the decorated function supply the sub-kernel of an operator.

    It is called with the operator's arguments, tensors as `TensorArg`, and with one keyword per result: `out`, or
    `out0`, `out1`, ... It may ask for `cores` (how many there are) and `scratch` (a function: bytes in, a `Place` out).
    It returns an Op or a list of them, or raises UnsupportedError: then torch runs the operator, between two segments.
    """
    operator = _operator_name(op)
    find_target(target)

    def register(function: KernelFunction) -> KernelFunction:
        if not callable(function):
            raise GraphError(f"register_kernel({shown(operator)}): a function is needed, not {shown(function)}")
        names = _parameter_names(function, operator)
        if names is not None and (schema := _schema(operator)) is not None:
            _check_signature(function, operator, schema, names)
        extras = tuple(name for name in _EXTRAS if names is None or name in names)
        _registered[operator, target] = RegisteredKernel(operator, target, function, extras)
        return function

    return register


@cache
def _shipped_kernel(operator: str, target: str, place: str | KernelFunction) -> RegisteredKernel:
    """A kernel that comes with a target; "module:function" is imported here."""
    if isinstance(place, str):
        module, _, name = place.partition(":")
        function = getattr(import_module(module), name)
    else:
        function = place
    names = inspect.signature(function).parameters
    return RegisteredKernel(operator, target, function, tuple(name for name in _EXTRAS if name in names))


def find_kernel(overload: Any, target: Target) -> RegisteredKernel | None:
    """The kernel of an operator overload, or of its operator for all overloads; users' kernels before shipped ones."""
    support = target.model_support
    shipped = support.shipped_kernels() if support is not None else {}
    name = overload._schema.name
    functional = overload._schema.overload_name.removesuffix("_out").removesuffix("out")
    for operator in (f"{name}.{functional}", name):
        if (registered := _registered.get((operator, target.name))) is not None:
            return registered
        if (place := shipped.get(operator)) is not None:
            return _shipped_kernel(operator, target.name, place)
    return None


def make_ops(
    registered: RegisteredKernel,
    arguments: dict[str, Any],
    results: Sequence[TensorArg],
    cores: int,
    scratch: Callable[[int], Place],
    mutated: Collection[str],
) -> list[Op]:
    """Call the function and check what it returns. `mutated`: the arguments that the operator writes."""
    outs = {"out": results[0]} if len(results) == 1 else {f"out{i}": result for i, result in enumerate(results)}
    extras = {"cores": cores, "scratch": scratch}
    where = f"kernel registered for {shown(registered.operator)} on {registered.target}"
    try:
        returned = registered.function(**arguments, **outs, **{name: extras[name] for name in registered.extras})
    except BaseException as error:
        error.add_note(f"from the {where}")
        raise
    ops = [returned] if isinstance(returned, Op) else returned
    if not isinstance(ops, Sequence) or not ops or not all(isinstance(op, Op) for op in ops):
        allowed = "it must return an Op, a list of Ops, or raise UnsupportedError"
        raise GraphError(f"{where} returned {shown(returned)}; {allowed}")
    check_returned_ops(ops, arguments, mutated, outs, where)
    return list(ops)


def named_arguments(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The arguments by their names in the schema, without those that are results; and the results."""
    named: dict[str, Any] = {}
    outs: list[Any] = []
    for position, argument in enumerate(overload._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            value = args[position]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise GraphError(f"{overload}: the argument {shown(argument.name)} is missing")
        if argument.is_out:
            outs.append(value)
        else:
            named[argument.name] = value
    return named, outs


def _operator_name(op: Any) -> str:
    if isinstance(op, str):
        if op.count("::") != 1 or not all(op.split("::")):
            raise GraphError(f"register_kernel({shown(op)}): an operator is named like 'library::operator'")
        return op
    op = getattr(op, "_opoverload", op)  # from what torch.library.custom_op returns
    if hasattr(op, "_qualified_op_name") and not hasattr(op, "_schema"):  # all overloads
        return str(op._qualified_op_name)
    if hasattr(op, "_schema"):
        overload = op._schema.overload_name
        return f"{op._schema.name}.{overload}" if overload else str(op._schema.name)
    raise GraphError(f"register_kernel({shown(op)}): pass an operator (torch.ops.library.name) or its name")


def _schema(operator: str) -> Any:
    """The functional schema of an operator; None where torch is not imported or the operator not defined (yet)."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    library, _, rest = operator.partition("::")
    name, _, overload = rest.partition(".")
    exists = torch._C._jit_get_schemas_for_operator(f"{library}::{name}")
    packet = getattr(getattr(torch.ops, library), name, None) if exists else None
    if packet is None:
        return None
    if overload:
        return getattr(packet, overload)._schema if overload in packet.overloads() else None
    chosen = "default" if "default" in packet.overloads() else packet.overloads()[0]
    return getattr(packet, chosen)._schema


def _parameter_names(function: KernelFunction, operator: str) -> list[str] | None:
    """The names of the parameters; None: the function takes any keyword."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"register_kernel({shown(operator)}): the signature of {shown(function)} is unknown: {error}"
        ) from error
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


def _check_signature(function: KernelFunction, operator: str, schema: Any, names: list[str]) -> None:
    wanted = [argument.name for argument in schema.arguments if not argument.is_out]
    returned = [r for r in schema.returns if r.alias_info is None]
    results = ["out"] if len(returned) == 1 else [f"out{i}" for i in range(len(returned))]
    missing = [name for name in (*wanted, *results) if name not in names]
    foreign = [name for name in names if name not in (*wanted, *results, *_EXTRAS)]
    if missing or foreign:
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"does not know {', '.join(foreign)}"] if foreign else []
        expected = ", ".join((*wanted, "*", *results, "[cores]", "[scratch]"))
        raise GraphError(
            f"register_kernel({operator!r}): {getattr(function, '__name__', function)!r} {' and '.join(problems)}; "
            f"its signature must be ({expected})"
        )
