"""frontend.export.refusals: what cannot be in a package -> an error with source lines and the nearest remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    free_unbacked_symbols,
)
from torch.utils._pytree import tree_leaves

from ...errors import UnsupportedError, shown
from ...model.json_value import is_line
from ...package.manifest import ELEMENT_BYTES, MOST_DIMENSIONS
from ...package.weights_file import is_reserved
from ..capture.fusibility import Cause, Unfusible
from ..capture.row_layouts import argument_values
from ..capture.source_lines import line_in_traceback, line_that_raised, source_line
from .changed_values import ChangedValue
from .entry_requests import OWNER

_ASSIGNED = re.compile(r"The tensor attributes? (.+) (?:was|were) assigned during export")
_UNKNOWN_CONTAINER = re.compile(r"Found <class '([^']+)'> in output, which is not a known type")
_UNKNOWN_CONSTANT = re.compile(r"User output (\S+) is not in the correct order")  # nan, which equals nothing
_VIOLATED = re.compile(r"Constraints violated \((\w+)\)!.*\n\s*-\s*(.+?)(?:\.\s|\.?$)", re.MULTILINE)
_ANY_NUMBER = (
    "let the model take any number of rows (what it takes from a tensor for each row, as in table[: x.shape[0]], can "
    "be an input), or leave it out of buckets"
)
_UNKNOWN_TENSOR = "fake tensor in the exported program constant's list"
_NOT_TRACED = "expected FakeTensor, got"  # where a buffer is assigned
_UNKNOWN_NUMBER = "Could not extract specialized"
_DROPOUT = ("dropout", "bernoulli", "rrelu")
# what keeps an operator out of a super kernel -> what the user can do
_REMEDIES = {
    Cause.COLLECTIVE: "export the model of one process",
    Cause.HIGHER_ORDER: "write it without torch.cond, while_loop, scan and map, such as with torch.where",
    Cause.DATA_DEPENDENT_NUMBER: "compute with the tensor instead of .item(), and index with a tensor of one element, "
    "as in x[i.view(1)], instead of one without dimensions",
    Cause.DATA_DEPENDENT_SIZE: "give it a fixed size, such as a mask in the place of an index list",
}
_NO_KERNEL = (
    'register a sub-kernel for it (sk.register_kernel), write it with other operators, or export with allow="library", '
    "which needs torch where the package is loaded"
)


def refuse_random(graph: Graph, entry: str) -> None:
    """Refuses operators that draw random numbers. The graph is AOTAutograd's, in which dropout that is off is gone."""
    random = [node for node in graph.nodes if node.op == "call_function" and _draws(node)]
    if not random:
        return
    names = [str(node.meta.get("original_aten", node.target)) for node in random]
    is_dropout = any(word in name for name in names for word in _DROPOUT)
    advice = "call model.eval() before the export" if is_dropout else "pass the random numbers as an input"
    listed = dict.fromkeys(f"{name}{_at(node)}" for name, node in zip(names, random, strict=True))
    raise UnsupportedError(
        f"entry {entry!r}: random operators cannot be in a package, since calls would need the state of torch's "
        f"generator: {'; '.join(listed)}; {advice}"
    )


def _draws(node: Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = argument_values(node)
    return given.get("dropout_p", given.get("p")) != 0.0


def assigned_names(module: torch.nn.Module, warned: Sequence[str]) -> list[str]:
    """Tensors that the model keeps in plain attributes, by warnings of torch.export, which forgets the new value."""
    names = [name for text in warned if (found := _ASSIGNED.search(text)) for name in found[1].split(", ")]
    return [name.replace(f".{OWNER}", "", 1) for name in names if not _lists_weights(module, name)]


def assigned_tensors(names: Sequence[str], changed: Sequence[ChangedValue], entry: str) -> UnsupportedError | None:
    """The model keeps tensors where no buffers are. None: it does not."""
    tensors = [value for value in changed if value.is_tensor]
    if not (listed := list(dict.fromkeys([*names, *(value.path for value in tensors)]))):
        return None
    first = (
        "; where only the first call makes it, as in a cache of transformers, call the model once before the export, "
        "or cache.early_initialization(...)"
    )
    return UnsupportedError(
        f"entry {entry!r}: the model assigns a new tensor to {', '.join(listed)}, which is no buffer; a package "
        "would forget it: register it with register_buffer, so that it becomes a state, or return it"
        f"{'' if any(value.had_tensor for value in tensors) else first}"
    )


def _lists_weights(module: torch.nn.Module, name: str) -> bool:
    """nn.GRU and nn.LSTM list their parameters; torch.export puts the tensors that it traces with into that list."""
    path, _, attribute = name.partition("[")[0].removeprefix("self.").rpartition(".")
    return attribute == "_flat_weights" and isinstance(module.get_submodule(path), torch.nn.RNNBase)


def check_weight(name: str, value: object) -> None:
    """Refuses what is no plain tensor in the memory of the host."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise UnsupportedError(
            f"weight {name!r} is a {type(value).__name__}, no plain tensor: convert it before the export"
        )
    assert isinstance(value, torch.Tensor)
    if not value.is_cpu:
        raise UnsupportedError(f"weight {name!r} is on device {value.device}: move the model with model.to('cpu')")
    if value.layout is not torch.strided or value.is_quantized:
        raise UnsupportedError(
            f"weight {name!r} is a {value.layout} tensor of {value.dtype}; packages hold plain tensors"
        )


def check_described(name: str, dtype: str, shape: Sequence[int], what: str) -> None:
    """Refuses an input, output, weight or state that a package cannot describe."""
    if dtype not in ELEMENT_BYTES:
        raise UnsupportedError(
            f"{what} {name!r} has elements of type {dtype}; packages have {', '.join(ELEMENT_BYTES)}: convert it"
        )
    if len(shape) > MOST_DIMENSIONS:
        raise UnsupportedError(
            f"{what} {name!r} has {len(shape)} dimensions; packages have at most {MOST_DIMENSIONS}: flatten some"
        )
    if not name.strip() or not is_line(name) or is_reserved(name, dtype):
        raise UnsupportedError(f"{what} {shown(name)} has a name that no tensor of a package can have: rename it")


def check_exported(program: ExportedProgram, entry: str) -> None:
    """Refuses sizes and numbers that depend on data."""
    nodes = [node for node in program.graph_module.graph.nodes if node.op == "call_function"]
    if sized := [node for node in nodes if _depends_on_data(node)]:
        raise UnsupportedError(
            f"entry {entry!r}: a size or number depends on data, and a package is compiled for fixed shapes: "
            f"{_listed(sized[:1])}; {_REMEDIES[Cause.DATA_DEPENDENT_SIZE]}, or {_REMEDIES[Cause.DATA_DEPENDENT_NUMBER]}"
        )


def _depends_on_data(node: Node) -> bool:
    """A symbol of the size of an input, which a bucketed dimension has, does not depend on data."""
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    values = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, kinds)]
    return any(bool(free_unbacked_symbols(value)) for value in values)


def _listed(nodes: Sequence[Node]) -> str:
    found = dict.fromkeys(f"{node.target}{_at(node)}" for node in nodes)
    return "; ".join(found)


def _at(node: Node) -> str:
    line = source_line(node)
    return f" ({line})" if line else ""


def written_input(program: ExportedProgram, name: str, entry: str) -> UnsupportedError:
    """The model writes into an input."""
    nodes = program.graph_module.graph.nodes
    placeholder = next(node for node in nodes if node.op == "placeholder" and node.name == name)
    writers = [
        user for user in placeholder.users if getattr(getattr(user.target, "_schema", None), "is_mutable", False)
    ]
    where = f" ({_listed(writers[:1])})" if writers else ""
    return UnsupportedError(
        f"entry {entry!r}: the model writes into its input {name!r}{where}: make it a buffer (register_buffer), which "
        "becomes a state of the package, or return the new value"
    )


def changed_values(changed: Sequence[ChangedValue], entry: str) -> UnsupportedError:
    """The model computes with Python values that its calls change."""
    return UnsupportedError(
        f"entry {entry!r}: the model computes with a Python value that calls change: "
        f"{', '.join(map(str, changed))}; a package would keep the first one: make it a buffer (register_buffer), "
        "which becomes a state of the package, or pass it as an input"
    )


def other_program(line: str | None, entry: str) -> UnsupportedError:
    """Two calls of the model, one after the other, compute something else, and nothing that it holds tells why."""
    where = f" ({line})" if line else ""
    return UnsupportedError(
        f"entry {entry!r}: the model computes with something in Python that is another in each call{where}, such as "
        "the time, a variable of the process, or what a library keeps; a package would keep the first one: make it a "
        "buffer (register_buffer), which becomes a state of the package, or pass it as an input"
    )


def export_failure(reason: Exception, entry: str, has_buckets: bool) -> UnsupportedError:
    """The error of torch.export, with what to do where that is known. `has_buckets`: it traced for any size."""
    text = str(reason).strip()
    line = line_in_traceback(text) or line_that_raised(reason)
    at = f" ({line})" if line else ""
    first = (text.splitlines()[0] if text else type(reason).__name__) + at
    if violated := _VIOLATED.match(text):
        return UnsupportedError(
            f"entry {entry!r}: dimension {violated[1]!r} cannot have buckets: the model works for some sizes only: "
            f"{violated[2]}: {_ANY_NUMBER}"
        )
    if returned := _UNKNOWN_CONTAINER.search(text):
        return UnsupportedError(
            f"entry {entry!r}: the model returns a {returned[1]}, which torch cannot take apart: return its tensors in "
            "tuples, lists and dicts (models of transformers: config.use_cache = False), or register the class with "
            "torch.utils._pytree.register_pytree_node"
        )
    if constant := _UNKNOWN_CONSTANT.search(text):
        return UnsupportedError(
            f"entry {entry!r}: the model returns {constant[1]}; a package returns tensors, numbers, texts and None: "
            "leave it out"
        )
    if _NOT_TRACED in text:
        return UnsupportedError(
            f"entry {entry!r}: the model assigns None, or a tensor that it holds elsewhere, to a buffer{at}: a state "
            "keeps its shape and element type: write into the buffer, as with self.total.copy_(...) or .zero_()"
        )
    if _UNKNOWN_TENSOR in text:
        return UnsupportedError(
            f"entry {entry!r}: torch.export loses a tensor of the model, such as one that is reached by .data: write "
            "into buffers themselves, as in self.total.add_(x), and keep every tensor in a parameter or a buffer"
        )
    causes: list[BaseException] = [reason]
    while (inner := causes[-1].__cause__ or causes[-1].__context__) is not None and inner not in causes:
        causes.append(inner)
    is_choice = any(isinstance(cause, GuardOnDataDependentSymNode) for cause in causes)
    if (is_choice and _UNKNOWN_NUMBER in text) or isinstance(reason, PendingUnbackedSymbolNotFound):
        return UnsupportedError(
            f"entry {entry!r}: the model takes a size, a position or another number from a tensor, and a package is "
            f"compiled for fixed ones: {first}; {_REMEDIES[Cause.DATA_DEPENDENT_NUMBER]}"
        )
    if is_choice:
        return UnsupportedError(
            f"entry {entry!r}: the model branches on the values of a tensor, and a package is compiled for one path: "
            f"{first}; use torch.where, or pass the choice as a Python number"
        )
    if has_buckets:
        return UnsupportedError(
            f"entry {entry!r}: torch.export cannot trace the model for any number of rows: {type(reason).__name__}: "
            f"{first}: {_ANY_NUMBER}"
        )
    return UnsupportedError(f"entry {entry!r}: torch.export cannot trace the model: {type(reason).__name__}: {first}")


def unfusible_error(found: Mapping[str, Sequence[Unfusible]]) -> UnsupportedError:
    """Every operator that is left to torch, by entry, with its source line and what can be done."""
    lines = []
    for entry, operators in found.items():
        count = f"{len(operators)} operator{'s' if len(operators) > 1 else ''}"
        lines.append(f"entry {entry!r}: {count} cannot be in a super kernel:")
        lines += [f"  {operator}: {_REMEDIES.get(operator.cause, _NO_KERNEL)}" for operator in operators]
    return UnsupportedError("\n".join(lines))
