"""CANN's metadata and op lists: what is read, and every mistake told with file and field before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from targets.ascend.conftest import MIX, TILED, entry, metadata

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.model.hazards import Hazard
from superkernel.targets import find_target
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.facts import facts_of

Write = Callable[..., Path]


def read(path: Path, chip: str | None = None) -> Any:
    return find_target("ascend").for_chip(chip).read_ops(path)


def compiled(path: Path, options: str = "", **more: Any) -> sk.kernel.SuperKernel:
    described = read(path)
    return sk.compile(described.ops, described.name, options or described.options, "ascend", **more)


def test_an_op_list_is_read(write: Write) -> None:
    described = read(
        write([entry("vec", args=["a", "b"], name="first"), entry("mix")], vec=metadata(), mix=metadata(**MIX))
    )
    first, second = described.ops
    assert described.name == "ops" and described.target == "ascend"
    assert (first.name, first.args, first.kernel.block_dim) == ("first", ("a", "b"), 8)
    assert facts_of(second.kernel).type is KernelType.MIX_AIC_1_2
    assert [code.symbol for _, _, code in facts_of(second.kernel).codes] == ["mix_cube_func", "mix_vec_func"]


def test_an_object_with_a_name_options_and_the_list(write: Write) -> None:
    path = write({"name": "mine", "options": "early-start=0", "op_list": [entry("vec")]}, vec=metadata())
    described = read(path)
    assert described.name == "mine" and described.options.early_start == 0


def test_ops_json_is_read_as_everywhere(write: Write, tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text('extern "C" void k(uint64_t) {}')
    described = read(
        write(
            {
                "kernels": {"k": {"source": "k.cpp", "block_dim": 2, "params": ["in:x"]}},
                "ops": [{"kernel": "k", "args": ["a"]}],
            }
        )
    )
    assert described.ops[0].kernel.name == "k"


def test_without_args_stream_order_is_a_full_dependency_and_names_are_private(write: Write) -> None:
    path = write([entry("vec"), entry("vec"), entry("vec", stream_id=1)], vec=metadata())
    with compiled(path) as k:
        edges = [(edge.producer, edge.consumer, [r.hazard for r in edge.reasons]) for edge in k.graph.edges]
        assert edges == [(0, 1, [Hazard.EVENT])]
        assert len(k.graph.buffers) == 6 and not k.graph.events
        kernel_list = k.executable.descriptor["SuperkernelInfo"]["kernelList"]["aicore"]
        assert all(op["send_event_list"] == [] and op["recv_event_list"] == [] for op in kernel_list)


def test_bare_parameters_are_read_and_written(write: Write) -> None:
    path = write(
        [entry("vec", args=["a", "b"]), entry("vec", args=["b", "c"])], vec=metadata(sub_operator_params=["x", "y"])
    )
    assert str(read(path).ops[0].kernel.params[0]) == "inout:x"


def test_a_dynamic_op_has_a_function_per_tiling_key(write: Write) -> None:
    path = write(
        [entry("vec", args=["a", "b"]), entry("tiled", task_type="dynamic", args=["b", "c"])],
        vec=metadata(),
        tiled=metadata(**TILED),
    )
    with compiled(path, "split-mode=1") as k:
        assert k.graph.nodes[1].kernel.variants == ((1, "few"), (7, "many"))
        assert "if (key != 1 && key != 7) trap();" in k.source


def test_tiling_keys_may_also_stand_in_an_architecture(write: Write) -> None:
    names = {"AiCore": {"dynamic_func_names": {"3": {"func_name": "few", "obj_files": "tiled.o"}}}}
    path = write([entry("tiled", task_type="dynamic")], tiled=metadata(**TILED | {"sub_operator_kernel_name": names}))
    assert read(path).ops[0].kernel.variants == ((3, "few"),)


def test_every_optional_field(write: Write) -> None:
    more = {
        "sub_op_with_sync_all": True,
        "sub_operator_op_type": "Add",
        "sub_operator_call_dcci_before_kernel_start": True,
        "sub_operator_call_dcci_after_kernel_end": True,
        "sub_operator_call_dcci_disable_on_kernel": False,
        "debugOptions": "printf,assert",
        "debugBufSize": 4096,
    }
    kernel = read(write([entry("vec")], vec=metadata(**more))).ops[0].kernel
    facts = facts_of(kernel)
    assert kernel.sync_all and kernel.type_name == "Add"
    assert (facts.fence_before, facts.fence_after, facts.fence_never) == (True, True, False)
    assert (facts.debug_options, facts.debug_bytes) == (("printf", "assert"), 4096)


def test_the_code_is_measured(write: Write) -> None:
    with compiled(write([entry("vec")], vec=metadata()), "split-mode=1") as k:
        size = k.graph.nodes[0].kernel.code_bytes
        assert 0 < size < 2048 and "preload((const void*)vec_func, 1);" in k.source


REQUIRED = ["kernelName", "blockDim", "sub_operator_kernel_type", "sub_operator_kernel_name", "sub_operator_params",
            "sub_operator_early_start_set_flag", "sub_operator_early_start_wait_flag"]  # fmt: skip


@pytest.mark.parametrize("field", REQUIRED)
def test_a_required_field_is_missing(write: Write, field: str) -> None:
    refused(write([entry("vec")], vec=metadata(**{field: None})), "vec.json", field, "missing")


@pytest.mark.parametrize(
    "field", ["json_path", "bin_path", "stream_id", "task_type", "send_event_list", "recv_event_list"]
)
def test_a_field_of_an_entry_is_missing(write: Write, field: str) -> None:
    refused(write([entry("vec", **{field: None})], vec=metadata()), "ops.json", "[0]", field, "missing")


def arch(**changes: Any) -> dict[str, Any]:
    fields = {"func_name": "vec_func", "obj_files": "vec.o"} | changes
    return {"AiCore": {key: value for key, value in fields.items() if value is not None}}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("kernelName", 3, ("not a string",)),
        ("kernelName", "no good", ("no C identifier",)),
        ("kernelName", "while", ("no C identifier",)),
        ("blockDim", "8", ("not a whole number",)),
        ("blockDim", 0, ("out of range", "1 to 65535")),
        ("blockDim", 70000, ("out of range",)),
        ("blockDim", True, ("not a whole number",)),
        ("sub_operator_kernel_type", "KERNEL_TYPE_AIV", ("unknown kernel type", "did you mean 'KERNEL_TYPE_AIV_ONLY'")),
        ("sub_operator_kernel_type", 1, ("not a string",)),
        ("sub_operator_kernel_type", "KERNEL_TYPE_AIC_ONLY", ()),
        ("sub_operator_kernel_name", [], ("not an object",)),
        ("sub_operator_kernel_name", {}, ("no entry", "nothing")),
        ("sub_operator_kernel_name", {"dav-c310-vec": arch()["AiCore"]}, ("no entry dav-c220-vec", "dav-c310-vec")),
        ("sub_operator_kernel_name", arch(func_name=None), ("'func_name' is missing",)),
        ("sub_operator_kernel_name", arch(obj_files=None), ("'obj_files' is missing",)),
        ("sub_operator_kernel_name", arch(func_name="2nd"), ("no C identifier",)),
        ("sub_operator_kernel_name", arch(func_name=["a"]), ("not a string",)),
        ("sub_operator_kernel_name", arch(obj_files=[]), ("empty",)),
        ("sub_operator_kernel_name", arch(obj_files=[1]), ("not a string",)),
        ("sub_operator_kernel_name", arch(obj_files="../vec.o"), ("no member",)),
        ("sub_operator_kernel_name", arch(obj_files="vac.o"), ("no object 'vac.o'", "did you mean 'vec.o'")),
        ("sub_operator_kernel_name", {"dynamic_func_names": {"1": arch()}}, ("task_type 'dynamic'",)),
        ("sub_operator_params", "x", ("not a list",)),
        ("sub_operator_params", [3], ("not a string",)),
        ("sub_operator_params", ["in:x", "in:x"], ("two parameters",)),
        ("sub_operator_params", ["inn:x"], ("unknown kind",)),
        ("sub_operator_params", ["in:x:float33"], ("unknown dtype",)),
        ("sub_operator_early_start_set_flag", 1, ("not true or false",)),
        ("sub_operator_early_start_wait_flag", "yes", ("not true or false",)),
        ("split_mode", 0, ("out of range",)),
        ("split_mode", 65, ("out of range",)),
        ("split_mode", "4", ("not a whole number",)),
        ("sub_op_with_sync_all", "no", ("not true or false",)),
        ("sub_operator_op_type", 4, ("not a string",)),
        ("sub_operator_call_dcci_before_kernel_start", 1, ("not true or false",)),
        ("sub_operator_call_dcci_after_kernel_end", "x", ("not true or false",)),
        ("sub_operator_call_dcci_disable_on_kernel", [], ("not true or false",)),
        ("debugOptions", 5, ("not a string",)),
        ("debugOptions", "print f!", ("no debug option",)),
        ("debugOptions", "printf", ("debugBufSize",)),
        ("debugBufSize", -1, ("out of range",)),
        ("debugBufSize", "many", ("not a whole number",)),
    ],
)
def test_a_field_is_wrong(write: Write, field: str, value: object, words: tuple[str, ...]) -> None:
    path = write([entry("vec")], vec=metadata(**{field: value}))
    if field == "sub_operator_kernel_type" and not words:  # AiCore serves either class
        assert read(path).ops
        return
    refused(path, "vec.json", field, *words)


def test_a_mix_kernel_needs_code_for_both_classes(write: Write) -> None:
    path = write([entry("vec")], vec=metadata(sub_operator_kernel_type="KERNEL_TYPE_MIX_AIC_1_1"))
    refused(path, "vec.json", "sub_operator_kernel_name", "no entry dav-c220-cube", "it has AiCore")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"json_path": "nowhere.json"}, ("json_path", "nowhere.json", "does not exist")),
        ({"bin_path": "nowhere.a"}, ("bin_path", "nowhere.a", "does not exist")),
        ({"bin_path": 3}, ("bin_path", "not a string")),
        ({"bin_path": "empty.a"}, ("no object 'vec.o'", "it holds nothing")),
        ({"stream_id": -1}, ("stream_id", "out of range")),
        ({"stream_id": "0"}, ("stream_id", "not a whole number")),
        ({"task_type": "dynamik"}, ("task_type", "did you mean 'dynamic'")),
        ({"send_event_list": [1.5]}, ("send_event_list", "not a whole number")),
        ({"recv_event_list": [[]]}, ("recv_event_list",)),
        ({"args": ["a"]}, ("args", "1 arguments for 2 parameters")),
        ({"name": ""}, ("name", "blank")),
        ({"colour": 1}, ("colour", "unknown field")),
    ],
)
def test_an_entry_is_wrong(write: Write, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    file = "vec.json" if "empty.a" in changes.values() else "ops.json"
    refused(write([entry("vec", **changes)], vec=metadata()), file, *words)


@pytest.mark.parametrize(
    ("top", "words"),
    [
        ([], ("empty",)),
        ({"op_list": []}, ("empty",)),
        (3, ()),
        ({"op_list": 3}, ("not a list",)),
        ({"op_list": [], "nome": 1}, ("did you mean 'name'",)),
    ],
)
def test_the_list_itself_is_wrong(write: Write, top: object, words: tuple[str, ...]) -> None:
    refused(write(top), "ops.json", *words)


@pytest.mark.parametrize("key", ["one", "01", "1.5", "", "9" * 30])
def test_a_tiling_key_that_is_none(write: Write, key: str) -> None:
    names = {"dynamic_func_names": {key: {"AiCore": {"func_name": "few", "obj_files": "tiled.o"}}}}
    path = write([entry("tiled", task_type="dynamic")], tiled=metadata(**TILED | {"sub_operator_kernel_name": names}))
    refused(path, "tiled.json", "no tiling key")


def refused(path: Path, *words: str) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(SuperKernelError) as caught:
        read(path)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert sorted(path.parent.iterdir()) == before


# what a plan refuses


def plan_refused(path: Path, options: str, *words: str) -> None:
    with pytest.raises(SuperKernelError) as caught:
        compiled(path, options)
    for word in ("super_kernel_scope", *words):
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("options", ["early-start=0", "early-start=2"])
@pytest.mark.parametrize("flag", ["set", "wait"])
def test_early_start_flags_against_the_option(write: Write, options: str, flag: str) -> None:
    path = write([entry("vec")], vec=metadata(**{f"sub_operator_early_start_{flag}_flag": True}))
    plan_refused(path, options, "vec.json", options, "early-start=1")
    with compiled(path, "early-start=1") as k:
        assert "sk_call_context" in k.source


def test_early_start_flags_against_two_lanes(write: Write) -> None:
    flagged = metadata(sub_operator_early_start_set_flag=True)
    path = write([entry("vec"), entry("mix", stream_id=1)], vec=flagged, mix=metadata(**MIX))
    plan_refused(path, "stream-fusion=1", "vec.json", "stream-fusion=1")


def test_split_mode_against_the_metadata(write: Write) -> None:
    names = arch(obj_files="tiled.o", func_name="few", obj_files_split1="tiled_copy.o")
    path = write([entry("tiled")], tiled=metadata("tiled", split_mode=2, sub_operator_kernel_name=names))
    plan_refused(path, "split-mode=4", "split-mode=4", "split_mode 2", "tiled.json")
    with compiled(path) as k:
        assert "few_split1" in k.source and "few_split2" not in k.source


def test_split_objects_that_do_not_fit_split_mode(write: Write) -> None:
    names = arch(obj_files="tiled.o", func_name="few", obj_files_split1="tiled_copy.o")
    refused(
        write([entry("tiled")], tiled=metadata("tiled", split_mode=3, sub_operator_kernel_name=names)),
        "split_mode is 3",
        "found 1",
    )
    refused(write([entry("tiled")], tiled=metadata("tiled", sub_operator_kernel_name=names)), "no split_mode")


def test_blocks_above_the_chip(write: Write) -> None:
    path = write([entry("vec")], vec=metadata(blockDim=49))
    plan_refused(path, "", "vec_0", "49 blocks", "chip a3", "48")
    many = write([entry("mix")], mix=metadata(**MIX | {"blockDim": 25}))
    plan_refused(many, "", "mix_0", "25 cube and 50 vector cores")


def test_a_one_to_two_op_with_a_forced_one_to_one_launch(write: Write) -> None:
    path = write([entry("mix")], mix=metadata(**MIX))
    plan_refused(path, "debug-aic-num=8:debug-aiv-num=8", "mix_0", "needs a 1:2 launch")


def test_a_name_that_is_no_c_identifier(write: Write) -> None:
    described = read(write([entry("vec")], vec=metadata()))
    with pytest.raises(sk.GraphError, match="no C identifier"):
        sk.compile(described.ops, "my kernel", "", "ascend")


def test_sync_all_on_fewer_cores_than_the_launch_names_the_option(write: Write) -> None:
    path = write(
        [entry("vec"), entry("tiled", args=["p", "q"])],
        vec=metadata(),
        tiled=metadata(
            "tiled",
            blockDim=3,
            sub_op_with_sync_all=True,
            sub_operator_kernel_name=arch(func_name="few", obj_files="tiled.o"),
        ),
    )
    plan_refused(path, "", "tiled_1", "feed-sync-all=1")
    with compiled(path, "feed-sync-all=1") as k:
        assert "sk_join_barriers" in k.source


def test_cores_need_a_class(write: Write) -> None:
    with pytest.raises(sk.PlanError, match="debug-aic-num"):
        compiled(write([entry("vec")], vec=metadata()), cores=4)


def test_ptx_is_for_others(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text("")
    kernel = sk.SubKernel.from_ptx(tmp_path / "k.ptx", "k", block_dim=1, params=["in:x"])
    with pytest.raises(sk.GraphError, match="PTX"):
        sk.compile([sk.Op(kernel, ["a"])], target="ascend")
