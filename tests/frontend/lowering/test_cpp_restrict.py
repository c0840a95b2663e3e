"""Pointers of generated kernels are declared restrict exactly where no other argument reaches what a kernel writes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from superkernel.frontend.lowering.cpp import _writes_shared_memory  # noqa: E402
from superkernel.frontend.lowering.program_trace import (  # noqa: E402
    KernelCall,
    KernelText,
    Storage,
    StorageOrigin,
    TracedTensor,
)

KERNEL = KernelText(
    ("const float*", "const float*", "float*", "int64_t"),
    'extern "C" void kernel(const float* in_ptr0, const float* in_ptr1, float* out_ptr0, const int64_t ks0) {}',
)


def tensor(storage: Storage, offset: int = 0) -> TracedTensor:
    return TracedTensor(storage, offset, torch.float32, (4,), (1,))


FIRST, SECOND, THIRD = (Storage(name, StorageOrigin.ALLOCATED, 64) for name in ("buf0", "buf1", "buf2"))


@pytest.mark.parametrize(
    ("arguments", "shared"),
    [
        ((FIRST, SECOND, THIRD), False),
        ((FIRST, FIRST, THIRD), False),  # read twice, written never
        ((FIRST, SECOND, FIRST), True),
        ((FIRST, SECOND, SECOND), True),
    ],
)
def test_memory_that_is_written_and_reached_twice_is_found(arguments: tuple[Storage, ...], shared: bool) -> None:
    tensors = [tensor(storage, 16 * number) for number, storage in enumerate(arguments)]
    assert _writes_shared_memory(KernelCall("kernel", (*tensors, 7)), KERNEL) == shared


def test_a_kernel_that_moves_elements_of_what_it_reads_gives_the_values_of_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(x.flip(0) + y)
        return x * 2

    x, y = torch.randn(64, 48), torch.randn(48)
    wanted_x = x.clone()
    wanted = function(wanted_x, y)
    with torch.no_grad():
        given = torch.compile(function, backend="superkernel")(x, y)
    assert torch.equal(given, wanted) and torch.equal(x, wanted_x)
