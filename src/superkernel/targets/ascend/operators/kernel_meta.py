"""targets.ascend.operators.kernel_meta: a folder of metadata and ops of a model -> the compiled kernel of each op.

A file is found by its op type: the field `sub_operator_op_type`, or the first words of `kernelName`
(`te_add_rms_norm_1` is an AddRmsNorm). Of these, the one fits whose parameters are as many as the op's inputs and
outputs, in this order, and, where they state element types and shapes, with those of the op. Types and shapes stand in
`sub_operator_params` (`in:x:float16[16,64]`) or in `supportInfo` (`inputs` and `outputs` with `dtype` and `shape`; -1
and -2 are any).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from ....errors import GraphError, SuperKernelError, nearest
from ....model.json_value import JsonValue, parse_json
from ....model.op import Op, Task
from ....model.params import Kind, Param
from ....model.subkernel import SubKernel
from ....model.tensor_arg import ScratchBuffers, TensorArg
from ...operator_library import KnownOp
from ..chips import Chip
from ..metadata import read_metadata
from .op_types import OP_TYPES, TYPE_BY_NAME, find_op_type

_NAME, _TYPE, _PARAMS = "kernelName", "sub_operator_op_type", "sub_operator_params"
_SUFFIXES = (".o", ".a")
_ANY_RANK, _ANY_SIZE = -2, -1
_DTYPES = {"float": "float32", "double": "float64", "bf16": "bfloat16"}  # as CANN spells them
_MOST_SHOWN = 3


@dataclass(frozen=True)
class TensorFormat:
    """Element type and shape that a kernel was compiled for; None: it does not say."""

    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class MetadataFile:
    """A file that describes a compiled kernel, as far as a search needs it."""

    path: Path
    op_type: str
    formats: tuple[TensorFormat, ...] = ()  # of supportInfo: inputs, then outputs
    workspace_bytes: int = 0
    binary_name: str = ""  # of binFileName
    binary: Path | None = None
    problem: str = ""  # why the file cannot be used


@dataclass(frozen=True)
class KernelMeta:
    """The metadata of compiled kernels in a folder and its folders."""

    folder: Path
    chip: Chip

    @cached_property
    def files(self) -> tuple[MetadataFile, ...]:
        return tuple(_found_files(self.folder))

    def find(self, op: Op, scratch: ScratchBuffers) -> KnownOp:
        """The op with its compiled kernel, or what is missing."""
        wanted = op.kernel.type_name
        of_type = [file for name in _versions(wanted) for file in self.files if file.op_type == name]
        if not of_type:
            return KnownOp(op, missing=self._absent(wanted))
        fitting, misfits = [], []
        for file in of_type:
            try:
                fitting.append((file, self._kernel_for(op, file)))
            except SuperKernelError as reason:
                misfits.append(f"{file.path.name}: {str(reason).removeprefix(f'{file.path}: ')}")
        if len(fitting) == 1:
            file, kernel = fitting[0]
            more = [scratch(file.workspace_bytes) for _ in kernel.params[len(op.args) :]]
            return KnownOp(replace(op, kernel=kernel, args=(*op.args, *more)), file.path, file.binary)
        if fitting:
            names = ", ".join(file.path.name for file, _ in fitting)
            return KnownOp(
                op, missing=f"{len(fitting)} files of {self.folder} fit it: {names}; leave one of them there"
            )
        others = f"; and {len(misfits) - _MOST_SHOWN} more" if len(misfits) > _MOST_SHOWN else ""
        return KnownOp(op, missing=f"no file of type {wanted} fits: {'; '.join(misfits[:_MOST_SHOWN])}{others}")

    def _absent(self, wanted: str) -> str:
        types = sorted({file.op_type for file in self.files if not file.problem})
        unread = [f"{file.path.name}: {file.problem}" for file in self.files if file.problem]
        known = f"; there are {', '.join(types)}" if types else "; there is no metadata at all"
        broken = f"; not read: {'; '.join(unread[:_MOST_SHOWN])}" if unread else ""
        return f"{self.folder} has no metadata of type {wanted}{nearest(wanted, types)}{known}{broken}"

    def _kernel_for(self, op: Op, file: MetadataFile) -> SubKernel:
        """The kernel of the file; a GraphError says why it does not fit the op."""
        if file.problem or file.binary is None:
            raise GraphError(file.problem or f"its object {file.path.stem}.o is not beside it")
        kernel = read_metadata(file.path, file.binary, Task.NORMAL, self.chip).kernel
        tensors = [argument for argument in op.args if isinstance(argument, TensorArg)]
        params = _matched(kernel, op, tensors, file.formats)
        params += [replace(param, kind=Kind.WORKSPACE) for param in kernel.params[len(op.args) :]]
        return replace(kernel, params=tuple(params), op_type=kernel.op_type or file.op_type)


def _matched(kernel: SubKernel, op: Op, tensors: Sequence[TensorArg], formats: Sequence[TensorFormat]) -> list[Param]:
    """The parameters of the kernel that take the op's tensors, with the kinds that the model gives them."""
    ours = op.kernel.params
    further = kernel.params[len(ours) :]
    if len(kernel.params) < len(ours) or any(not _is_workspace(param) for param in further):
        given, taken = (", ".join(param.name for param in params) for params in (ours, kernel.params))
        raise GraphError(f"it takes {len(kernel.params)} parameters ({taken}), the model gives {len(ours)} ({given})")
    if formats and len(formats) != len(ours):
        raise GraphError(f"its supportInfo has {len(formats)} tensors, the model gives {len(ours)}")
    params = []
    for place, (theirs, mine, tensor) in enumerate(zip(kernel.params[: len(ours)], ours, tensors, strict=True)):
        if theirs.kind is not Kind.INOUT and theirs.kind is not mine.kind:
            raise GraphError(
                f"its parameter {theirs.name} is {theirs.kind.value}, in the model it is {mine.kind.value}"
            )
        stated = [TensorFormat(theirs.dtype, theirs.shape), *formats[place : place + 1]]
        for tensor_format in stated:
            _check_format(theirs.name, tensor_format, tensor)
        params.append(Param(mine.kind, theirs.name))
    return params


def _check_format(name: str, stated: TensorFormat, tensor: TensorArg) -> None:
    if stated.dtype is not None and _DTYPES.get(stated.dtype, stated.dtype) != tensor.dtype:
        raise GraphError(f"its parameter {name} is {stated.dtype}, in the model it is {tensor.dtype}")
    if stated.shape is None or _ANY_RANK in stated.shape:
        return
    shapes = [tensor.shape]
    if len(tensor.shape) > 1 and not tensor.contiguous:  # transposed operands are compiled as they lie in memory
        shapes.append((*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]))
    if not any(_fits(stated.shape, shape) for shape in shapes):
        raise GraphError(f"its parameter {name} is {list(stated.shape)}, in the model it is {list(tensor.shape)}")


def _fits(stated: Sequence[int], shape: Sequence[int]) -> bool:
    return len(stated) == len(shape) and all(a in (_ANY_SIZE, b) for a, b in zip(stated, shape, strict=True))


def _is_workspace(param: Param) -> bool:
    return param.kind is Kind.WORKSPACE or "workspace" in param.name.lower()


def _versions(op_type: str) -> tuple[str, ...]:
    """The type and the older versions of it, which compute the same: MatMulV3, MatMulV2, MatMul."""
    plain = re.sub(r"V\d+$", "", op_type)
    older = (*(f"{plain}V{number}" for number in range(9, 1, -1)), plain)
    return (op_type, *(name for name in older if name in TYPE_BY_NAME and name < op_type))


def _found_files(folder: Path) -> Iterator[MetadataFile]:
    for path in sorted(folder.rglob("*.json")):
        try:
            state = path.stat()
        except OSError:
            continue  # gone since the folder was listed
        found = _read(path, state.st_mtime_ns, state.st_size)
        if found is not None:
            yield replace(found, binary=_binary(path, found.binary_name))


@lru_cache(4096)  # every segment of a model looks through the folder
def _read(path: Path, changed_at: int, nbytes: int) -> MetadataFile | None:
    """None: the file is not the metadata of a kernel."""
    try:
        top = parse_json(path)
        if not isinstance(top.value, dict) or top.value.keys().isdisjoint((_NAME, _PARAMS)):
            return None
        fields = top.entries()
        if _TYPE in fields:
            op_type = fields[_TYPE].text()
        else:
            op_type = _type_of_name(fields[_NAME].text() if _NAME in fields else path.stem)
        row = find_op_type(op_type)
        sizes = _workspace_sizes(fields["workspace"]) if "workspace" in fields else 0
        formats = tuple(_formats(fields["supportInfo"])) if "supportInfo" in fields else ()
        binary_name = fields["binFileName"].text() if "binFileName" in fields else ""
        return MetadataFile(path, row.name if row else op_type, formats, sizes, binary_name)
    except SuperKernelError as reason:
        return MetadataFile(path, _type_of_name(path.stem), problem=str(reason).removeprefix(f"{path}: "))


def _type_of_name(name: str) -> str:
    """The longest op type that the first words of a kernel's name spell; the name itself, if there is none."""
    words = name.removeprefix("te_").lower().split("_")
    spelt = {"".join(words[:count]): count for count in range(1, len(words) + 1)}
    found = [(spelt[row.name.lower()], row.name) for row in OP_TYPES if row.name.lower() in spelt]
    return max(found)[1] if found else name


def _binary(path: Path, name: str) -> Path | None:
    """The object or archive beside the file, called like it or as the file says."""
    stems = [path.stem, *([name] if name else [])]
    candidates = [path.parent / name for stem in stems for name in (stem, *(f"{stem}{end}" for end in _SUFFIXES))]
    return next((candidate for candidate in candidates if candidate.suffix != ".json" and candidate.is_file()), None)


def _formats(place: JsonValue) -> Iterator[TensorFormat]:
    entries = place.entries()
    for which in ("inputs", "outputs"):
        for item in entries[which].items() if which in entries else ():
            fields = item.entries()
            shape = fields.get("shape")
            yield TensorFormat(
                fields["dtype"].text() if "dtype" in fields else None,
                tuple(size.whole() for size in shape.items()) if shape is not None else None,
            )


def _workspace_sizes(place: JsonValue) -> int:
    """The largest of the sizes that `workspace` states; a negative one is not known before a run."""
    if not isinstance(place.value, dict) or "size" not in place.value:
        return 0
    return max((size.whole() for size in place.at("size").items()), default=0)
