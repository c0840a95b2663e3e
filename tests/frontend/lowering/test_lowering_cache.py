"""What the front end keeps: equal scopes share a binary, another process calls no compiler, damage is repaired."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from caches import with_host_library
from frontend.fused import await_builds, refused, run
from torch import Tensor

import superkernel as sk
from superkernel.errors import BuildError, UnsupportedError
from superkernel.frontend.scope import super_kernel

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


def binary(ran: Any, scope: str) -> Path:
    (segment,) = ran.scopes[scope].segments
    return segment.kernel.executable.binary  # type: ignore[no-any-return]


def twice(x: Tensor) -> Tensor:
    with super_kernel("first"):
        x = x.sin()
    x = torch.sort(x, 0).values  # something between, so that Inductor sees two graphs
    with super_kernel("second"):
        return x.sin()


def test_equal_scopes_share_one_binary() -> None:
    ran = run(twice, X)
    assert binary(ran, "first") == binary(ran, "second")


@pytest.mark.conformance
def test_another_option_or_another_input_makes_another_binary() -> None:
    def scale(x: Tensor, by: Tensor | None = None) -> Tensor:
        with super_kernel("a"):
            return x.sin() if by is None else x.sin() * by

    def made(*inputs: Tensor, **options: Any) -> Path:
        torch._dynamo.reset()
        return binary(run(scale, *inputs, **options), "a")

    plain = made(X)
    assert made(X) == plain
    assert len({plain, made(X, early_start=0), made(X, compile_options="-DOTHER"), made(X, X)}) == 4


def test_the_report_counts_what_was_found_and_what_was_made() -> None:
    await_builds()
    never_seen = f"-DAT_{time.time_ns()}"
    first = run(twice, X, compile_options=never_seen)
    torch._dynamo.reset()
    again = run(twice, X, compile_options=never_seen)
    assert first.report.cache["misses"] > 0
    assert again.report.cache["hits"] > 0 and again.report.cache["misses"] == 0


# other processes

SCRIPT = dedent("""
    import json
    import os
    import sys
    from pathlib import Path

    calls = []
    sys.addaudithook(lambda event, args: event == "subprocess.Popen" and calls.append(str(args[1])))

    import torch
    import torch._inductor.compile_fx  # the processes below have it from here
    import superkernel as sk
    from superkernel.frontend.report import collecting

    cache = Path(os.environ["SUPERKERNEL_CACHE"])

    def model(x):
        with sk.super_kernel("a"):
            return x.cos()

    def compile_and_call():
        x = torch.linspace(-2, 2, 64).reshape(4, 16)
        with collecting() as report:
            made = torch.compile(model, backend="superkernel", options={"profit_gate": 0})(x)
        torch.testing.assert_close(made, model(x))
        assert report.scopes[0].fused, report
        return made.numpy().tobytes().hex(), [call for call in calls if str(cache) in call]

    def start(name):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                Path(name).write_text(json.dumps(compile_and_call()))
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        return process

    def finish(*processes):
        for process in processes:
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0

    if "at once" in sys.argv:  # and nothing of the model is there yet
        finish(start("first"), start("second"))
    else:
        finish(start("first"))
    finish(start("third"))
    for entry in cache.rglob("*"):
        if entry.is_file() and b"fused_cos" in (contents := entry.read_bytes()):
            entry.write_bytes(contents[:100] + b"damage")
    finish(start("fourth"))
""")


@pytest.mark.conformance
@pytest.mark.parametrize("started", ["in turn", "at once"])
def test_processes_share_the_cache_and_repair_it(started: str, tmp_path: Path) -> None:
    """Processes that are forked from a process that has torch and has compiled nothing."""
    (tmp_path / "model.py").write_text(SCRIPT)
    cache = with_host_library(tmp_path / "cache")
    environment = {
        **os.environ, "SUPERKERNEL_CACHE": str(cache), "PYTHONPATH": str(Path(sk.__file__).parents[1])
    }  # fmt: skip
    command = [sys.executable, "model.py", started]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [name for name in ("first", "second", "third", "fourth") if (tmp_path / name).exists()]
    ended = {name: json.loads((tmp_path / name).read_text()) for name in names}
    assert len(ended) == (4 if started == "at once" else 3) and len({bits for bits, _ in ended.values()}) == 1
    calls = {name: calls for name, (_, calls) in ended.items()}  # of programs that put something into the cache
    assert calls["first"] or calls["second"]
    assert calls["third"] == []  # everything was found
    assert calls["fourth"]  # what was damaged was made again


# no room


@pytest.mark.parametrize("directory", ["/dev/null/cache", "/proc/superkernel"])
def test_a_cache_that_cannot_be_made_leaves_the_model_to_inductor(directory: str) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin()

    ran = run(model, X, cache=directory)
    torch.testing.assert_close(ran.outputs, X.sin())
    (warning,) = ran.warnings
    assert "super_kernel_scope 'a'" in warning and directory in warning and "SUPERKERNEL_CACHE" in warning
    message = refused(model, X, kind=UnsupportedError, cache=directory, strict_scope_check="abort")
    assert directory in message


def test_a_full_disk_leaves_the_model_to_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    await_builds()  # of earlier tests, which have room
    cache = with_host_library(tmp_path / "cache")
    monkeypatch.setattr("superkernel.cache.cache.os.fsync", full)
    ran = run(lambda x: x.sin(), X, cache=str(cache))
    torch.testing.assert_close(ran.outputs, X.sin())
    (warning,) = ran.warnings
    assert "No space left on device" in warning and "free some space" in warning
    await_builds()
    assert not list(tmp_path.rglob("unfinished-*"))


def test_what_is_dumped_says_how_it_was_made(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("../odd name"):
            x = x.sin()
        x = torch.sort(x, 0).values
        with super_kernel("../odd name"):
            return x.sin()

    for _ in range(2):
        torch._dynamo.reset()
        run(model, X, dump=str(tmp_path))
    folders = sorted(path.name for path in (tmp_path / "___odd_name").iterdir())
    assert folders == [f"{number}_inference" for number in (1, 2, 3, 4)]  # two parts, twice
    for folder in folders:
        files = {path.name for path in (tmp_path / "___odd_name" / folder).rglob("*") if path.is_file()}
        assert files >= {"graph.py", "inductor.py", "plan.txt", "source.cpp", "commands.txt"}
    message = refused(model, X, kind=BuildError, dump="/dev/null/dump")
    assert "super_kernel_scope '../odd name'" in message and "/dev/null/dump" in message
