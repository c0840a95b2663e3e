"""targets.cpu: Ctrl-C during a launch: KeyboardInterrupt once all cores have left, and the kernel works again."""

from __future__ import annotations

from targets.cpu.small import child

HEAD = """
import os, signal, threading, time
import numpy as np
from targets.cpu.small import compile_ops, expected, launched, numbers, small
from superkernel import Op
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
ops = [
    Op(small("scale"), ["a", "t"], send=["begun"]),
    Op(small("mix"), ["t", "b", "u"], recv=["go"]),
    Op(small("early", 4), ["u", "a", "v"]),
]
k = compile_ops(ops, "interrupted", "debug-watchdog=200")
arrays = numbers("a", "b")

def right(found):
    return all(np.array_equal(found[name], value) for name, value in expected(k, arrays).items())

def interrupt_once_begun(then=lambda: None):
    def act():
        assert k.events["begun"].wait(600)
        os.kill(os.getpid(), signal.SIGINT)
        then()
    k.events["begun"].clear()
    thread = threading.Thread(target=act)
    thread.start()
    return thread
"""


def test_the_launch_is_left_and_the_next_one_works() -> None:
    """Three times over; exactly one KeyboardInterrupt each, and the event words are back at zero."""
    code = """
for _ in range(3):
    thread = interrupt_once_begun()
    try:
        launched(k, k, arrays)
        raise SystemExit("the launch was not stopped")
    except KeyboardInterrupt:
        pass
    thread.join()
    for i in range(1000):  # a second KeyboardInterrupt would come here
        pass
    assert not k.events["go"].is_set()
    k.events["go"].set()
    assert right(launched(k, k, arrays))
k.close()
print("done")
"""
    assert "done" in child(HEAD + code).stdout


def test_a_handler_of_the_user_s_own_is_not_ours_to_interrupt() -> None:
    code = """
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
thread = interrupt_once_begun(then=k.events["go"].set)
assert right(launched(k, k, arrays))
thread.join()
assert seen == [signal.SIGINT]
print("done")
"""
    assert "done" in child(HEAD + code).stdout


def test_python_s_handler_is_back_after_a_launch() -> None:
    code = """
k.events["go"].set()
launched(k, k, arrays)
try:
    os.kill(os.getpid(), signal.SIGINT)
    for i in range(10**6):
        pass
    raise SystemExit("no KeyboardInterrupt")
except KeyboardInterrupt:
    print("done")
"""
    assert "done" in child(HEAD + code).stdout


def test_a_launch_of_another_thread_is_not_stopped() -> None:
    """Ctrl-C belongs to the main thread, as everywhere in Python."""
    code = """
found = []
launch = threading.Thread(target=lambda: found.append(launched(k, k, arrays)))
thread = interrupt_once_begun()
try:
    launch.start()  # the interrupt may come before this returns
    while not found:
        time.sleep(0.01)
    raise SystemExit("no KeyboardInterrupt in the main thread")
except KeyboardInterrupt:
    k.events["go"].set()
while not found:
    time.sleep(0.01)
assert right(found[0])
print("done")
"""
    assert "done" in child(HEAD + code).stdout


def test_a_sub_kernel_that_never_returns_is_still_found_after_ctrl_c() -> None:
    """The other cores can leave, that one cannot: the watchdog ends the process, as it would without Ctrl-C."""
    code = """
from targets.cpu.small import broken
ops = [Op(small("scale"), ["a", "t"], send=["begun"]), Op(broken("endless"), ["z"])]
k = compile_ops(ops, "endless", "debug-watchdog=3:debug-watchdog-action=exit")
interrupt_once_begun()
k(numbers("a", "z"))
"""
    done = child(HEAD + code, check=False)
    assert done.returncode == 70, done.stderr
    assert "super_kernel_scope 'endless': no progress for 3 s" in done.stderr


def test_a_launch_with_a_control_thread_and_records_is_left_too() -> None:
    code = """
from superkernel.targets.cpu.runtime import tiling_agent
tiling_agent.PATIENCE_S = 600  # a busy machine may take longer than the usual second to end a tiling function
dynamic = small("twice", 2, variants={2: "twice"})
ops = [
    Op(small("scale"), ["a", "t"], send=["begun"]),
    Op(dynamic, ["t", "z"], task="dynamic", tiling=lambda inputs: (2, 2), recv=["go"]),
]
k = compile_ops(ops, "interrupted_dynamic", "profiling=1:debug-watchdog=200")
arrays = numbers("a", "z")
for _ in range(2):
    thread = interrupt_once_begun()
    try:
        launched(k, k, arrays)
        raise SystemExit("the launch was not stopped")
    except KeyboardInterrupt:
        pass
    thread.join()
    k.events["go"].set()
    assert right(launched(k, k, arrays))
assert sum(thread.name == "superkernel-agent" for thread in threading.enumerate()) == 1  # idle
k.close()
print("done")
"""
    assert "done" in child(HEAD + code).stdout
