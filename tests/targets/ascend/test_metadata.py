"""CANN's metadata and op lists: what is read, and what a plan refuses of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from targets.ascend.conftest import MIX, TILED, arch, entry, metadata, read, refused

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.model.hazards import Hazard
from superkernel.model.op import Task
from superkernel.model.options import Options
from superkernel.targets.ascend.calling_convention import CallingConvention, SyncProtocol
from superkernel.targets.ascend.core_types import CUBE, VECTOR, KernelType
from superkernel.targets.ascend.facts import facts_of

Write = Callable[..., Path]


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


def test_a_dynamic_op_in_the_form_that_cann_writes(write: Write) -> None:
    """A function is a name; its objects are those of its architecture; a key has 64 bits without a sign."""
    names = {
        "dav-c220-cube": {"func_name": "mix_cube_func", "obj_files": "mix_cube.o"},
        "dav-c220-vec": {"func_name": "mix_vec_func", "obj_files": "mix_vec.o"},
        "dynamic_func_names": {
            key: {
                "dav-c220-cube": "mix_cube_func",
                "dav-c220-vec": "mix_vec_func",
                "kernel_type": "KERNEL_TYPE_MIX_AIC_1_2",
            }
            for key in ("10", "10000000000000000011")
        },
    }
    path = write([entry("mix", task_type="dynamic")], mix=metadata(**MIX | {"sub_operator_kernel_name": names}))
    facts = facts_of(read(path).ops[0].kernel)
    found = [(core_class, key, code.symbol, code.objects) for core_class, key, code in facts.codes]
    wrapped = 10000000000000000011 - 2**64
    assert found == [
        (CUBE, 10, "mix_cube_func", ("mix_cube.o",)),
        (VECTOR, 10, "mix_vec_func", ("mix_vec.o",)),
        (CUBE, wrapped, "mix_cube_func", ("mix_cube.o",)),
        (VECTOR, wrapped, "mix_vec_func", ("mix_vec.o",)),
    ]
    with compiled(path) as k:
        assert f"key != 10 && key != {wrapped}" in k.source or f"key != {wrapped} && key != 10" in k.source
        [listed] = k.executable.descriptor["SuperkernelInfo"]["kernelList"]["aicore"]
    assert {*listed["func_name"]["cube"]} == {"10", "10000000000000000011"}  # as the metadata write them


@pytest.mark.parametrize("nested", ["by key", "by function", "by architecture"])
def test_tiling_keys_of_different_kernel_types_are_refused_by_name(write: Write, nested: str) -> None:
    mixed = "KERNEL_TYPE_MIX_AIC_1_2"
    function = {"func_name": "few", "obj_files": "tiled.o"}
    names: dict[str, Any] = {"dynamic_func_names": {"1": {"AiCore": function}}}
    if nested == "by key":
        names["dynamic_func_names"]["7"] = {"AiCore": function, "kernel_type": mixed}
    elif nested == "by function":
        names["dynamic_func_names"]["7"] = {"AiCore": function | {"kernel_type": mixed}}
    else:
        names = {"AiCore": {"dynamic_func_names": {"1": function, "7": function | {"kernel_type": mixed}}}}
    path = write([entry("tiled", task_type="dynamic")], tiled=metadata("tiled", sub_operator_kernel_name=names))
    refused(path, "tiled.json", "kernel_type", "tiling key 7 is KERNEL_TYPE_MIX_AIC_1_2", "KERNEL_TYPE_AIV_ONLY")


@pytest.mark.parametrize(
    ("kind", "names", "blocks"),
    [
        ("KERNEL_TYPE_AIV_ONLY", ("AiCore",), 48),
        ("KERNEL_TYPE_AIC_ONLY", ("AiCore",), 24),
        ("KERNEL_TYPE_MIX_AIV_1_0", ("dav-c220-vec",), 48),
        ("KERNEL_TYPE_MIX_AIC_1_0", ("dav-c220-cube",), 24),
        ("KERNEL_TYPE_MIX_AIC_1_1", ("dav-c220-cube", "dav-c220-vec"), 24),
        ("KERNEL_TYPE_MIX_AIC_1_2", ("dav-c220-cube", "dav-c220-vec"), 24),
    ],
)
def test_architecture_keys_and_most_blocks_by_type(
    write: Write, kind: str, names: tuple[str, ...], blocks: int
) -> None:
    table = {name: {"func_name": f"mix_{'vec' if 'vec' in name else 'cube'}_func", "obj_files": "mix_cube.o"}
             | ({"obj_files": "mix_vec.o"} if "vec" in name else {}) for name in names}  # fmt: skip
    fields = {"sub_operator_kernel_type": kind, "sub_operator_kernel_name": table, "blockDim": 4}
    path = write([entry("mix"), entry("mix", task_type="dynamic")], mix=metadata(**MIX | fields))
    static, dynamic = read(path).ops
    assert (static.kernel.block_dim, dynamic.kernel.block_dim) == (4, blocks)
    assert [code.symbol for _, _, code in facts_of(static.kernel).codes] == [table[name]["func_name"] for name in names]


def test_only_the_files_of_an_entry_are_required(write: Write) -> None:
    files = {"json_path": "vec.json", "bin_path": "vec.a"}
    first, second = read(write([files, files], vec=metadata())).ops
    assert (first.stream, second.stream, first.task) == (0, 0, Task.NORMAL)
    assert not first.recv and second.recv == first.send  # stream order


def test_ops_without_a_stream_are_in_one_of_their_own(write: Write) -> None:
    ids = [0, None, 2, -1, 0]
    ops = read(write([entry("vec", stream_id=stream) for stream in ids], vec=metadata())).ops
    assert [op.stream for op in ops] == [0, 1, 2, 1, 0]


@pytest.mark.parametrize("text", ["early-start=0:split-mode=1", '"early-start=0:split-mode=1"'])
def test_options_beside_the_list(write: Write, text: str) -> None:
    listed = {"super_kernel_options": text, "op_list": [entry("vec")]}
    assert read(write(listed, vec=metadata())).options == Options.parse("early-start=0:split-mode=1")
    both = listed | {"options": "split-mode=1:early-start=0"}
    assert read(write(both, vec=metadata())).options == Options.parse("early-start=0:split-mode=1")


def test_unknown_fields_are_listed_with_their_places(write: Write) -> None:
    names = {"AiCore": {"func_name": "vec_func", "obj_files": "vec.o", "size": 3}}
    more = metadata(colour="red", opParaSize=8, taskRation="0:1", sub_operator_kernel_name=names)
    listed = {"op_list": [entry("vec", kernel_name="a"), entry("vec", kernel_name="b")], "soc": "x"}
    path = write(listed, vec=more)
    meta = str(path.parent / "vec.json")
    assert [(place.file, place.path) for place in read(path).ignored] == [
        (str(path), "soc"),
        (str(path), "op_list[0].kernel_name"),
        (str(path), "op_list[1].kernel_name"),
        (meta, "colour"),
        (meta, "sub_operator_kernel_name.AiCore.size"),
    ]


def test_metadata_says_how_a_sub_kernel_is_called(write: Write) -> None:
    facts = facts_of(read(write([entry("vec")], vec=metadata())).ops[0].kernel)
    assert (facts.convention, facts.protocol) == (CallingConvention.SLOT_INDEX, SyncProtocol.CANN)
    ours = metadata(superkernel_call="pointers", superkernel_protocol="subkernel.h")
    facts = facts_of(read(write([entry("vec")], vec=ours)).ops[0].kernel)
    assert (facts.convention, facts.protocol) == (CallingConvention.POINTERS, SyncProtocol.SUBKERNEL_H)


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
        assert "sk_cann_context" in k.source


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
