"""libsuperkernel in C and C++ programs: forks, unloading, the build environment, the headers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from package.hand_made import Manifest, expected_sum, write_package
from typer.testing import CliRunner

from superkernel.errors import BuildError
from superkernel.package.library import BuildEnvironment, build_environment
from superkernel.targets.native.toolchain import find_toolchain, run
from superkernel.tools.cli import app

PROGRAM = Path(__file__).with_name("library_processes.c")
EXAMPLES = Path(__file__).parents[2] / "examples" / "c"
C99 = ("-x", "c", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
CXX17 = ("-x", "c++", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror")
USES_MODEL_HPP = """
#include <superkernel/model.hpp>
using Tensors = std::vector<superkernel::Tensor>;
static sk_status refused(superkernel::Context& context, const char* entry, const Tensors& in, const Tensors& out) {
    try {
        context.run(entry, in, out);
    } catch (const superkernel::Error& error) {
        const std::string said = error.what();
        const bool counted = said.find("has inputs: 1, outputs: 1; given were inputs: ") != std::string::npos;
        return counted ? error.status() : SK_ERROR_INTERNAL;
    }
    return SK_OK;
}
int main(int, char** words) {
    try {
        superkernel::Model model(words[1], superkernel::default_options());
        superkernel::Context context(model), other(model);
        std::vector<float> x{0, 1, 2, 3, 4, 5, 6, 7}, y(8), z(8), state(2);
        context.run("add", {superkernel::tensor(x, {8})}, {superkernel::tensor(y, {8})});
        for (int i = 0; i < 8; ++i) if (y[i] != 11 * (7 - i)) return 1;
        context.run("count", {}, {superkernel::tensor(state, {2})});
        other.copy_from(context);
        other.get_state("counter", y = std::vector<float>(2));
        context.reset();
        context.set_state("counter", state);
        if (refused(context, "add", {superkernel::tensor(x, {8})}, {}) != SK_ERROR_ARGUMENT) return 5;
        const superkernel::Tensor one = superkernel::tensor(x, {8});
        if (refused(context, "add", {one, one}, {superkernel::tensor(z, {8})}) != SK_ERROR_ARGUMENT) return 6;
        if (y[0] != 6 || model.info().entry_count != 10 || model.entry("rows").shapes[0].bucket_size != 4) return 2;
        superkernel::Context moved(std::move(other));
        moved.run("nothing", {}, {});
    } catch (const superkernel::Error& error) {
        const bool named = std::string(error.what()).find("'nothing'") != std::string::npos;
        return error.status() == SK_ERROR_NO_SUCH_ENTRY && named ? 0 : 3;
    }
    return 4;
}
"""
FORKS_WHEN_LOADED = """
#include <sys/wait.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    pid_t child;
    usleep(3000);
    child = fork();
    if (child == 0) _exit(0);
    waitpid(child, 0, 0);
}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> BuildEnvironment:
    return build_environment(tmp_path_factory.mktemp("build") / "the environment")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("packages") / "hand_made.sk")


@pytest.fixture(scope="module")
def program(environment: BuildEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """library_processes.c, also compiled for the pedantic reader."""
    output = tmp_path_factory.mktemp("program") / "program"
    flags = (*environment.compile_flags, *C99, "-fopenmp", str(PROGRAM), "-x", "none", *environment.link_flags)
    compiled(output, *flags, "-lpthread")
    return output


def compiled(output: Path, *flags: str) -> None:
    run([*find_toolchain().cxx, "-o", str(output), *flags], what="a program with model.h")


def runs_silently(*command: str | Path, **variables: str) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=800, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "mode", ["busy", "fork", "fork meanwhile", "left open", "parallel", "steady", "real time", "openmp", "open"]
)
def test_a_program_forks_and_ends_safely(mode: str, program: Path, package: Path) -> None:
    runs_silently(program, mode, package)


def test_threads_of_a_model_have_stacks_for_large_kernels(program: Path, tmp_path: Path) -> None:
    package = write_package(tmp_path / "deep.sk", flags=(f"-DSK_TILE_BYTES={720 << 10}",))
    runs_silently(program, "small stacks", package)


def test_the_library_can_be_unloaded_and_loaded_twice(
    environment: BuildEnvironment, package: Path, tmp_path: Path
) -> None:
    output, source = tmp_path / "program", PROGRAM.with_name("library_unload.c")
    compiled(output, *environment.compile_flags, *C99, str(source), "-x", "none", "-ldl")
    library = environment.libraries / "libsuperkernel.so.1"
    runs_silently(output, package, library, shutil.copyfile(library, tmp_path / library.name))


@pytest.mark.parametrize("mode", ["close", "unload", "end"])
def test_threads_without_a_processor_hold_up_no_close_and_keep_their_code(
    mode: str, environment: BuildEnvironment, package: Path, tmp_path: Path
) -> None:
    output, source = tmp_path / "program", PROGRAM.with_name("library_starved.c")
    compiled(output, *environment.compile_flags, *C99, str(source), "-x", "none", "-ldl", "-lpthread")
    runs_silently(output, mode, package, environment.libraries / "libsuperkernel.so.1")


@pytest.mark.parametrize("mode", ["close", "destroy", "cancel", "constructor", "end"])
def test_threads_close_what_others_use_are_cancelled_fork_and_end_the_process(
    mode: str, environment: BuildEnvironment, package: Path, tmp_path: Path
) -> None:
    output, source = tmp_path / "program", PROGRAM.with_name("library_races.c")
    flags = (*environment.compile_flags, *C99, str(source), "-x", "none", *environment.link_flags)
    compiled(output, *flags, "-ldl", "-lpthread")
    (tmp_path / "forks.c").write_text(FORKS_WHEN_LOADED)
    compiled(tmp_path / "forks.so", "-x", "c", "-shared", "-fPIC", str(tmp_path / "forks.c"))
    runs_silently(output, mode, package, tmp_path / "forks.so")


def test_the_header_for_cpp_closes_and_throws(environment: BuildEnvironment, package: Path, tmp_path: Path) -> None:
    source = tmp_path / "uses_model.cpp"
    source.write_text(USES_MODEL_HPP)
    output = tmp_path / "shared"
    compiled(output, *environment.compile_flags, *CXX17, str(source), "-x", "none", *environment.link_flags)
    runs_silently(output, package)


def test_a_program_with_the_static_library_needs_no_other_file(
    environment: BuildEnvironment, package: Path, tmp_path: Path
) -> None:
    output = tmp_path / "static"
    plain = (*C99, "-Wno-unknown-pragmas")  # without OpenMP
    flags = (*environment.compile_flags, *plain, str(PROGRAM), "-x", "none", *environment.static_link_flags)
    compiled(output, *flags)
    runs_silently(output, "busy", package)
    needed = run(["readelf", "-d", str(output)], what="reading the program")
    assert "libsuperkernel" not in needed


def test_the_shared_library_shows_versioned_names_and_needs_the_c_library_only(environment: BuildEnvironment) -> None:
    library = str(environment.libraries / "libsuperkernel.so")
    shown = run(["readelf", "--dyn-syms", "-W", library], what="reading the library")
    defined = [line.split()[7] for line in shown.splitlines() if " GLOBAL " in line and " UND " not in line]
    names = [name.partition("@@") for name in defined if name != "SUPERKERNEL_1"]
    assert all(version == "SUPERKERNEL_1" for _, _, version in names)
    assert {"sk_run", "sk_model_open", "sk_last_error"} <= {name for name, _, _ in names}
    assert all(name.startswith(("sk_", "_ZN3c106detail")) for name, _, _ in names)
    needed = [line for line in run(["readelf", "-d", library], what="reading").splitlines() if "(NEEDED)" in line]
    assert all("libc.so" in line or "libm.so" in line or "ld-linux" in line for line in needed), needed


def test_the_build_environment_serves_pkg_config_and_cmake(
    environment: BuildEnvironment, package: Path, tmp_path: Path
) -> None:
    command = ["package", "build-env", "--prefix", str(environment.prefix)]
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["libs"] == list(environment.link_flags)
    assert CliRunner().invoke(app, command).stdout.strip() == str(environment)
    flags = shlex.split(CliRunner().invoke(app, [*command, "--flags"]).stdout)
    assert flags == [*environment.compile_flags, *environment.link_flags]
    lines = dict(line.split(": ", 1) for line in str(environment).splitlines())
    assert shlex.split(lines["link statically"]) == list(environment.static_link_flags)
    assert shlex.split(lines["pkg-config"])[0] == f"PKG_CONFIG_PATH={environment.pkg_config}"
    if shutil.which("pkg-config"):
        for name in ("superkernel", "superkernel-static"):
            assert pkg_config(environment, "--libs", name)
        flags = pkg_config(environment, "--cflags", "--libs", "superkernel")
        assert set(flags) == {*environment.compile_flags, *environment.link_flags}
    if not shutil.which("cmake"):
        return
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(uses NONE)\nfind_package(superkernel 0.1 REQUIRED)\n"
        "get_target_property(folder superkernel::superkernel INTERFACE_INCLUDE_DIRECTORIES)\n"
        "get_target_property(archive superkernel::static IMPORTED_LOCATION)\n"
        'file(WRITE "${CMAKE_BINARY_DIR}/found" "${folder};${archive}")\n'
    )
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "out"), f"-DCMAKE_PREFIX_PATH={environment.prefix}"]
    run(command, what="configuring with CMake")
    found = (tmp_path / "out" / "found").read_text().split(";")
    assert found == [str(environment.include), str(environment.libraries / "libsuperkernel.a")]


def test_a_program_keeps_the_library_that_it_has_opened(tmp_path: Path) -> None:
    library = build_environment(tmp_path).libraries / "libsuperkernel.so.1"
    with library.open("rb") as opened:
        before = opened.read(100)
        library.unlink()
        library.write_bytes(b"an older library")
        with library.open("rb") as older:
            build_environment(tmp_path)
            assert older.read() == b"an older library"
    assert library.read_bytes()[:100] == before
    assert not [path for path in tmp_path.rglob(".*")], "something was left"


def test_a_build_environment_in_a_current_folder_that_was_removed(tmp_path: Path) -> None:
    here = Path.cwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    try:
        (tmp_path / "gone").rmdir()
        with pytest.raises(BuildError, match="cannot be installed in here: "):
            build_environment(Path("here"))
    finally:
        os.chdir(here)


def pkg_config(environment: BuildEnvironment, *arguments: str) -> Sequence[str]:
    command = ["env", f"PKG_CONFIG_PATH={environment.pkg_config}", "pkg-config", *arguments]
    return shlex.split(run(command, what="asking pkg-config"))


def test_the_examples_are_built_by_make(environment: BuildEnvironment, tmp_path: Path) -> None:
    def one_entry(fields: Manifest) -> None:
        fields["entries"][0]["name"] = "forward"

    folder = shutil.copytree(EXAMPLES, tmp_path / "c")
    prefix = tmp_path / "prefix"  # without blanks, which make does not know
    prefix.symlink_to(environment.prefix)
    run(["env", "CFLAGS=-Werror", "make", "-C", str(folder), f"PREFIX={prefix}"], what="make")
    package = write_package(tmp_path / "policy.sk", one_entry)
    x = np.float32(0.01) * np.arange(8, dtype=np.float32)
    for program in ("policy", "policy_cpp"):
        printed = run([str(folder / program), str(package)], what=program)
        name, _, values = printed.partition(":")
        assert name == "y"
        assert np.array_equal(np.array(values.split(), np.float32), expected_sum(x))
    assert "median" in run([str(folder / "policy"), str(package), "100"], what="policy")
    with pytest.raises(BuildError, match=r"(?s)SK_ERROR_NOT_A_PACKAGE.*has no manifest"):
        run([str(folder / "policy_cpp"), str(tmp_path)], what="policy")
    with pytest.raises(BuildError, match="no entry 'prefill'"):
        run([str(folder / "generate"), str(package), "4", "1", "2"], what="generate")


def test_the_expected_sum_of_the_programs() -> None:
    """The programs compare with 11 * (7 - i)."""
    assert expected_sum(np.arange(8, dtype=np.float32)).tolist() == [11 * (7 - i) for i in range(8)]
