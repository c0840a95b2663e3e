"""sk.capture: launches of Triton kernels become ops, their tensors buffers; what a capture cannot hold is refused.

Nothing is launched: Triton compiles for an architecture whose GPU need not be here, and tensors lie on the CPU.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

import superkernel as sk  # noqa: E402
from superkernel.errors import GraphError, UnsupportedError  # noqa: E402

pytestmark = pytest.mark.slow
TARGET = "sm_90a"


@triton.jit
def scale(x, y, factor, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < count) * factor, mask=at < count)


@triton.jit
def add_in_place(x, y, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(x + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def count_up(total, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.atomic_add(total + tl.arange(0, SIZE), 1)


@triton.autotune(configs=[triton.Config({"SIZE": 64}, num_warps=2), triton.Config({"SIZE": 128})], key=["count"])
@triton.jit
def tuned_copy(x, y, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)


def floats(*shape: int) -> Any:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


@pytest.fixture(scope="module")
def chain() -> Iterator[tuple[sk.capture, dict[str, Any]]]:  # type: ignore[valid-type]
    """Two launches on a view, one in place, one atomic, on CPU tensors."""
    x, counts = floats(4, 128), torch.zeros(128, dtype=torch.int32)
    halves = [torch.zeros(64), torch.zeros(64)]
    work = torch.zeros(2, 128)
    before = x.clone()
    with sk.capture(target=TARGET, pure=["scale"]) as ops:
        assert len(ops) == 0
        scale[lambda meta: (triton.cdiv(512, meta["SIZE"]),)](x, work, 2, 512, SIZE=128)
        scale[(2, 1, 1)](y=work[1], x=work[0], factor=0.5, count=1, SIZE=64)
        add_in_place[(1,)](halves[1], work[1, 64:], SIZE=64, num_warps=2)
        count_up[(3,)](counts, SIZE=128)
    yield ops, {"x": x, "work": work, "halves": halves, "counts": counts, "before": before}


def test_launches_become_ops_with_grids_threads_and_arguments(chain: Any) -> None:
    ops, _ = chain
    assert [op.kernel.name for op in ops] == ["scale", "scale", "add_in_place", "count_up"]
    assert [op.kernel.grid for op in ops] == [(4, 1, 1), (2, 1, 1), (1, 1, 1), (3, 1, 1)]
    assert [op.kernel.threads for op in ops] == [(128, 1, 1), (128, 1, 1), (64, 1, 1), (128, 1, 1)]
    assert list(ops[0].args) == ["x", "work", 2, 512]
    assert [op.kernel.pure for op in ops] == [True, True, False, False]
    assert all(op.kernel.binary.path.read_text().startswith("//") for op in ops)


def test_views_are_places_in_the_buffer_whose_memory_they_share(chain: Any) -> None:
    ops, tensors = chain
    assert list(ops[1].args)[:2] == ["work", sk.Place("work", 128 * 4)]
    assert list(ops[2].args) == ["halves_1", sk.Place("work", 192 * 4)]
    assert ops.buffers["work"] is tensors["work"] and ops.buffers["halves_1"] is tensors["halves"][1]
    assert list(ops.buffers) == ["x", "work", "halves_1", "counts"]


def test_constants_vanish_and_scalars_have_the_types_of_the_signature(chain: Any) -> None:
    ops, _ = chain
    assert [str(param) for param in ops[0].kernel.params] == [
        "in:x:float32[4,128]",
        "out:y:float32",
        "scalar:factor:int32",
        "scalar:count:int32",
    ]
    # Triton compiles a 1 into the kernel
    assert [str(param) for param in ops[1].kernel.params][2:] == ["scalar:factor:float32"]


def test_what_is_written_is_read_from_the_ptx(chain: Any) -> None:
    ops, _ = chain
    kinds = [[param.kind.value for param in op.kernel.params if param.kind.value != "scalar"] for op in ops]
    assert kinds == [["in", "out"], ["in", "out"], ["inout", "in"], ["inout"]]


def test_nothing_ran(chain: Any) -> None:
    _, tensors = chain
    assert torch.equal(tensors["x"], tensors["before"]) and not tensors["work"].any() and not tensors["counts"].any()


def test_an_autotuned_kernel_takes_its_first_configuration_and_does_not_remember_it() -> None:
    x, y = floats(200), torch.zeros(200)
    with sk.capture(target=TARGET) as ops:
        tuned_copy[lambda meta: (triton.cdiv(200, meta["SIZE"]),)](x, y, 200)
    assert (ops[0].kernel.threads, ops[0].kernel.grid) == ((64, 1, 1), (4, 1, 1))
    assert not tuned_copy.cache


def test_a_hook_of_the_autotuner_is_refused() -> None:
    hooked = triton.autotune([triton.Config({"SIZE": 64}, pre_hook=lambda given: None)], key=[])(tuned_copy.fn)
    with pytest.raises(UnsupportedError, match=r"'tuned_copy'.*pre_hook"), sk.capture(target=TARGET):
        hooked[(1,)](floats(64), torch.zeros(64), 64)


def test_warmup_compiles_and_records_nothing() -> None:
    with sk.capture(target=TARGET) as ops:
        kernel = add_in_place.warmup(torch.float32, torch.float32, SIZE=64, grid=(1,))
    assert len(ops) == 0 and ".visible .entry add_in_place" in kernel.asm["ptx"]


def test_tensors_without_memory_can_be_recorded() -> None:
    x = torch.empty(64, device="meta")
    with sk.capture(target=TARGET) as ops:
        add_in_place[(1,)](x, x, SIZE=64)
    assert list(ops[0].args) == ["x", "x"] and ops.buffers["x"] is x


def test_a_strided_tensor_is_a_place_in_all_of_its_memory() -> None:
    base = floats(4, 64)
    with sk.capture(target=TARGET) as ops:
        add_in_place[(1,)](base.t(), base[2], SIZE=64)
    (name,) = ops.buffers
    assert ops.buffers[name].shape == (256,) and ops.buffers[name].data_ptr() == base.data_ptr()
    assert list(ops[0].args) == [name, sk.Place(name, 512)]


def test_operators_of_torch_on_captured_tensors_are_refused() -> None:
    x, y = floats(64), floats(64)
    refused = pytest.raises(UnsupportedError, match=r"mul.* is called on 'x', which a recorded launch uses")
    with refused, sk.capture(target=TARGET):
        y.mul_(2)  # not captured yet: it runs now
        add_in_place[(1,)](x, y, SIZE=64)
        x.view(8, 8)
        x.mul_(2)
    assert y[1] == 2 and x[1] == 1


def test_what_the_host_fills_in_at_a_launch_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a capture takes tensors"), sk.capture(target=TARGET):
        add_in_place[(1,)](_Pointer(), _Pointer(), SIZE=64)


class _Pointer:
    """An address with a dtype, which Triton takes as a tensor."""

    dtype = torch.float32

    def data_ptr(self) -> int:
        return 4096


def test_captures_are_not_nested_and_leave_triton_as_it_was() -> None:
    run, active = triton.runtime.jit.JITFunction.run, triton.runtime.driver._active
    nested = pytest.raises(UnsupportedError, match="cannot be nested")
    with nested, sk.capture(target=TARGET), sk.capture(target=TARGET):
        pass
    with pytest.raises(KeyError), sk.capture(target=TARGET):
        raise KeyError
    assert triton.runtime.jit.JITFunction.run is run and triton.runtime.driver._active is active


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the launch of the other thread runs")
def test_launches_of_other_threads_are_not_recorded() -> None:
    raised = []

    def launch() -> None:
        try:
            add_in_place[(1,)](floats(64), floats(64), SIZE=64)
        except RuntimeError as error:
            raised.append(str(error))

    with sk.capture(target=TARGET) as ops:
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    assert len(ops) == 0 and "active drivers" in raised[0]


def test_mistakes_are_named() -> None:
    with pytest.raises(UnsupportedError, match="such as sm_90a"), sk.capture(target="H200"):
        pass
    with pytest.raises(GraphError, match="pure is True, or a list"), sk.capture(target=TARGET, pure=3):  # type: ignore[arg-type]
        pass
    unknown = pytest.raises(GraphError, match=r"'add_in_plac', which was not launched \(did you mean 'add_in_place'")
    with unknown, sk.capture(target=TARGET, pure=["add_in_plac"]):
        add_in_place[(1,)](floats(64), floats(64), SIZE=64)
    with pytest.raises(GraphError, match="the list of ops is empty"):
        with sk.capture(target=TARGET) as ops:
            pass
        sk.compile(ops)


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UnsupportedError, match="triton is not installed: pip install torch triton"), sk.capture():
        pass
