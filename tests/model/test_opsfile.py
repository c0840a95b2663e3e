"""ops.json: what it may say, and that a mistake in it is told with the file and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from superkernel.errors import BuildError, GraphError, OptionError, SuperKernelError
from superkernel.model import json_value
from superkernel.model.binary import Core, Form
from superkernel.model.op import Place, Task
from superkernel.model.opsfile import OpsFile, read_ops
from superkernel.model.options import Options
from superkernel.model.subkernel import SubKernel


def description() -> dict[str, Any]:
    """A file with two kernels and three ops, using most fields."""
    return {
        "name": "twice",
        "target": "cpu",
        "options": "stream-fusion=1",
        "kernels": {
            "add": {
                "source": "add.cpp",
                "symbol": "add_f32",
                "block_dim": 2,
                "params": ["in:x", "in:y", "out:z"],
                "core": "vector",
                "op_type": "Add",
                "sync_all": False,
                "early_start": ["x"],
                "flags": ["-DFAST"],
            },
            "scale": {"object": "scale.o", "block_dim": 1, "params": ["inout:x", "scalar:by:float32"]},
        },
        "ops": [
            {"kernel": "add", "args": ["a", "b", "t"]},
            {"kernel": "scale", "args": ["t", 0.5], "name": "half", "send": [7]},
            {"kernel": "add", "args": ["t", "b", "c"], "name": "second", "stream": 1, "recv": [7], "task": "normal"},
        ],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "add.cpp").write_text("")
    (tmp_path / "scale.o").write_text("")
    return tmp_path


def write(folder: Path, content: Any) -> Path:
    path = folder / "ops.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(folder: Path, content: Any) -> OpsFile:
    return read_ops(write(folder, content))


def refusal(folder: Path, content: Any, error: type[SuperKernelError] = GraphError) -> str:
    """The message with which a file is refused, after the file's name."""
    path = write(folder, content)
    with pytest.raises(SuperKernelError) as refused:
        read_ops(path)
    assert type(refused.value) is error
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


def changed(keys: str, value: Any) -> dict[str, Any]:
    """The description with one value put in, at a place such as 'ops.0.args'."""
    whole = description()
    *path, last = [int(key) if key.isdigit() else key for key in keys.split(".")]
    inner: Any = whole
    for key in path:
        inner = inner[key]
    inner[last] = value
    return whole


def without(keys: str) -> dict[str, Any]:
    whole = changed(keys, None)
    return json.loads(json.dumps(whole), object_hook=lambda d: {k: v for k, v in d.items() if v is not None})


def test_name_target_and_options_are_read(folder: Path) -> None:
    found = read(folder, description())
    assert (found.name, found.target, found.options) == ("twice", "cpu", Options(stream_fusion=True))


def test_every_field_of_a_kernel_is_read(folder: Path) -> None:
    add = read(folder, description()).ops[0].kernel
    assert add == SubKernel.from_source(
        folder / "add.cpp",
        "add_f32",
        block_dim=2,
        params=["in:x", "in:y", "out:z"],
        core="vector",
        op_type="Add",
        sync_all=False,
        early_start=["x"],
        flags=["-DFAST"],
    )


def test_every_field_of_an_op_is_read(folder: Path) -> None:
    second = read(folder, description()).ops[2]
    assert (second.args, second.name, second.stream, second.recv, second.task) == (
        ("t", "b", "c"),
        "second",
        1,
        (7,),
        Task.NORMAL,
    )


def test_ops_of_one_kernel_share_it(folder: Path) -> None:
    ops = read(folder, description()).ops
    assert ops[0].kernel is ops[2].kernel


def test_a_scalar_argument_may_be_a_number(folder: Path) -> None:
    assert read(folder, description()).ops[1].args == ("t", 0.5)


def test_an_argument_may_be_a_place_in_a_buffer(folder: Path) -> None:
    args = read(folder, changed("ops.0.args", [{"name": "a", "offset": 128}, {"name": "b"}, "t"])).ops[0].args
    assert args == (Place("a", 128), Place("b"), "t")


def test_libraries_are_names_or_files_beside_the_description(folder: Path) -> None:
    (folder / "libmore.so").write_text("")
    whole = changed("kernels.add.libraries", ["m", "./libmore.so", str(folder / "libmore.so")])
    assert read(folder, whole).ops[0].kernel.libraries == ("m", str(folder / "libmore.so"))


def test_a_kernel_without_a_symbol_is_called_like_its_id(folder: Path) -> None:
    assert read(folder, description()).ops[1].kernel.name == "scale"


def test_paths_are_relative_to_the_file_not_to_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, description())
    monkeypatch.chdir("/")
    assert read_ops(path).ops[0].kernel.binary.path == (folder / "add.cpp").resolve()


def test_an_absolute_path_stays_as_it_is(folder: Path) -> None:
    found = read(folder, changed("kernels.add.source", str(folder / "add.cpp")))
    assert found.ops[0].kernel.binary.path == (folder / "add.cpp").resolve()


def test_name_target_and_options_have_defaults(folder: Path) -> None:
    whole = {key: value for key, value in description().items() if key in ("kernels", "ops")}
    found = read(folder, whole | {"ops": whole["ops"][:1]})
    assert (found.name, found.target, found.options) == ("super_kernel", "cpu", Options())


def test_null_is_as_good_as_absent(folder: Path) -> None:
    assert read(folder, changed("kernels.add.sync_all", None)).ops[0].kernel.sync_all is None


def test_variants_map_whole_numbers_to_symbols(folder: Path) -> None:
    whole = changed("kernels.scale.variants", {"0": "small", "12": "large"})
    whole["ops"][1]["task"] = "dynamic"
    assert read(folder, whole).ops[1].kernel.variants == ((0, "small"), (12, "large"))


def test_a_ptx_kernel_is_read(folder: Path) -> None:
    (folder / "scale.ptx").write_text("")
    whole = changed("kernels.scale.ptx", "scale.ptx")
    del whole["kernels"]["scale"]["object"]
    assert read(folder, whole).ops[1].kernel.binary.form is Form.PTX


def test_a_byte_order_mark_is_skipped(folder: Path) -> None:
    assert read(folder, "\ufeff" + json.dumps(description())).name == "twice"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("kernels.add.block_dim", "two", "kernels.add.block_dim: 'two' is not a whole number"),
        ("kernels.add.block_dim", 2.0, "kernels.add.block_dim: 2.0 is not a whole number"),
        ("kernels.add.block_dim", True, "kernels.add.block_dim: true is not a whole number"),
        ("kernels.add.params", "in:x", "kernels.add.params: 'in:x' is not a list"),
        ("kernels.add.params.1", 3, "kernels.add.params[1]: 3 is not a string"),
        ("kernels.add.symbol", ["add"], "kernels.add.symbol: a list is not a string"),
        ("kernels.add.symbol", " ", "kernels.add.symbol: the string is blank"),
        ("kernels.add.symbol", "a\nb", "kernels.add.symbol: 'a\\nb' contains the character '\\n'"),
        ("kernels.add.source", {}, "kernels.add.source: an object is not a string"),
        ("kernels.add.sync_all", 1, "kernels.add.sync_all: 1 is not true or false"),
        ("kernels.add.early_start", 1, "kernels.add.early_start: 1 is not true or false"),
        ("kernels.add.flags", "-O2", "kernels.add.flags: '-O2' is not a list"),
        ("kernels.add.libraries", "m", "kernels.add.libraries: 'm' is not a list"),
        ("kernels.add.variants", ["a"], "kernels.add.variants: a list is not an object"),
        ("kernels.add.variants", {"0": 1}, "kernels.add.variants.0: 1 is not a string"),
        ("kernels.add", [], "kernels.add: a list is not an object"),
        ("kernels", [], "kernels: a list is not an object"),
        ("ops", {}, "ops: an object is not a list"),
        ("ops", [], "ops: the list of ops is empty"),
        ("ops.2", 1, "ops[2]: 1 is not an object"),
        ("ops.1.args.0", ["t"], "ops[1].args[0]: a list is not a string"),
        ("ops.0.args.0", {"name": 3}, "ops[0].args[0].name: 3 is not a string"),
        ("ops.0.args.0", {"name": "a", "offset": "8"}, "ops[0].args[0].offset: '8' is not a whole number"),
        ("ops.1.stream", "1", "ops[1].stream: '1' is not a whole number"),
        ("ops.1.send", [1.5], "ops[1].send[0]: 1.5 is not a whole number"),
        ("ops.1.name", 4, "ops[1].name: 4 is not a string"),
        ("name", 4, "name: 4 is not a string"),
        ("options", {}, "options: an object is not a string"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_with_its_field(folder: Path, place: str, value: Any, message: str) -> None:
    assert refusal(folder, changed(place, value)) == message


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("kernels", "the field 'kernels' is missing"),
        ("ops", "the field 'ops' is missing"),
        ("kernels.add.block_dim", "kernels.add: the field 'block_dim' is missing"),
        ("kernels.add.params", "kernels.add: the field 'params' is missing"),
        ("kernels.add.source", "kernels.add: needs exactly one of source, object, ptx; found none of them"),
        ("ops.0.kernel", "ops[0]: the field 'kernel' is missing"),
        ("ops.0.args", "ops[0]: the field 'args' is missing"),
    ],
)
def test_a_missing_field_is_named(folder: Path, place: str, message: str) -> None:
    assert refusal(folder, without(place)) == message


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("kernel", "kernel: unknown field (did you mean 'kernels'?)"),
        ("kernels.add.block_dims", "kernels.add.block_dims: unknown field (did you mean 'block_dim'?)"),
        ("ops.0.args.0", "ops[0].args[0].at: unknown field; fields are name, offset"),
        ("ops.1.arg", "ops[1].arg: unknown field (did you mean 'args'?)"),
    ],
)
def test_an_unknown_field_is_told_with_the_nearest_known_one(folder: Path, place: str, message: str) -> None:
    value = {"at": 3} if place.endswith("args.0") else 1
    assert refusal(folder, changed(place, value)).startswith(message)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("ops.1.kernel", "ad", "ops[1].kernel: 'ad' is no kernel (did you mean 'add'?)"),
        ("ops.1.task", "dynamo", "ops[1].task: 'dynamo' is no task (did you mean 'dynamic'?); there are normal, "),
        ("kernels.add.core", "vec", "kernels.add.core: 'vec' is no kind of core (did you mean 'vector'?)"),
        ("target", "cpuu", "target: 'cpuu' is no target (did you mean 'cpu'?)"),
        ("kernels.add.variants", {"01": "s"}, "kernels.add.variants: '01' is no tiling key"),
    ],
)
def test_a_value_outside_its_set_is_told_with_the_nearest(folder: Path, place: str, value: Any, message: str) -> None:
    assert refusal(folder, changed(place, value)).startswith(message)


@pytest.mark.parametrize(
    ("place", "value", "beginning"),
    [
        ("kernels.add.block_dim", 0, "kernels.add: sub-kernel 'add_f32': block_dim is 0"),
        ("kernels.add.early_start", ["xx"], "kernels.add: sub-kernel 'add_f32': early_start names 'xx'"),
        ("kernels.add.params.0", "into:x", "kernels.add.params[0]: parameter 'into:x': unknown kind 'into'"),
        ("ops.0.args", ["a"], "ops[0]: op 'add_f32': 1 arguments for 3 parameters"),
        ("ops.1.args.1", 1e300, "ops[1]: op 'half': scalar 'by': 1e+300 does not fit float32"),
        ("ops.0.args.0", {"name": "a", "offset": -8}, "ops[0]: op 'add_f32': the argument for 'x': the offset in 'a'"),
        ("ops.1.args.1", {"name": "by"}, "ops[1]: op 'half': the argument for 'by' is the place 'by'; a scalar is "),
        ("kernels.add.libraries", ["-lm"], "kernels.add: sub-kernel 'add_f32': library '-lm': give a file, or the"),
        ("ops.1.send", [7, 7], "ops[1]: op 'half': send: an event id stands twice"),
    ],
)
def test_what_the_model_refuses_is_told_with_its_field(folder: Path, place: str, value: Any, beginning: str) -> None:
    assert refusal(folder, changed(place, value)).startswith(beginning)


def test_the_error_of_the_model_is_kept_as_the_cause(folder: Path) -> None:
    with pytest.raises(GraphError) as refused:
        read(folder, changed("kernels.add.block_dim", 0))
    assert isinstance(refused.value.__cause__, GraphError)


def test_two_binaries_of_one_kernel_are_refused(folder: Path) -> None:
    message = refusal(folder, changed("kernels.add.object", "scale.o"))
    assert message == "kernels.add: needs exactly one of source, object, ptx; found source and object"


def test_libraries_for_ptx_are_refused(folder: Path) -> None:
    (folder / "add.ptx").write_text("")
    whole = changed("kernels.add", {"ptx": "add.ptx", "block_dim": 1, "params": ["in:x"], "libraries": ["m"]})
    assert refusal(folder, whole) == "kernels.add.libraries: libraries are for sources and objects, and this is ptx"


def test_scratch_memory_is_for_ptx_only(folder: Path) -> None:
    message = refusal(folder, changed("kernels.add.scratch", 128))
    assert message == "kernels.add.scratch: scratch is what Triton asks for beside its PTX, and this is source"


def test_a_library_that_is_missing_is_a_build_error_with_its_kernel(folder: Path) -> None:
    message = refusal(folder, changed("kernels.add.libraries", ["./libgone.so"]), BuildError)
    assert "library file" in message and "libgone.so' does not exist" in message


def test_flags_for_an_object_are_refused(folder: Path) -> None:
    assert refusal(folder, changed("kernels.scale.flags", ["-O2"])).startswith("kernels.scale.flags: flags are for ")


def test_a_missing_source_is_a_build_error_with_its_field(folder: Path) -> None:
    message = refusal(folder, changed("kernels.add.source", "gone.cpp"), BuildError)
    assert message.startswith(f"kernels.add.source: sub-kernel 'add_f32': source file '{folder / 'gone.cpp'}' does not")


def test_a_path_that_is_too_long_is_a_build_error(folder: Path) -> None:
    assert refusal(folder, changed("kernels.add.source", "x" * 300), BuildError).startswith("kernels.add.source: ")


def test_a_size_with_thousands_of_digits_is_refused(folder: Path) -> None:
    size = ",".join(["9" * 18] * 300)
    message = refusal(folder, changed("kernels.add.params.0", f"in:x:int8[{size}]@block"))
    assert message == "kernels.add.params[0]: the string has 5716 characters; at most 4000 are allowed"


def test_a_bad_option_is_an_option_error_with_its_field(folder: Path) -> None:
    message = refusal(folder, changed("options", "early-strt=1"), OptionError)
    assert message.startswith("options: unknown option 'early-strt'")


def test_a_kernel_id_that_is_no_plain_word_is_quoted(folder: Path) -> None:
    assert refusal(folder, {"kernels": {"a b": 1}, "ops": []}) == "kernels['a b']: 1 is not an object"


def test_a_key_that_stands_twice_is_refused(folder: Path) -> None:
    text = json.dumps(description()).replace('"symbol": "add_f32"', '"block_dim": 4')
    assert refusal(folder, text) == "kernels.add: the key 'block_dim' stands twice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: not JSON: Expecting value"),
        ('{\n "ops": [}', "line 2, column 10: not JSON: Expecting value"),
        ("{} {}", "line 1, column 4: not JSON: Extra data"),
    ],
)
def test_text_that_is_no_json_is_told_with_line_and_column(folder: Path, text: str, message: str) -> None:
    assert refusal(folder, text) == message


def test_bytes_that_are_no_text_are_told_with_line_and_column(folder: Path) -> None:
    path = folder / "ops.json"
    path.write_bytes(b'{\n "\xff"')
    with pytest.raises(GraphError, match=r"ops\.json: line 2, column 3: not UTF-8 text"):
        read_ops(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_readers_disagree_on_are_refused(folder: Path, number: str) -> None:
    assert number[:9] in refusal(folder, json.dumps(description()).replace("0.5", number))


@pytest.mark.parametrize("text", ["[" * 200_000, '{"ops":' * 200_000], ids=["lists", "objects"])
def test_deep_nesting_is_refused(folder: Path, text: str) -> None:
    assert refusal(folder, text) == "lists and objects are nested too deeply"


def test_deep_nesting_where_a_name_belongs_is_refused(folder: Path) -> None:
    text = json.dumps(changed("ops.1.name", "@")).replace('"@"', "[" * 500 + "]" * 500)
    assert refusal(folder, text) == "ops[1].name: a list is not a string"


def test_a_file_that_is_too_large_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_value, "MAX_BYTES", 1 << 20)
    assert refusal(folder, " " * (1 << 20) + "{}") == "larger than 1 MiB, which is no description of kernels"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"gone\.json: cannot be read: No such file or directory"):
        read_ops(tmp_path / "gone.json")


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read: Is a directory"):
        read_ops(tmp_path)


def test_one_kernel_in_a_file_of_its_own(folder: Path) -> None:
    path = folder / "add.json"
    path.write_text(json.dumps(description()["kernels"]["add"]))
    assert SubKernel.from_json(path) == read(folder, description()).ops[0].kernel


def test_a_kernel_of_its_own_without_a_symbol_is_called_like_its_file(folder: Path) -> None:
    path = folder / "scale.json"
    path.write_text(json.dumps(description()["kernels"]["scale"]))
    assert SubKernel.from_json(path).name == "scale"


def test_a_mistake_in_a_kernel_of_its_own_is_told_with_file_and_field(folder: Path) -> None:
    path = folder / "scale.json"
    path.write_text(json.dumps(description()["kernels"]["scale"] | {"core": "cubes"}))
    with pytest.raises(GraphError, match=r"scale\.json: core: 'cubes' is no kind of core"):
        SubKernel.from_json(path)


def test_every_core_kind_can_be_written(folder: Path) -> None:
    kinds = [read(folder, changed("kernels.add.core", core.value)).ops[0].kernel.core for core in Core]
    assert kinds == list(Core)
