"""frontend.record: Inductor's generated program -> the calls it makes, in order, with the memory each one touches.

The program's `call` function is run once, statement by statement, on tensors without data: kernels and library
functions note how they were called instead of computing. What it does in plain Python (views, reuse, deletions) needs
no knowledge of ours; a name that a statement gives to new memory is the buffer's name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ...errors import UnsupportedError
from .inductor import Generated

_CALL, _KERNELS, _CPP, _LIBRARY = "call", "async_compile", "cpp_pybinding", "extern_kernels"


class Origin(Enum):
    """Where the memory of a storage comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    MADE = "made"  # allocated by the program
    RETURNED = "returned"  # by a library call, at run time


@dataclass(eq=False)
class Storage:
    """A piece of memory of the program."""

    name: str
    origin: Origin
    nbytes: int
    index: int = 0  # which input; which constant
    returned: bool = False  # some output lies in it
    tensors: bool = False  # a library call reads or writes it as a tensor


@dataclass(frozen=True)
class View:
    """A tensor of the program: where it begins in its storage (bytes) and how it lies there (elements)."""

    storage: Storage
    offset: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False


@dataclass(frozen=True)
class KernelCall:
    """A call of one of Inductor's C++ kernels."""

    kernel: str
    args: tuple[View | int | float, ...]
    origins: tuple[str, ...] = ()  # lines of the model that it computes


@dataclass(frozen=True)
class LibraryCall:
    """A call of an operator that Inductor leaves to torch. Views stand for tensors in args and kwargs."""

    op: Any  # OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[View | None, ...]  # what it returns: new memory, or memory it was given
    mutates: tuple[View, ...]
    origins: tuple[str, ...] = ()


Call = KernelCall | LibraryCall


@dataclass(frozen=True)
class KernelText:
    types: tuple[str, ...]
    source: str


@dataclass
class Recording:
    """The program as a list of calls."""

    kernels: dict[str, KernelText]
    calls: list[Call]
    outputs: list[View | Any]  # what is no view is a plain value
    storages: list[Storage]
    constants: list[Any]  # tensors, by index
    inputs: list[View | Any]


def record(generated: Generated, inputs: Sequence[Any]) -> Recording:
    """`inputs` are the example inputs that the program was generated for; only their form is used."""
    module = ast.parse(generated.text)
    kernels = _kernel_texts(module)
    recorder = _Recorder(kernels, generated.origins)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values = [recorder.input(index, value) for index, value in enumerate(inputs)]
        scope = _namespace(module, recorder, _names(_call_function(module)))
        for name, value in generated.constants.items():
            scope[name] = recorder.constant(name, value)
        outputs = recorder.run(_call_function(module), scope, values)
    return recorder.finished(outputs)


def _kernel_texts(module: ast.Module) -> dict[str, KernelText]:
    texts = {}
    for node in module.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        function, name = node.value.func, ast.unparse(node.targets[0])
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) == _KERNELS:
            if function.attr != _CPP:
                raise UnsupportedError(f"Inductor made {name} with {function.attr}, which is no C++ kernel")
            types, source = (ast.literal_eval(argument) for argument in node.value.args)
            texts[name] = KernelText(tuple(types), source)
    return texts


def _call_function(module: ast.Module) -> ast.FunctionDef:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == _CALL:
            return node
    raise UnsupportedError(f"Inductor's program has no function {_CALL!r}")


def _namespace(module: ast.Module, recorder: _Recorder, used: set[str]) -> dict[str, Any]:
    """The module's own names as far as its function uses them, without its kernels."""
    wanted: list[ast.stmt] = []
    for node in reversed(module.body):
        if isinstance(node, ast.Assign) and used & _names(node.targets[0]) and _KERNELS not in _names(node):
            wanted.insert(0, node)
            used = used | _names(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [name for name in node.names if (name.asname or name.name).partition(".")[0] in used]
            if names and not _stands_in(node, names):
                wanted.insert(0, node)
    scope: dict[str, Any] = {_LIBRARY: _Library()}
    exec(compile(ast.Module(wanted, []), "<inductor>", "exec"), scope)
    scope.update({name: recorder.kernel(name) for name in recorder.kernels})
    scope["assert_size_stride"] = scope["assert_alignment"] = _nothing
    scope["empty_strided_cpu"] = recorder.allocate
    scope["reinterpret_tensor"] = _reinterpret
    return scope


def _stands_in(node: ast.Import | ast.ImportFrom, names: Sequence[ast.alias]) -> bool:
    return isinstance(node, ast.ImportFrom) and [name.name for name in names] == [_LIBRARY]


class _Library:
    """Inductor's functions of libraries. Those that are plain torch functions are had without importing Inductor."""

    mm, bmm, addmm, baddbmm = torch.mm, torch.bmm, torch.addmm, torch.baddbmm

    def __getattr__(self, name: str) -> Any:
        from torch._inductor.select_algorithm import extern_kernels

        return getattr(extern_kernels, name)


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _nothing(*args: Any) -> None:
    """Assertions about strides are kept by the shapes we compile for."""


def _reinterpret(tensor: Any, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Any:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


@dataclass
class _Recorder:
    kernels: dict[str, KernelText]
    origins: dict[str, tuple[str, ...]]
    statement: ast.stmt | None = None  # the one that is being run
    calls: list[Call] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)  # by the identity of the stand-in's storage
    inputs: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)  # stand-ins: identities must not be used again

    def input(self, index: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            self.inputs.append(value)
            return value
        size, stride = _plain(value.shape, index), _plain(value.stride(), index)
        stand_in = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
        self._storage(stand_in, Storage(f"arg{index}", Origin.INPUT, stand_in.untyped_storage().nbytes(), index))
        self.inputs.append(self.view(stand_in))
        return stand_in

    def constant(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        stand_in = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        nbytes = stand_in.untyped_storage().nbytes()
        self._storage(stand_in, Storage(name, Origin.CONSTANT, nbytes, len(self.constants)))
        self.constants.append(value)
        return stand_in

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: Any) -> Any:
        stand_in = torch.empty_strided(size, stride, dtype=dtype)
        self._storage(stand_in, Storage("", Origin.MADE, stand_in.untyped_storage().nbytes()))
        return stand_in

    def _storage(self, tensor: Any, storage: Storage) -> Storage:
        self.keep.append(tensor)
        self.storages[tensor.untyped_storage()._cdata] = storage
        return storage

    def view(self, tensor: Any) -> View:
        identity = tensor.untyped_storage()._cdata
        storage = self.storages.get(identity)
        if storage is None:
            raise UnsupportedError("Inductor's program uses memory that it did not allocate")
        offset = tensor.storage_offset() * tensor.element_size()
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return View(storage, offset, tensor.dtype, shape, strides, tensor.is_conj(), tensor.is_neg())

    def kernel(self, name: str) -> Callable[..., None]:
        def note(*args: Any) -> None:
            views = tuple(self.view(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
            self.calls.append(KernelCall(name, views, self.origins_now(self.kernels[name].types)))

        return note

    def origins_now(self, types: Sequence[str] = ()) -> tuple[str, ...]:
        """The lines behind the buffers that the present statement writes, as far as its text shows."""
        if self.statement is None:
            return ()
        written: set[str] = set()
        if isinstance(self.statement, ast.Assign):
            written |= _names(self.statement.targets[0])
        for call in (node for node in ast.walk(self.statement) if isinstance(node, ast.Call)):
            for argument, ctype in zip(call.args, types, strict=False):
                written |= set() if ctype.startswith("const") else _names(argument)
            written |= {name for keyword in call.keywords if keyword.arg == "out" for name in _names(keyword.value)}
        return tuple(dict.fromkeys(line for name in sorted(written) for line in self.origins.get(name, ())))

    def run(self, function: ast.FunctionDef, scope: dict[str, Any], values: list[Any]) -> list[Any]:
        scope[function.args.args[-1].arg] = values
        with _Listener(self):
            for statement in function.body:
                if isinstance(statement, ast.Return):
                    assert statement.value is not None
                    return list(eval(compile(ast.Expression(statement.value), "<inductor>", "eval"), scope))
                self.statement = statement
                exec(compile(ast.Module([statement], []), "<inductor>", "exec"), scope)
                if isinstance(statement, ast.Assign):
                    self._give_names(statement.targets[0], scope)
        raise UnsupportedError("Inductor's program returns nothing")

    def _give_names(self, target: ast.expr, scope: dict[str, Any]) -> None:
        for name in _names(target):
            value = scope.get(name)
            if isinstance(value, FakeTensor):
                storage = self.storages.get(value.untyped_storage()._cdata)
                if storage is not None and (not storage.name or storage.origin is Origin.INPUT):
                    storage.name = _unused(name, storage, self.storages.values())

    def finished(self, outputs: Sequence[Any]) -> Recording:
        views = [self.view(value) if isinstance(value, torch.Tensor) else value for value in outputs]
        for view in views:
            if isinstance(view, View):
                view.storage.returned = True
        storages = list(dict.fromkeys(self.storages.values()))
        for number, storage in enumerate(storages):
            storage.name = storage.name or f"unnamed{number}"
        return Recording(self.kernels, self.calls, views, storages, self.constants, self.inputs)


def _unused(name: str, storage: Storage, storages: Any) -> str:
    taken = {other.name for other in storages if other is not storage}
    return name if name not in taken else storage.name or f"{name}_{len(taken)}"


def _plain(sizes: Sequence[Any], index: int) -> list[int]:
    for size in sizes:
        if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None:
            raise UnsupportedError(f"input {index} has the symbolic size {size}")
    return [int(size) for size in sizes]


class _Listener(TorchDispatchMode):
    """Sees every operator that the program calls."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = _given_out(func, kwargs)
        made = func(*args, **kwargs) if out is None else out
        if not _is_view(func):
            self._note(func, args, kwargs, made)
        return made

    def _note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        recorder = self._recorder
        results: list[View | None] = []
        for value in made if isinstance(made, list | tuple) else [made]:
            if isinstance(value, torch.Tensor):
                if value.untyped_storage()._cdata not in recorder.storages:
                    nbytes = value.untyped_storage().nbytes()
                    recorder._storage(value, Storage("", Origin.RETURNED, nbytes))
                results.append(recorder.view(value))
            elif value is None:
                results.append(None)
            else:
                raise UnsupportedError(f"{func} returns a {type(value).__name__}, known only when it runs")
        if func is torch.ops.aten.empty_strided.default or func is torch.ops.aten.empty.memory_format:
            _made_here(results)
            return
        as_view = tree_map(
            lambda value: recorder.view(value) if isinstance(value, torch.Tensor) else value, (args, kwargs)
        )
        for view in _views(as_view):
            view.storage.tensors = True
        mutates = _mutated(func, *as_view)
        origins = recorder.origins_now()
        recorder.calls.append(LibraryCall(func, tuple(as_view[0]), dict(as_view[1]), tuple(results), mutates, origins))


def _made_here(results: Sequence[View | None]) -> None:
    for view in results:
        if view is not None:
            view.storage.origin = Origin.MADE


def _is_view(func: Any) -> bool:
    """Nothing is computed: another look at the same memory, or a question about a tensor."""
    return bool(func.is_view) or func.namespace == "prim" or func is torch.ops.aten.detach.default


def _given_out(func: Any, kwargs: dict[str, Any]) -> Any:
    """What a call returns that writes where it is told. Inductor made that in its size: nothing has to be worked out.

    Working it out takes 4 ms for every matmul of a program.
    """
    returned = [argument.name for argument in func._schema.arguments if argument.is_out]
    if not returned or len(returned) != len(func._schema.returns) or any(kwargs.get(n) is None for n in returned):
        return None
    return kwargs[returned[0]] if len(returned) == 1 else tuple(kwargs[name] for name in returned)


def _views(values: Any) -> list[View]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values, is_leaf=lambda x: isinstance(x, View)) if isinstance(leaf, View)]


def _mutated(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[View, ...]:
    written: list[View] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = kwargs.get(argument.name, args[position] if position < len(args) else None)
        written += _views(value)
    return tuple(written)
