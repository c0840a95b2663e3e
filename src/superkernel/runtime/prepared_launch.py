"""runtime.prepared_launch: buffers that were checked once -> a launch that is started by a call without arguments."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import call
from typing import Any

import numpy as np

from ..errors import LaunchError, nearest, shown
from ..model.graph import Graph
from ..targets.buffers import check_argument, check_overlaps, is_tensor
from ..targets.protocol import BoundArguments, LaunchInputs

LaunchBound = Callable[[BoundArguments, LaunchInputs], None]


class PreparedLaunch:
    """A launch of a super kernel with fixed arguments, which `update` exchanges one by one.

    Every call uses the same memory, outputs included, so that one thread at a time may call or update it.
    """

    def __init__(
        self,
        graph: Graph,
        arguments: BoundArguments,
        launch_inputs: LaunchInputs,
        launch: LaunchBound,
        again: Callable[[], bool] | None = None,
    ) -> None:
        """`launch` starts a launch without checks; the arguments have passed them. `again` is tried before it."""
        self._where = f"super_kernel_scope {shown(graph.name)}: "
        self._graph, self._arguments, self._launch_inputs, self._launch = graph, arguments, launch_inputs, launch
        self._again, self._outputs = again, arguments.outputs
        self._place = {name: place for place, name in enumerate(graph.buffers)}
        self._tensors: tuple[str, ...] = ()  # names of those that are tensors
        self._addresses: list[int] = []  # of the tensors when they were bound
        self._readers: tuple[Callable[[], int], ...] = ()  # of their addresses now
        self._no_resize: dict[str, object] = {}
        for name, value in arguments.named.items():
            self._watch(name, value)
        self._find_tensors()

    def __call__(self) -> dict[str, Any]:
        """Launch once; returns the outputs that were allocated, which every call writes anew."""
        if list(map(call, self._readers)) != self._addresses:
            raise self._moved()
        if self._again is None or not self._again():
            self._launch(self._arguments, self._launch_inputs)
        return self._outputs

    @property
    def outputs(self) -> dict[str, Any]:
        """What a call returns."""
        return self._arguments.outputs

    def update(self, name: str, value: Any) -> None:
        """Exchange one argument, checked as at a launch; one that is refused changes nothing."""
        if not isinstance(name, str) or name not in self._place:
            raise LaunchError(f"{self._where}no op uses the name {shown(name)}{nearest(name, self._graph.buffers)}")
        arguments, place = self._arguments, self._place[name]
        address, size = check_argument(self._graph, name, value, arguments.memory)
        count = len(self._place)
        values, sizes = arguments.values[:count], arguments.sizes[:count]
        values[place], sizes[place] = address, size
        check_overlaps(self._graph, values, sizes, self._where)
        arguments.values[place], arguments.sizes[place] = address, size
        arguments.named[name] = value
        arguments.outputs.pop(name, None)  # the caller has it
        self._watch(name, value)
        self._find_tensors()

    def _watch(self, name: str, value: Any) -> None:
        """numpy does not resize an array that something refers to weakly."""
        self._no_resize[name] = weakref.ref(value) if isinstance(value, np.ndarray) else None

    def _find_tensors(self) -> None:
        """torch resizes and frees the memory of any tensor: their addresses are compared at every call."""
        values, named = self._arguments.values, self._arguments.named
        self._tensors = tuple(name for name, value in named.items() if is_tensor(value))
        self._addresses = [values[self._place[name]] for name in self._tensors]
        self._readers = tuple(named[name].data_ptr for name in self._tensors)

    def _moved(self) -> LaunchError:
        now = zip(self._tensors, self._readers, self._addresses, strict=True)
        name = next(name for name, reader, address in now if reader() != address)
        return LaunchError(
            f"{self._where}the memory of {shown(name)} was resized, exchanged or freed since it was bound: "
            f"pass the tensor again with update({shown(name)}, tensor)"
        )
