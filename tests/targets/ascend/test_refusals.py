"""superkernel compile --target ascend on bad input: one named error that says what, where and what to do; no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.ascend.conftest import MIX, TILED, archive, entry, host_object, metadata
from typer.testing import CliRunner

import superkernel as sk
from superkernel.targets.ascend.chips import FOLDER
from superkernel.tools.cli import app

Write = Callable[..., Path]
VEC, MIXED = entry("vec", args=["a", "b"]), entry("mix", args=["b", "c"])
FLAGGED = {"sub_operator_early_start_set_flag": True}


def code(**changes: Any) -> dict[str, Any]:
    return {"sub_operator_kernel_name": {"AiCore": {"func_name": "vec_func", "obj_files": "vec.o"} | changes}}


def vec(**changes: Any) -> dict[str, Any]:
    return {"vec": metadata(**changes), "mix": metadata(**MIX)}


def compiled(path: Path, output: Path, *words: str) -> tuple[int, str]:
    call = ["compile", str(path), "--target", "ascend", "-o", str(output), *words]
    done = CliRunner().invoke(app, call)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def refused(path: Path, *words: str, options: str = "", chip: str = "") -> None:
    output = path.parent / "out"
    more = [*(["--options", options] if options else []), *(["--chip", chip] if chip else [])]
    before = sorted(path.parent.iterdir())
    status, said = compiled(path, output, *more)
    assert status == 1 and said.startswith("error: "), said
    for word in words:
        assert word in said, said
    assert sorted(path.parent.iterdir()) == before
    status, said = compiled(path, output, *more, "--json")
    told = json.loads(said)
    assert status == 1 and told["ok"] is False and words[-1] in json.dumps(told, ensure_ascii=False)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            vec(sub_operator_kernel_type="KERNEL_TYPE_MIX"),
            ("vec.json", "sub_operator_kernel_type", "types are KERNEL_TYPE_AIV_ONLY"),
        ),
        (vec(blockDim=49), ("vec_0", "49 blocks", "chip a3 has 24 and 48", "lower its block count")),
        (vec(blockDim="8"), ("vec.json", "blockDim", "not a whole number")),
        (vec(blockDim=0), ("vec.json", "blockDim", "from 1 to 65535")),
        (vec(kernelName="a-b"), ("vec.json", "kernelName", "no C identifier: use letters, digits and _")),
        (vec(**code(func_name="int")), ("vec.json", "AiCore.func_name", "no C identifier")),
        (
            vec(**code(func_name="vec_fun")),
            ("vec.json", "vec.a (vec.o)", "no function 'vec_fun' (did you mean 'vec_func'?)", "its functions are"),
        ),
        (vec(**code(obj_files="vac.o")), ("vec.json", "vec.a has no object 'vac.o'", "it holds vec.o")),
        (vec(debugOptions="printf", debugBufSize=2**60), ("vec.json", "debugBufSize", "out of range")),
    ],
)
def test_metadata(write: Write, files: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(write([VEC], **files), *words)


@pytest.mark.parametrize(
    ("ops", "options", "changes", "words"),
    [
        ([MIXED], "debug-aic-num=4:debug-aiv-num=4", {}, ("mix_0", "debug-aic-num=4", "needs a 1:2 launch, not 1:1")),
        ([MIXED], "debug-aic-num=2:debug-aiv-num=4", {}, ("mix_0", "needs 4 blocks, the launch has 2")),
        (
            [MIXED],
            "debug-aic-num=25:debug-aiv-num=50",
            {},
            ("debug-aic-num=25:debug-aiv-num=50 makes a launch of 25 cube", "chip a3 has 24", "ask for fewer"),
        ),
        (
            [VEC],
            "debug-aic-num=5:debug-aiv-num=7",
            {},
            ("debug-aic-num=5:debug-aiv-num=7 cannot go together", "1:0, 0:1, 1:1 or 1:2"),
        ),
        ([VEC], "early-start=0", FLAGGED, ("vec_0", "vec.json", "early-start=0", "use early-start=1")),
        ([VEC], "early-start=2", FLAGGED, ("vec_0", "vec.json", "early-start=2", "use early-start=1")),
        ([VEC, MIXED], "stream-fusion=1", FLAGGED, ("vec_0", "vec.json", "use stream-fusion=0")),
        ([VEC], "split-mode=4", {"split_mode": 2}, ("vec_0", "split-mode=4", "split_mode 2", "leave the option out")),
        (
            [VEC, MIXED],
            "",
            {"sub_op_with_sync_all": True, "blockDim": 2},
            ("vec_0", "idle vector cores", "Set feed-sync-all=1, or block_dim=8"),
        ),
    ],
)
def test_options(write: Write, ops: list[Any], options: str, changes: Any, words: tuple[str, ...]) -> None:
    refused(write(ops, **vec(**changes)), *words, options=options)


def test_an_op_that_cannot_fill_the_launch_is_not_told_to(write: Write) -> None:
    """A 1:1 op leaves every second vector core of a 1:2 launch idle, with any block count."""
    half = metadata(**MIX | {"sub_operator_kernel_type": "KERNEL_TYPE_MIX_AIC_1_1", "sub_op_with_sync_all": True})
    path = write([entry("vec", args=["a", "b"]), MIXED], vec=metadata(blockDim=8), mix=half)
    refused(path, "mix_1", "Set feed-sync-all=1")
    assert "block_dim" not in compiled(path, path.parent / "out")[1]


def ops(*changes: dict[str, Any]) -> list[Any]:
    return [entry("vec", args=[f"x{i}", f"y{i}"], **change) for i, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("listed", "options", "words"),
    [
        (ops({"recv_event_list": [1]}), "", ("vec_0", "first of the list", "wait for it before the launch")),
        (ops({}, {"send_event_list": [1], "recv_event_list": [1]}), "", ("vec_1", "event 1", "wait for itself")),
        (ops({"send_event_list": [1]}, {"send_event_list": [1]}), "", ("event 1 has two senders", "vec_0", "vec_1")),
        (
            ops({}, {"recv_event_list": [1]}, {"send_event_list": [1]}),
            "stream-fusion=1",
            ("vec_1", "before op 'vec_2' sends it", "both in stream 0"),
        ),
        (
            ops({}, {"recv_event_list": [1]}, {"send_event_list": [1], "stream_id": 1}),
            "",
            ("vec_1", "vec_2", "stream-fusion=1"),
        ),
        (
            ops(
                {},
                {"recv_event_list": [1], "send_event_list": [2]},
                {"recv_event_list": [2], "send_event_list": [1], "stream_id": 1},
            ),
            "stream-fusion=1",
            ("cycle", "'vec_1', 'vec_2'"),
        ),
    ],
)
def test_events(write: Write, listed: list[Any], options: str, words: tuple[str, ...]) -> None:
    refused(write(listed, vec=metadata()), *words, options=options)


@pytest.mark.parametrize("name", ["2x", "my kernel", "while", "a-b", "ü"])
def test_a_name_that_is_no_c_identifier(write: Write, name: str) -> None:
    refused(write({"name": name, "op_list": [VEC]}, vec=metadata()), repr(name), "no C identifier")


def test_a_file_that_holds_neither_form(write: Write) -> None:
    refused(write({"name": "x"}), "ops.json", "neither op_list nor kernels and ops")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ("not JSON",)),
        ("[]", ("not a JSON object",)),
        ("{}", ("'name' is missing",)),
        (json.dumps(json.loads((FOLDER / "a3.json").read_text()) | {"cube_cores": "many"}), ("cube_cores", "needed")),
    ],
)
def test_a_chip_file(write: Write, tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (tmp_path / "mine.json").write_text(text)
    refused(write([VEC], vec=metadata()), "mine.json", *words, chip=str(tmp_path / "mine.json"))


def test_an_unknown_chip_lists_the_known_ones(write: Write) -> None:
    refused(write([VEC], vec=metadata()), "'a4' (did you mean 'a3'?)", "known chips are a2, a3", chip="a4")


def test_copies_that_come_ready_made_may_have_their_names_already(write: Write, tmp_path: Path) -> None:
    def listed(copy: str) -> Path:
        pair = [host_object(tmp_path, "first", "few"), host_object(tmp_path, "second", copy)]
        archive(tmp_path, "own.a", *pair)
        files = code(func_name="few", obj_files="first.o", obj_files_split1="second.o")
        return write([entry("vec", bin_path="own.a")], vec=metadata(split_mode=2, **files))

    for copy in ("few", "few_split1"):
        path = listed(copy)
        status, said = compiled(path, tmp_path / copy)
        assert status == 0, said
        assert "--redefine-sym=few=few_split1" in (tmp_path / copy / "build.sh").read_text()
    refused(listed("other"), "vec.json", "own.a (second.o)", "no function 'few'")


@pytest.fixture
def tiled(tmp_path: Path) -> sk.SubKernel:
    (tmp_path / "tiled.cpp").write_text(
        "#include <superkernel/host_kernel.h>\n"
        "static void fill(uint64_t slots, int32_t value) {\n"
        "    int32_t line[16];\n    for (auto& one : line) one = value;\n"
        "    (sk::buffer<int32_t>(slots, 1) + sk::block_idx() * 16).copy_out(line, 16);\n}\n"
        'extern "C" void few(uint64_t slots) { fill(slots, 1); }\n'
        'extern "C" void many(uint64_t slots) { fill(slots, 7); }\n'
    )
    params = ["in:x:int32[64]", "inout:y:int32[64]"]
    return sk.SubKernel.from_source(
        tmp_path / "tiled.cpp", "few", block_dim=4, params=params, core="vector", variants={1: "few", 7: "many"}
    )


def test_what_a_tiling_function_may_answer(tiled: sk.SubKernel) -> None:
    given = {"x": np.zeros(64, np.int32), "y": np.zeros(64, np.int32)}
    with sk.compile([sk.Op(tiled, ["x", "y"], "late", task="dynamic")], target="ascend") as k:
        for answer, words in (
            ((5, 3), "op 'late' was given the unknown tiling key 5; its keys are 1, 7"),
            ((1, 5), "op 'late' wants 5 blocks; it may have 0 to 4"),
            ((1, -1), "op 'late' wants -1 blocks"),
            ("x", r"op 'late' returned 'x'; return \(tiling key, block count\)"),
        ):
            with pytest.raises(sk.LaunchError, match=words):
                k.emulate(given, tiling={"late": lambda inputs, answer=answer: answer})
            assert not given["y"].any()
        for blocks in (0, 3):
            k.emulate(given, seed=blocks, tiling={"late": lambda inputs, blocks=blocks: (7, blocks)})
            assert (given["y"] == np.repeat([7, 0], [16 * blocks, 64 - 16 * blocks])).all()


def test_the_keys_of_metadata_are_those_of_the_report(write: Write) -> None:
    path = write([entry("tiled", task_type="dynamic", args=["a", "b"])], tiled=metadata(**TILED))
    assert compiled(path, path.parent / "out")[0] == 0
    assert "if (key != 1 && key != 7) trap();" in (path.parent / "out" / "ops_kernel.cpp").read_text()
