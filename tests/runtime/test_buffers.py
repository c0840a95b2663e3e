"""Buffers that do not fit are refused in words, before anything runs and without a byte changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, MARK, SCOPE, TOUCH, child, compiled, refused, vector

import superkernel as sk
from superkernel import LaunchError, Op

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def adding() -> Iterator[sk.SuperKernel]:
    """Shows that it ran; a + b = t, t + b = c. All is typed, so t and c need not be passed."""
    with compiled(Op(MARK, ["ran"]), Op(ADD, ["a", "b", "t"]), Op(ADD, ["t", "b", "c"], name="second")) as k:
        yield k


@pytest.fixture(scope="module")
def touching() -> Iterator[sk.SuperKernel]:
    with compiled(Op(MARK, ["ran"]), Op(TOUCH, ["a", "b"])) as k:
        yield k


def arrays(**changed: Any) -> dict[str, Any]:
    return {"ran": np.zeros(1, np.int64), "a": vector(), "b": vector(2), "t": vector(0), "c": vector(0), **changed}


def tensors(**changed: Any) -> dict[str, Any]:
    return {name: torch.from_numpy(value) for name, value in arrays().items()} | changed


def test_what_fits_runs(adding: sk.SuperKernel) -> None:
    for given in (arrays(), tensors()):
        assert adding(given) == {}
        assert int(given["ran"][0]) == 1 and (given["c"] == 5).all()


# --- names


def test_a_name_that_is_read_but_neither_written_nor_passed(adding: sk.SuperKernel) -> None:
    given = arrays()
    del given["b"]
    refused(adding, given, "'b'", "read before any op writes it", "not passed")
    refused(adding, {}, "'ran'", "not passed")


def test_an_untyped_name_that_is_not_passed(touching: sk.SuperKernel) -> None:
    refused(touching, {"ran": np.zeros(1, np.int64), "a": vector()}, "'b'", "not passed", "dtype[shape]")


@pytest.mark.parametrize(
    ("name", "hint"), [("cc", "did you mean 'c'?"), ("rann", "did you mean 'ran'?"), ("zebra", ""), (3, ""), ("", "")]
)
def test_a_passed_name_that_no_op_uses(adding: sk.SuperKernel, name: Any, hint: str) -> None:
    refused(adding, arrays() | {name: vector()}, f"no op uses the name {name!r}", hint)


def test_a_misspelt_name_is_told_as_such_not_as_a_missing_one(adding: sk.SuperKernel) -> None:
    given = arrays()
    given["raan"] = given.pop("ran")
    refused(adding, given, "'raan'", "did you mean 'ran'?")


@pytest.mark.parametrize("given", [None, [], [("a", 1)], "a", 3, {"a"}])
def test_something_else_than_a_dict(adding: sk.SuperKernel, given: Any) -> None:
    with pytest.raises(LaunchError, match=f"super_kernel_scope '{SCOPE}'.*dict of buffers by name, not"):
        adding(given)


# --- containers, dtypes, sizes


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [1.0] * 12,
        (1.0,) * 12,
        "aaaaaaaaaaaa",
        bytearray(48),
        memoryview(bytes(48)),
        range(12),
        np.float32(1),
        SimpleNamespace(data=1),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("name", ["a", "c"])
def test_something_else_than_an_array_or_a_tensor(adding: sk.SuperKernel, name: str, value: Any) -> None:
    words = (repr(name), type(value).__name__, "numpy array or a torch tensor")
    refused(adding, arrays(**{name: value}), *words)
    refused(adding, tensors(**{name: value}), *words)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint32", "bool", "complex64", "object", "U1", ">f4"])
@pytest.mark.parametrize("name", ["a", "c"])
def test_an_array_of_another_dtype(adding: sk.SuperKernel, name: str, dtype: str) -> None:
    value = np.ones(12, dtype)
    refused(adding, arrays(**{name: value}), repr(name), f"dtype {value.dtype}", "float32")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32", "bool", "complex64"])
@pytest.mark.parametrize("name", ["a", "c"])
def test_a_tensor_of_another_dtype(adding: sk.SuperKernel, name: str, dtype: str) -> None:
    value = torch.ones(12, dtype=getattr(torch, dtype))
    refused(adding, tensors(**{name: value}), repr(name), f"dtype {dtype}", "float32")


@pytest.mark.parametrize("shape", [(11,), (13,), (0,), (), (12, 2), (3, 5), (1, 12, 0)], ids=str)
@pytest.mark.parametrize("name", ["a", "c"])
def test_another_number_of_elements(adding: sk.SuperKernel, name: str, shape: tuple[int, ...]) -> None:
    words = (repr(name), f"shape {list(shape)}", "[12] (12 elements)")
    refused(adding, arrays(**{name: np.zeros(shape, np.float32)}), *words)
    refused(adding, tensors(**{name: torch.zeros(shape)}), *words)


@pytest.mark.parametrize(
    "value",
    [np.array([None] * 3), np.zeros(2, dtype=[("x", "O")]), np.zeros(3, ">f8"), np.zeros(2, dtype=[("x", ">i4")])],
    ids=["objects", "objects inside", "big endian", "big endian inside"],
)
def test_an_untyped_name_takes_no_objects_and_no_foreign_bytes(touching: sk.SuperKernel, value: np.ndarray) -> None:
    refused(touching, {"ran": np.zeros(1, np.int64), "a": value, "b": vector()}, "'a'", "dtype")


# --- memory


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.ones(24, np.float32)[::2],
        lambda: np.ones(12, np.float32)[::-1],
        lambda: np.broadcast_to(np.float32(1), 12).view(),
        lambda: np.ones((3, 4), np.float32, order="F"),
        lambda: np.ones((4, 3), np.float32).T,
        lambda: np.ones((12, 2), np.float32)[:, 0],
    ],
    ids=["strided", "reversed", "broadcast", "Fortran order", "transposed", "column"],
)
@pytest.mark.parametrize("name", ["a", "c"])
def test_an_array_that_is_not_contiguous(adding: sk.SuperKernel, name: str, make: Callable[[], np.ndarray]) -> None:
    refused(adding, arrays(**{name: make()}), repr(name), "not contiguous", "ascontiguousarray")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(24)[::2],
        lambda: torch.ones(1).expand(12),
        lambda: torch.ones(4, 3).T,
        lambda: torch.ones(1, 3, 2, 2).to(memory_format=torch.channels_last),
    ],
    ids=["strided", "expanded", "transposed", "channels last"],
)
@pytest.mark.parametrize("name", ["a", "c"])
def test_a_tensor_that_is_not_contiguous(adding: sk.SuperKernel, name: str, make: Callable[[], Any]) -> None:
    refused(adding, tensors(**{name: make()}), repr(name), "not contiguous", ".contiguous()")


def read_only(value: np.ndarray) -> np.ndarray:
    value.flags.writeable = False
    return value


@pytest.mark.parametrize("name", ["ran", "t", "c"])
def test_a_read_only_array_that_an_op_writes(adding: sk.SuperKernel, name: str) -> None:
    given = arrays()
    given[name] = read_only(given[name])
    refused(adding, given, repr(name), "read-only")


def test_a_read_only_file_that_an_op_writes(adding: sk.SuperKernel, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    vector(7).tofile(path)
    mapped = np.memmap(path, np.float32, mode="r")
    refused(adding, arrays(c=mapped), "'c'", "read-only")
    given = arrays(a=mapped)
    adding(given)
    assert (given["c"] == 11).all()


def whole(values: Any) -> Any:
    """24 floats, as an array or as a tensor."""
    return values(24, dtype=np.float32 if values is np.ones else torch.float32)


@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
@pytest.mark.parametrize(("first", "second"), [("a", "c"), ("c", "a"), ("t", "c"), ("b", "t")])
@pytest.mark.parametrize("offset", [0, 1, 11])
def test_overlapping_buffers_of_which_one_is_written(
    adding: sk.SuperKernel, make: Any, first: str, second: str, offset: int
) -> None:
    memory = whole(make)
    given = (arrays if make is np.ones else tensors)(**{first: memory[:12], second: memory[offset : offset + 12]})
    refused(adding, given, repr(first), repr(second), "overlap")


def test_one_array_under_two_names_of_which_one_is_written(adding: sk.SuperKernel) -> None:
    same = vector()
    refused(adding, arrays(b=same, c=same), "'b'", "'c'", "overlap")
    same_tensor = torch.ones(12)
    refused(adding, tensors(b=same_tensor, c=same_tensor), "'b'", "'c'", "overlap")


def test_an_array_and_a_tensor_of_one_memory(adding: sk.SuperKernel) -> None:
    memory = torch.ones(12)
    refused(adding, arrays(a=memory, c=memory.numpy()), "'a'", "'c'", "overlap")


def test_one_large_read_buffer_that_covers_a_small_written_one(touching: sk.SuperKernel) -> None:
    memory = np.ones(100, np.float32)
    given = {"ran": np.zeros(1, np.int64), "a": memory, "b": memory[50:51]}
    refused(touching, given, "'a'", "'b'", "overlap")


# --- tensors that are no plain memory


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.ones(12, device="meta"), "device meta"),
        (lambda: torch.ones(12).to_sparse(), "sparse_coo"),
        (lambda: torch.ones(3, 4).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.ones(12).to_mkldnn(), "mkldnn"),
        (lambda: torch.complex(torch.ones(12), torch.ones(12)).conj(), "complex64"),
        (lambda: torch._neg_view(torch.ones(12)), "negation"),
    ],
    ids=["meta", "sparse", "sparse rows", "mkldnn", "conjugate", "negated"],
)
@pytest.mark.parametrize("name", ["a", "c"])
def test_a_tensor_that_is_not_plain_memory_on_this_machine(
    adding: sk.SuperKernel, name: str, make: Callable[[], Any], words: str
) -> None:
    refused(adding, tensors(**{name: make()}), repr(name), words)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_that_only_pretends_to_have_memory(adding: sk.SuperKernel) -> None:
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(12))
    with pytest.raises(LaunchError, match=f"super_kernel_scope '{SCOPE}'.*'a' has no memory"):
        adding(tensors(a=fake))


@pytest.mark.conformance
def test_a_tensor_whose_memory_was_freed() -> None:
    done = child(
        """
        import torch
        from runtime.given import ADD, compiled
        from superkernel import LaunchError, Op

        given = {name: torch.ones(12) for name in "abc"}
        given["a"].untyped_storage().resize_(0)
        try:
            compiled(Op(ADD, ["a", "b", "c"]))(given)
        except LaunchError as error:
            print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert f"super_kernel_scope {SCOPE!r}" in done.stdout and "'a' has no memory" in done.stdout


def test_a_stand_in_for_many_tensors(adding: sk.SuperKernel) -> None:
    def launch(row: Any) -> Any:
        adding(tensors(a=row))
        return row

    with pytest.raises(LaunchError, match=f"super_kernel_scope '{SCOPE}'.*'a'"):
        torch.func.vmap(launch)(torch.ones(3, 12))


# --- the launch as a whole


def test_the_first_mistake_is_found_even_if_the_last_name_has_it(adding: sk.SuperKernel) -> None:
    given = arrays(c=np.ones(12))
    refused(adding, given, "'c'", "float64")
    assert given["ran"][0] == 0
    given["c"] = vector(0)
    adding(given)
    assert given["ran"][0] == 1 and (given["c"] == 5).all()


def test_wrong_keywords_of_a_launch(adding: sk.SuperKernel) -> None:
    refused(adding, arrays(), "'mark'", "dynamic", tiling={"mark": lambda inputs: (0, 1)})
    refused(adding, arrays(), "event", "go", events={"go": sk.Event()})


@pytest.mark.parametrize("changed", [{"a": np.ones(12)}, {"zebra": vector()}, {"t": None}], ids=list)
def test_the_unfused_and_the_replayed_launch_refuse_the_same(adding: sk.SuperKernel, changed: dict[str, Any]) -> None:
    fused = refused(adding, arrays(**changed))
    unfused = adding.unfused()
    given = arrays(**changed)
    with pytest.raises(LaunchError) as caught:
        unfused(given)
    assert str(caught.value) == fused and given["ran"][0] == 0
    with compiled(*(node.op for node in adding.graph.nodes), options="debug-replay=1") as replayed:
        assert refused(replayed, arrays(**changed)) == fused


def test_the_careful_way_refuses_the_same_as_the_fast_way(adding: sk.SuperKernel) -> None:
    """A mapping that is no dict always takes the careful way."""

    class Names(dict[str, Any]):
        pass

    for changed in ({"a": np.ones(12)}, {"a": vector()[::-1]}, {"c": read_only(vector())}, {"zebra": vector()}):
        with pytest.raises(LaunchError) as fast:
            adding(arrays(**changed))
        with pytest.raises(LaunchError) as careful:
            adding(Names(arrays(**changed)))
        assert str(fast.value) == str(careful.value)


def test_an_array_between_two_items(adding: sk.SuperKernel) -> None:
    odd = np.zeros(12 * 4 + 1, np.uint8)[1:].view(np.float32)
    refused(adding, arrays(a=odd), "'a'", "multiple of its item size")


def test_a_written_tensor_that_autograd_follows(adding: sk.SuperKernel) -> None:
    given = tensors(c=torch.zeros(12, requires_grad=True))
    refused(adding, given, "'c'", "requires grad", "detach")
    with torch.no_grad():
        adding(given)
    assert (given["c"] == 5).all()


def test_a_tensor_that_is_only_read_may_require_grad(adding: sk.SuperKernel) -> None:
    given = tensors(a=torch.ones(12, requires_grad=True))
    adding(given)
    assert (given["c"] == 5).all()
