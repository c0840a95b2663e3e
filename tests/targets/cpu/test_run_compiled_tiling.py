"""targets.cpu: dynamic ops whose tiling a C function computes, called by a core."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.small import KERNELS, Array, N, compile_ops, launched, numbers, small

import superkernel as sk
from superkernel import BuildError, GraphError, LaunchError, Op, Place, SubKernel, SuperKernel, Tiling, UnsupportedError
from superkernel.model.opsfile import read_ops
from superkernel.plan.simulate.simulate import simulate
from superkernel.plan.steps import ComputeTiling
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native.toolchain import find_toolchain, run

SOURCE = KERNELS / "tilings.cpp"
VARIANTS = {2: "twice", 3: "thrice"}


def by(symbol: str) -> Any:
    return Tiling.from_source(SOURCE, symbol)


def python_twin(inputs: dict[str, Array]) -> tuple[int, int]:
    """by_first_number of tilings.cpp."""
    number = int(next(iter(inputs.values()))[0])
    return 2 + (number & 1), 1 + ((number >> 1) & 0xFF) % 4


def chain(first: Any, second: Any) -> list[Op]:
    """Two dynamic ops on what other ops store, and an op behind them."""
    dynamic = small("twice", 4, variants=VARIANTS)
    return [
        Op(small("late", 4), ["a", "t", 300]),
        Op(dynamic, ["t", "u"], name="one", task="dynamic", tiling=first),
        Op(dynamic, ["u", "v"], name="two", task="dynamic", tiling=second),
        Op(small("mix", 4), ["v", "t", "w"]),
    ]


@pytest.fixture(scope="module")
def chosen() -> SuperKernel:
    return compile_ops(chain(by("by_first_number"), by("by_first_number")), "compiled", "debug-watchdog=200")


def computed(arrays: dict[str, Array]) -> dict[str, Array]:
    """What the chain leaves, by numpy."""
    at, t = np.arange(N), 9 * arrays["a"] + 4
    u = arrays["u"] + (3 * t[::-1] if t[0] & 1 else 2 * t)
    v = arrays["v"] + (3 * u[::-1] if u[0] & 1 else 2 * u)
    return {"t": t, "u": u, "v": v, "w": 3 * v + t[::-1] + at}


def assert_computed(kernel: Any, owner: SuperKernel, seeds: range = range(8)) -> None:
    for seed in seeds:
        arrays = numbers("a", "u", "v", seed=seed)
        found = launched(kernel, owner, arrays)
        for name, value in computed(arrays).items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{name}, seed {seed}")


def test_a_core_calls_the_function_on_what_was_stored(chosen: SuperKernel) -> None:
    assert sum(isinstance(step, ComputeTiling) for step in chosen.plan.steps) == 2
    assert "compute the tiling of one" in str(chosen.plan)
    assert_computed(chosen, chosen)


def test_the_function_reads_what_a_launch_keeps_inside(chosen: SuperKernel) -> None:
    """The caller does not pass t: it is in the arena."""
    for seed in range(4):
        arrays = numbers("a", "u", "v", seed=seed)
        wanted = computed({name: value.copy() for name, value in arrays.items()})
        np.testing.assert_array_equal(chosen(arrays)["w"], wanted["w"])
        np.testing.assert_array_equal(arrays["v"], wanted["v"])


def test_every_op_alone_gives_the_same(chosen: SuperKernel) -> None:
    assert_computed(chosen.unfused(), chosen, range(3))


@pytest.mark.parametrize("cores", (1, 3))
def test_other_core_counts_give_the_same(cores: int) -> None:
    ops = chain(by("by_first_number"), by("by_first_number"))
    with compile_ops(ops, f"compiled_{cores}", "debug-watchdog=200", cores) as k:
        assert_computed(k, k)


def test_a_launch_without_a_team_runs_the_whole_plan(chosen: SuperKernel, outside: ctypes.CDLL) -> None:
    """Inside a region of another program one core runs everything, tiling functions included."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            assert_computed(chosen, chosen, range(4))
        except BaseException as error:
            errors.append(error)

    assert outside.call_inside(ctypes.CFUNCTYPE(None)(act), 0) == 2
    assert not errors, errors


def test_random_interleavings_of_the_plan_agree(chosen: SuperKernel) -> None:
    for seed in range(20):
        assert simulate(chosen.plan, seed).ok


def test_a_compiled_and_a_python_function_in_one_kernel() -> None:
    with compile_ops(chain(by("by_first_number"), python_twin), "both", "debug-watchdog=200") as k:
        assert_computed(k, k)
        assert_computed(k.unfused(), k, range(2))


def test_it_works_with_time_stamps_and_replay() -> None:
    ops = chain(by("by_first_number"), by("by_first_number"))
    with compile_ops(ops, "recorded", "profiling=1:debug-replay=1:debug-watchdog=200") as k:
        assert_computed(k, k, range(2))
        assert {span.op for span in k.records()} >= {"one", "two"}


def test_no_blocks_skip_the_op() -> None:
    ops = [Op(small("twice", 2, variants=VARIANTS), ["a", "z"], task="dynamic", tiling=by("no_blocks"))]
    with compile_ops(ops, "none") as k:
        arrays = numbers("a", "z")
        np.testing.assert_array_equal(launched(k, k, arrays)["z"], arrays["z"])


def test_blocks_that_meet_are_fed() -> None:
    ops = [
        Op(small("mix", 4), ["a", "b", "t"]),
        Op(small("gather", 3), ["t", "ws", "z"], task="dynamic", tiling=by("all_blocks")),
    ]
    with compile_ops(ops, "fed_compiled", "feed-sync-all=1:debug-watchdog=200", 4) as k:
        arrays = numbers("a", "b", "z")
        t = 3 * arrays["a"] + arrays["b"][::-1] + np.arange(N)
        np.testing.assert_array_equal(launched(k, k, arrays)["z"], t + t.sum())


def test_the_function_gets_names_addresses_sizes_and_scalars() -> None:
    """An output has a size and no address: other ops may still be using it."""
    params = ("in:x:int64[48]", "scalar:factor", "out:z:int64[40]", "workspace:room:int64[48]")
    scaled = SubKernel.from_source(SOURCE, "scaled", block_dim=3, params=params)
    op = Op(scaled, ["x", 7, Place("z", 64), "room"], task="dynamic", tiling=by("checks_arguments"))
    with compile_ops([op], "told") as k:
        arrays = {**numbers("x"), "z": np.zeros(N, np.int64)}
        k(arrays)
        np.testing.assert_array_equal(arrays["z"], np.concatenate([np.zeros(8), 7 * arrays["x"][:40]]))


def test_what_kernels_may_call_does_nothing_in_a_tiling_function() -> None:
    """The function stands between ops that wait inside themselves and signal early."""
    ops = [
        Op(small("mix", 4), ["a", "b", "t"]),
        Op(small("early", 4), ["t", "b", "u"]),
        Op(small("twice", 2), ["u", "z"], task="dynamic", tiling=by("uses_kernel_h")),
        Op(small("early", 4), ["z", "u", "v"]),
    ]
    with compile_ops(ops, "calls", "debug-watchdog=200") as k:
        for seed in range(20):
            arrays = numbers("a", "b", "z", seed=seed)
            t = 3 * arrays["a"] + arrays["b"][::-1] + np.arange(N)
            u = 2 * np.roll(t, -7) + 3 * arrays["b"]
            z = arrays["z"] + 2 * u
            np.testing.assert_array_equal(launched(k, k, arrays)["v"], 2 * np.roll(z, -7) + 3 * u)


WRONG = {
    1: r"op 'told' was given the unknown tiling key 5; its keys are 2, 3",
    2: r"op 'told' was given 5 blocks; it can run with 0 to 4",
    3: r"op 'told': its tiling function 'as_told' returned -17 instead of 0",
    4: r"op 'told': the first number is 4",
}


@pytest.fixture(scope="module")
def told() -> SuperKernel:
    dynamic = small("twice", 4, variants=VARIANTS)
    ops = [
        Op(small("scale", 4), ["a", "t"]),
        Op(dynamic, ["t", "z"], name="told", task="dynamic", tiling=by("as_told")),
        Op(small("mix", 4), ["z", "t", "u"]),
    ]
    return compile_ops(ops, "wrong", "debug-watchdog=200")


@pytest.mark.parametrize("what", WRONG)
def test_what_goes_wrong_names_the_op_and_the_next_launch_works(told: SuperKernel, what: int) -> None:
    for _ in range(3):
        arrays = numbers("a", "z")
        arrays["z"][0] = what
        before = arrays["z"].copy()
        with pytest.raises(LaunchError, match=f"super_kernel_scope 'wrong': {WRONG[what]}"):
            told(arrays)
        np.testing.assert_array_equal(arrays["z"], before)
        arrays["z"][0] = 0
        told(arrays)
        before[0] = 0
        np.testing.assert_array_equal(arrays["z"], before + 2 * (5 * arrays["a"] + 1))


def test_a_function_that_sets_no_block_count_is_an_error() -> None:
    ops = [Op(small("twice", 2), ["a", "z"], name="unset", task="dynamic", tiling=by("nothing_set"))]
    with compile_ops(ops, "unset") as k, pytest.raises(LaunchError, match=r"op 'unset' was given -1 blocks"):
        k(numbers("a", "z"))


def test_an_object_is_linked_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tilings.o"
    run([*find_toolchain().cxx, "-O1", "-fPIC", f"-I{INCLUDE}", "-c", str(SOURCE), "-o", str(path)], what="an object")
    tiling = Tiling.from_object(path, "by_first_number")
    with compile_ops(chain(tiling, tiling), "from_object", "debug-watchdog=200") as k:
        assert_computed(k, k, range(3))


def test_a_saved_kernel_brings_its_functions(chosen: SuperKernel, tmp_path: Path) -> None:
    with sk.load(chosen.save(tmp_path / "saved")) as k:
        assert str(k.plan) == str(chosen.plan)
        assert_computed(k, k, range(3))
        with pytest.raises(LaunchError, match="has a compiled tiling"):
            k(numbers("a", "u", "v"), tiling={"one": python_twin})


def test_an_ops_file_names_source_and_symbol(tmp_path: Path) -> None:
    twice = {"source": str(KERNELS / "small.cpp"), "block_dim": 2, "params": ["in:x:int64[48]", "inout:z:int64[48]"]}
    entry = {"kernel": "twice", "args": ["a", "z"], "task": "dynamic"}
    described = {
        "kernels": {"twice": twice},
        "ops": [entry | {"tiling": {"source": str(SOURCE), "symbol": "all_blocks"}}],
    }
    path = tmp_path / "ops.json"
    path.write_text(json.dumps(described))
    with compile_ops(read_ops(path).ops, "from_file") as k:
        arrays = numbers("a", "z")
        np.testing.assert_array_equal(launched(k, k, arrays)["z"], arrays["z"] + 2 * arrays["a"])
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "both": (
            {"source": str(SOURCE), "object": "x.o", "symbol": "f"},
            r"ops\[0\].*exactly one of source and object",
        ),
        "neither": ({"symbol": "f"}, "exactly one of source and object"),
        "no symbol": ({"source": str(SOURCE)}, "'symbol' is missing"),
        "no file": ({"source": "missing.cpp", "symbol": "f"}, r"missing\.cpp.*does not exist"),
        "flags": ({"object": str(SOURCE), "symbol": "f", "flags": ["-g"]}, "flags are for the compiler of a source"),
        "unknown field": ({"source": str(SOURCE), "symbl": "f"}, "symbl"),
    }
    for tiling, pattern in wrong.values():
        path.write_text(json.dumps(described | {"ops": [entry | {"tiling": tiling}]}))
        with pytest.raises(sk.SuperKernelError, match=pattern):
            read_ops(path)


def test_what_is_refused_when_it_is_compiled(chosen: SuperKernel, tmp_path: Path) -> None:
    def compiled(tiling: Any, **more: Any) -> SuperKernel:
        return sk.compile([Op(small("twice", 2), ["a", "z"], task="dynamic", tiling=tiling)], "refused", **more)

    with pytest.raises(BuildError, match=r"tilings\.cpp.*'absent'"):
        compiled(by("absent"), cores=2)
    with pytest.raises(BuildError, match=r"tilings\.cpp: the tiling function is by_reference\(sk_tiling_args const&"):
        compiled(by("by_reference"), cores=2)
    compiled(by("nested::all"), cores=2).close()
    with pytest.raises(GraphError, match=r"tiling function 'f': .*flags is a list of strings"):
        Tiling.from_source(SOURCE, "f", "-g")
    with pytest.raises(BuildError, match=r"tiling function 'f': .*nowhere\.cpp.*does not exist"):
        Tiling.from_source(tmp_path / "nowhere.cpp", "f")
    with pytest.raises(BuildError, match=r"nowhere\.o.*does not exist"):
        Tiling.from_object(tmp_path / "nowhere.o", "f")
    with pytest.raises(UnsupportedError, match="on the ascend target the AI CPU chooses tilings"):
        compiled(by("all_blocks"), target="ascend")
    for wrong in (5, "all_blocks", Tiling(0, 1)):
        with pytest.raises(GraphError, match=r"tiling must be a function, Tiling\.from_source"):
            compiled(wrong)
    with pytest.raises(GraphError, match="belongs to task='dynamic'"):
        Op(small("twice", 2), ["a", "z"], tiling=by("all_blocks"))


def test_what_is_refused_at_a_launch(chosen: SuperKernel) -> None:
    arrays = numbers("a", "u", "v")
    with pytest.raises(LaunchError, match="op 'one' has a compiled tiling, which is linked into the kernel"):
        chosen(arrays, tiling={"one": python_twin})
    ops = [Op(small("twice", 2), ["a", "z"], name="open", task="dynamic")]
    with compile_ops(ops, "open") as k, pytest.raises(LaunchError, match=r"'open'.*give it to its Op"):
        k(numbers("a", "z"), tiling={"open": by("all_blocks")})


def test_a_launch_by_values_alone(chosen: SuperKernel) -> None:
    """No Python is needed at a launch, so that addresses are enough."""
    arrays = numbers("a", "u", "v")
    wanted = computed({name: value.copy() for name, value in arrays.items()})
    memory = {name: arrays.get(name, np.zeros(N, np.int64)) for name in chosen.graph.buffers}
    values, sizes = chosen.argument_arrays()
    for place, value in enumerate(memory.values()):
        values[place], sizes[place] = value.ctypes.data, value.nbytes
    chosen.launch_values(values, sizes)
    for name, value in wanted.items():
        np.testing.assert_array_equal(memory[name], value, err_msg=name)
