"""frontend.lowering.trace_program: a generated program -> the calls it makes, in order, and the memory they touch.

The program's `call` function is run once, statement by statement, on fake tensors: kernels and library functions
record how they were called instead of computing. Views, reuse and deletions are plain Python and need no special
treatment; the name that a statement gives to new memory becomes the buffer's name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ...errors import UnsupportedError
from .inductor import GeneratedProgram
from .program_trace import (
    KernelCall,
    KernelText,
    LibraryCall,
    ProgramCall,
    ProgramTrace,
    Storage,
    StorageOrigin,
    TracedTensor,
)

_CALL, _KERNELS, _LIBRARY = "call", "async_compile", "extern_kernels"
WAIT = "_c10d_functional::wait_tensor"


@dataclass(frozen=True)
class ProgramDialect:
    """The names that a generated program uses for one kind of kernel text and one device."""

    kernel_factory: str  # the method that makes a kernel of its source
    allocator: str  # the function that allocates a tensor
    device: str


def trace_program(generated: GeneratedProgram, inputs: Sequence[Any], dialect: ProgramDialect) -> ProgramTrace:
    """`inputs` are the example inputs that the program was generated for; only their shapes and strides are used."""
    module = ast.parse(generated.text)
    tracer = ProgramTracer(_kernel_texts(module, dialect), generated.origins, dialect.device)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values = [tracer.input(index, value) for index, value in enumerate(inputs)]
        namespace = _namespace(module, tracer, _names(_call_function(module)))
        namespace[dialect.allocator] = tracer.allocate
        for name, value in generated.constants.items():
            namespace[name] = tracer.constant(name, value)
        outputs = tracer.run(_call_function(module), namespace, values)
    return tracer.trace(outputs)


def _kernel_texts(module: ast.Module, dialect: ProgramDialect) -> dict[str, KernelText]:
    texts = {}
    for node in module.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        function, name = node.value.func, ast.unparse(node.targets[0])
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) == _KERNELS:
            if function.attr != dialect.kernel_factory:
                raise UnsupportedError(f"Inductor made {name} with {function.attr}, not with {dialect.kernel_factory}")
            types, source = (ast.literal_eval(argument) for argument in node.value.args)
            texts[name] = KernelText(tuple(types), source)
    return texts


def _call_function(module: ast.Module) -> ast.FunctionDef:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == _CALL:
            return node
    raise UnsupportedError(f"Inductor's program has no function {_CALL!r}")


def _namespace(module: ast.Module, tracer: ProgramTracer, used: set[str]) -> dict[str, Any]:
    """The names of the module that its function uses; kernels and libraries are replaced."""
    wanted: list[ast.stmt] = []
    for node in reversed(module.body):
        if isinstance(node, ast.Assign) and used & _names(node.targets[0]) and _KERNELS not in _names(node):
            wanted.insert(0, node)
            used = used | _names(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [name for name in node.names if (name.asname or name.name).partition(".")[0] in used]
            if names and [name.name for name in names] != [_LIBRARY]:
                wanted.insert(0, node)
    namespace: dict[str, Any] = {_LIBRARY: _ExternKernels()}
    exec(compile(ast.Module(wanted, []), "<inductor>", "exec"), namespace)
    namespace.update({name: tracer.kernel(name) for name in tracer.kernels})
    # assertions about strides hold for the shapes that the program was generated for
    namespace["assert_size_stride"] = namespace["assert_alignment"] = lambda *args: None
    namespace["reinterpret_tensor"] = _reinterpret
    return namespace


class _ExternKernels:
    """Inductor's `extern_kernels`. Plain torch functions are found without importing Inductor."""

    mm, bmm, addmm, baddbmm = torch.mm, torch.bmm, torch.addmm, torch.baddbmm

    def __getattr__(self, name: str) -> Any:
        from torch._inductor.select_algorithm import extern_kernels

        return getattr(extern_kernels, name)


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _reinterpret(tensor: Any, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Any:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


@dataclass
class ProgramTracer:
    """Runs the statements of a program and records its calls and its memory."""

    kernels: dict[str, KernelText]
    origins: dict[str, tuple[str, ...]]  # by buffer
    device: str
    statement: ast.stmt | None = None  # that is being run
    calls: list[ProgramCall] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)  # by the identity of the fake tensor's storage
    inputs: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)  # fake tensors: their identities must not be used again

    def input(self, index: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            self.inputs.append(value)
            return value
        size, stride = _static(value.shape, index), _static(value.stride(), index)
        fake = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
        self.add_storage(fake, f"arg{index}", StorageOrigin.INPUT, index)
        self.inputs.append(self.view(fake))
        return fake

    def constant(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        self.constants.append(value)
        return self.add_storage(fake, name, StorageOrigin.CONSTANT, len(self.constants) - 1)

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: Any) -> Any:
        fake = torch.empty_strided(size, stride, dtype=dtype, device=self.device)
        return self.add_storage(fake, "", StorageOrigin.ALLOCATED)

    def add_storage(self, tensor: Any, name: str, origin: StorageOrigin, index: int = 0) -> Any:
        """The fake tensor; from now on its storage is known."""
        self.alive.append(tensor)
        memory = tensor.untyped_storage()
        self.storages[memory._cdata] = Storage(name, origin, memory.nbytes(), index)
        return tensor

    def view(self, tensor: Any) -> TracedTensor:
        storage = self.storages.get(tensor.untyped_storage()._cdata)
        if storage is None:
            raise UnsupportedError("Inductor's program uses memory that it did not allocate")
        offset = tensor.storage_offset() * tensor.element_size()
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return TracedTensor(storage, offset, tensor.dtype, shape, strides, tensor.is_conj(), tensor.is_neg())

    def as_view(self, value: Any) -> Any:
        return self.view(value) if isinstance(value, torch.Tensor) else value

    def kernel(self, name: str) -> Callable[..., None]:
        def record(*args: Any) -> None:
            origins = self.current_origins(self.kernels[name].types)
            self.calls.append(KernelCall(name, tuple(map(self.as_view, args)), origins))

        return record

    def current_origins(self, types: Sequence[str] = ()) -> tuple[str, ...]:
        """The lines of the model behind the buffers that the current statement writes, as far as its text shows."""
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
        with OperatorTracer(self):
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
                if storage is not None and (not storage.name or storage.origin is StorageOrigin.INPUT):
                    taken = {other.name for other in self.storages.values() if other is not storage}
                    storage.name = name if name not in taken else storage.name or f"{name}_{len(taken)}"

    def trace(self, outputs: Sequence[Any]) -> ProgramTrace:
        views = [self.as_view(value) for value in outputs]
        for view in views:
            if isinstance(view, TracedTensor):
                view.storage.returned = True
        storages = list(dict.fromkeys(self.storages.values()))
        for number, storage in enumerate(storages):
            storage.name = storage.name or f"unnamed{number}"
        return ProgramTrace(self.kernels, self.calls, views, storages, self.constants, self.inputs)


def _static(sizes: Sequence[Any], index: int) -> list[int]:
    for size in sizes:
        if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None:
            raise UnsupportedError(f"input {index} has the symbolic size {size}")
    return [int(size) for size in sizes]


class OperatorTracer(TorchDispatchMode):
    """Records every operator that the program calls."""

    def __init__(self, tracer: ProgramTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = _out_argument(func, kwargs)
        if out is None and func._schema.name == WAIT:
            out = args[0]  # it returns its argument, of which shape inference makes a new tensor
        result = func(*args, **kwargs) if out is None else out
        if not _is_view(func):
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        tracer = self._tracer
        results: list[TracedTensor | None] = []
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, torch.Tensor):
                if value.untyped_storage()._cdata not in tracer.storages:
                    tracer.add_storage(value, "", StorageOrigin.RETURNED)
                results.append(tracer.view(value))
            elif value is None:
                results.append(None)
            else:
                raise UnsupportedError(f"{func} returns a {type(value).__name__}, known only when it runs")
        if func in (torch.ops.aten.empty_strided.default, torch.ops.aten.empty.memory_format):
            for view in results:
                if view is not None:
                    view.storage.origin = StorageOrigin.ALLOCATED
            return
        views = tree_map(tracer.as_view, (args, kwargs))
        call = LibraryCall(func, tuple(views[0]), dict(views[1]), tuple(results), tracer.current_origins())
        tracer.calls.append(call)


def _is_view(func: Any) -> bool:
    """It computes nothing: it returns a view, or a property of a tensor."""
    return bool(func.is_view) or func.namespace == "prim" or func is torch.ops.aten.detach.default


def _out_argument(func: Any, kwargs: dict[str, Any]) -> Any:
    """The result of a call that writes to `out=`: Inductor allocated it in its final size.

    Inferring its shape instead takes 4 ms for every matmul of a program.
    """
    returned = [argument.name for argument in func._schema.arguments if argument.is_out]
    if not returned or len(returned) != len(func._schema.returns) or any(kwargs.get(n) is None for n in returned):
        return None
    return kwargs[returned[0]] if len(returned) == 1 else tuple(kwargs[name] for name in returned)
