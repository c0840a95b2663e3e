"""k.submit: launches in the background, as futures, in their order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, MARK, SCOPE, child, compiled, vector

import superkernel as sk
from superkernel import LaunchError, Op

SECONDS = 600  # for what hangs


@pytest.fixture
def gated() -> Iterator[sk.SuperKernel]:
    """a + b = c, and then nothing more until the event `go` is set; the counter shows the launches that ended."""
    ops = [Op(ADD, ["a", "b", "c"], send=["begun"]), Op(MARK, ["ran"], recv=["go"])]
    with compiled(*ops, options="debug-watchdog=600", cores=1) as k:
        yield k


def given(**changed: Any) -> dict[str, Any]:
    return {"a": vector(), "b": vector(2), "ran": np.zeros(1, np.int64), **changed}


def begun(k: sk.SuperKernel) -> None:
    assert k.events["begun"].wait(SECONDS)
    k.events["begun"].clear()


def finish(k: sk.SuperKernel, *futures: Future[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let launches end, one after the other."""
    results = []
    for future in futures:
        begun(k)
        k.events["go"].set()
        results.append(future.result(SECONDS))
    return results


def test_the_result_is_what_the_launch_returns(gated: sk.SuperKernel) -> None:
    done = gated.submit(given())
    assert isinstance(done, Future)
    (outputs,) = finish(gated, done)
    np.testing.assert_array_equal(outputs["c"], vector(3))
    assert done.done()


def test_the_caller_goes_on_meanwhile_and_launches_keep_their_order(gated: sk.SuperKernel) -> None:
    count = np.zeros(1, np.int64)
    seen: list[int] = []
    futures = [gated.submit(given(ran=count, a=vector(number))) for number in range(5)]
    for future in futures:
        future.add_done_callback(lambda done: seen.append(int(count[0])))
    assert not any(future.done() for future in futures) and count[0] == 0
    for number, outputs in enumerate(finish(gated, *futures)):
        np.testing.assert_array_equal(outputs["c"], vector(number + 2))
    assert seen == [1, 2, 3, 4, 5]


def test_what_is_submitted_stays_as_it_was(gated: sk.SuperKernel) -> None:
    """The dict may be filled anew, and the arrays in it are kept."""
    buffers = given()
    done = gated.submit(buffers)
    buffers["a"] = vector(1000)
    buffers.clear()
    (outputs,) = finish(gated, done)
    np.testing.assert_array_equal(outputs["c"], vector(3))


def test_errors_arrive_with_the_result(gated: sk.SuperKernel) -> None:
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"a": vector()}, {}, "'b' is read before any op writes it"),
        (given(a=np.zeros(3, np.float32)), {}, "'a' has shape"),
        (given(), {"events": {"gone": sk.Event("gone")}}, "no op uses the external event gone"),
        (given(), {"tiling": {"add": lambda inputs: (0, 1)}}, "no dynamic op is called 'add'"),
    ]
    for buffers, more, words in wrong:
        with pytest.raises(LaunchError, match=f"super_kernel_scope '{SCOPE}': {words}"):
            gated.submit(buffers, **more).result(SECONDS)
    error = gated.submit(5).exception(SECONDS)  # type: ignore[arg-type]
    assert isinstance(error, LaunchError) and "pass a dict" in str(error)
    finish(gated, gated.submit(given()))  # and the next one runs


def test_one_that_has_not_begun_can_be_cancelled(gated: sk.SuperKernel) -> None:
    count = np.zeros(1, np.int64)
    first, second, third = (gated.submit(given(ran=count)) for _ in range(3))
    begun(gated)
    assert second.cancel() and second.cancelled()
    assert not first.cancel() and first.running()
    with pytest.raises(CancelledError):
        second.result()
    gated.events["go"].set()
    first.result(SECONDS)
    finish(gated, third)
    assert count[0] == 2
    gated.close()  # a cancelled launch is not pending


def test_close_is_refused_while_launches_are_not_done(gated: sk.SuperKernel) -> None:
    first, second = gated.submit(given()), gated.submit(given())
    begun(gated)
    with pytest.raises(LaunchError, match=r"close\(\) while 2 submitted launches are not done"):
        gated.close()
    second.cancel()
    with pytest.raises(LaunchError, match=r"close\(\) while 1 submitted launches are not done"):
        gated.close()
    gated.events["go"].set()
    first.result(SECONDS)
    gated.close()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        gated.submit(given())


def test_close_right_after_a_result_is_never_refused() -> None:
    for _ in range(30):
        k = compiled(Op(ADD, ["a", "b", "c"]), cores=1)
        np.testing.assert_array_equal(k.submit({"a": vector(), "b": vector()}).result(SECONDS)["c"], vector(2))
        k.close()


def test_events_and_tiling_functions_of_a_submission() -> None:
    ops = [Op(ADD, ["a", "b", "t"], recv=["go"], send=["begun"]), Op(ADD, ["t", "b", "c"], name="d", task="dynamic")]
    ops.insert(0, Op(MARK, ["ran"]))
    with compiled(*ops, options="debug-watchdog=600") as k:
        own, threads = sk.Event("go"), set[int]()

        def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
            threads.add(threading.get_ident())
            return 0, 1

        done = k.submit(given(), events={"go": own}, tiling={"d": tiling})
        assert not done.done()
        own.set()
        np.testing.assert_array_equal(done.result(SECONDS)["c"], vector(5))
        assert threading.get_ident() not in threads


def test_submissions_of_several_threads_are_all_launched() -> None:
    with compiled(Op(ADD, ["a", "b", "c"])) as k:
        futures: list[Future[dict[str, Any]]] = []

        def submit(number: int) -> None:
            for _ in range(10):
                futures.append(k.submit({"a": vector(number), "b": vector()}))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wait(futures, SECONDS).not_done
        assert sorted(float(done.result()["c"][0]) for done in futures) == sorted([1.0, 2.0, 3.0, 4.0] * 10)


def test_interrupt_exit_and_fork() -> None:
    """Ctrl-C ends the wait and not the launch; a forked child has a thread of its own; the exit waits for launches."""
    code = """
    import os, signal, threading, numpy as np
    from runtime.given import ADD, MARK, compiled, vector
    from superkernel import LaunchError, Op
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
    k = compiled(Op(ADD, ["a", "b", "c"], send=["begun"]), Op(MARK, ["ran"], recv=["go"]), cores=1)
    given = {"a": vector(), "b": vector(2), "ran": np.zeros(1, np.int64)}
    done = k.submit(given)
    k.events["begun"].wait(600)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        done.result(600)
    except KeyboardInterrupt:
        print("interrupted", done.running())
    k.events["go"].set()
    print("sum", done.result(600)["c"][0])
    pid = os.fork()
    if pid == 0:
        k.events["go"].set()
        try:
            answer = k.submit(given).result(600)["c"][0]
        except LaunchError:
            answer = 3
        os._exit(0 if answer == 3 else 1)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    last = k.submit(given)
    last.add_done_callback(lambda done: print("last", done.result()["c"][0], flush=True))
    k.events["go"].set()
    """
    found = child(code)
    assert found.stdout.splitlines() == ["interrupted True", "sum 3.0", "child 0", "last 3.0"], found.stderr
