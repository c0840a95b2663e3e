"""targets.cuda.runtime.watchdog: launches in progress -> a report of those without progress, and their end.

A thread looks at the progress words of every state. Where all cores wait, it sets the abort word, which every wait
reads after 100 us. A sub-kernel that does not return cannot be stopped: `debug-watchdog-action` decides.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import dataclass
from time import monotonic

from ....errors import LaunchError
from ....plan.steps import Call, Cores, Wait, spell
from ...launch_reports import STALLED_STATUS, report_path
from ..task_layout import LONG_WAIT
from .image import KernelImage
from .sync_state import LaunchState, StateSnapshot

_LEAST_PERIOD_S, _MOST_PERIOD_S = 0.02, 5.0
_RANKS_PERIOD_S = 0.25  # of launches that wait for other ranks, which may have ended
_LAST_WAIT_S = 2.0  # for the thread, when the interpreter ends
_MOST_BLOCKS = 4  # that a report names of a core
PATIENCE_S = 5.0  # how long an aborted launch may take to end


@dataclass
class _Watched:
    """What the thread saw last of a state."""

    state: LaunchState
    snapshot: StateSnapshot | None = None
    since: float = 0.0  # when that was new
    ended: tuple[int, int] | None = None  # resets and launches of the state when all had ended


class Watchdog:
    """One thread for all kernels of the process. It starts with the first state."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: dict[LaunchState, _Watched] = {}
        self._looked_at: LaunchState | None = None
        self._closes: list[LaunchState] = []  # when the look at them is over
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, state: LaunchState) -> None:
        if not state.patience_s:
            return
        with self._condition:
            self._watched[state] = _Watched(state)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads of its parent
                self._thread = threading.Thread(target=self._run, name="superkernel-cuda-watchdog", daemon=True)
                self._thread.start()
                atexit.register(self.stop)
            self._condition.notify()

    def forget(self, state: LaunchState) -> None:
        with self._condition:
            self._watched.pop(state, None)

    def close(self, state: LaunchState) -> None:
        """Forget and close it; one that is being looked at, when that is over. Never waits: finalizers call it."""
        with self._condition:
            self._watched.pop(state, None)
            if self._looked_at is state:
                self._closes.append(state)
                return
        with state.device.current():
            state.close()

    def finish_look(self) -> None:
        """Returns when what close() left to the thread is closed."""
        with self._condition:
            thread = self._thread
            while (
                self._closes and thread is not threading.current_thread() and thread is not None and thread.is_alive()
            ):
                self._condition.wait(_LEAST_PERIOD_S)

    def stop(self) -> None:
        """Before the interpreter ends: no thread may be inside the driver when that closes its context."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(_LAST_WAIT_S)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._watched and not self._stopped:
                    self._condition.wait()
                if not self._stopped:
                    self._condition.wait(min(_period_s(watched.state) for watched in self._watched.values()))
                if self._stopped:
                    return
                present = list(self._watched.values())
            for watched in present:
                with self._condition:
                    if self._watched.get(watched.state) is not watched:
                        continue
                    self._looked_at = watched.state
                try:
                    self._look(watched)
                finally:
                    self._end_look()

    def _end_look(self) -> None:
        with self._condition:
            self._looked_at = None
            for state in self._closes:
                with state.device.current():
                    state.close()
            self._closes.clear()
            self._condition.notify_all()

    def _look(self, watched: _Watched) -> None:
        state = watched.state
        if not state.captured and (state.error is not None or watched.ended == (state.resets, state.launches)):
            return
        try:
            with state.device.current():
                self._check(watched, monotonic())
        except LaunchError as error:  # the context is lost; the next call of the user says so as well
            if state.error is None:
                state.error = error
            self.forget(state)

    def _check(self, watched: _Watched, now: float) -> None:
        state = watched.state
        counted = state.resets, state.launches
        snapshot = state.snapshot()
        if state.completed(snapshot):
            watched.ended = counted
        elif state.ranks is not None and (trouble := state.ranks.trouble()):
            self._end_ranks(state, f"{state.image.where}{state.image.entry} is stopped: {trouble}")
            return
        if snapshot.idle or watched.snapshot != snapshot:
            watched.snapshot, watched.since = snapshot, now
            return
        if now - watched.since < state.patience_s:
            return
        watched.since = now  # said again after the next period
        report = stall_report(state.image, snapshot, state.patience_s)
        if state.ranks is not None and (late := state.ranks.late(snapshot.epoch + 1)):
            report = f"{report}\n{late}"
        _publish(state.image, report)
        if snapshot.inside:
            if state.image.watchdog_exits:
                os._exit(STALLED_STATUS)
            return
        if state.ranks is not None:
            self._end_ranks(state, report)
            return
        with state.recovering:
            state.abort(LaunchError(report))
            if state.captured:  # no later call of the user can reset it: its graph is replayed without this run time
                state.recover(PATIENCE_S)

    def _end_ranks(self, state: LaunchState, report: str) -> None:
        """The launch waits in vain for another rank; the other ranks are told."""
        assert state.ranks is not None
        with state.recovering:
            state.abort(LaunchError(report))
        state.ranks.fail(report)


def _period_s(state: LaunchState) -> float:
    """Between two looks."""
    period = min(max(state.patience_s / 4, _LEAST_PERIOD_S), _MOST_PERIOD_S)
    return period if state.ranks is None else min(period, _RANKS_PERIOD_S)


def stall_report(image: KernelImage, snapshot: StateSnapshot, seconds: float) -> str:
    """What each core is doing: SM, slot, op, blocks, and what it waits for."""
    inside = snapshot.inside
    if inside:
        ops = dict.fromkeys(_op_name(image, snapshot, core) for core in inside)
        verdict = f"sub-kernel of op {', '.join(map(repr, ops))} does not return"
    else:
        verdict = "all cores wait, and the launch is stopped"
    lines = [f"{image.where}{image.entry} has made no progress for {seconds:g} s (debug-watchdog): {verdict}"]
    groups: dict[tuple[int, bool], list[int]] = {}
    for core, word in enumerate(snapshot.progress):
        if word:
            groups.setdefault((_step(image, snapshot, core), bool(word & LONG_WAIT)), []).append(core)
    for (step, waiting), cores in groups.items():
        lines.append(f"  {_names(image, cores)}: {_doing(image, step, waiting, cores)}")
    ended = sum(not word for word in snapshot.progress)
    if ended:
        lines.append(f"  {ended} other cores have finished, or not begun")
    return "\n".join(lines)


def _step(image: KernelImage, snapshot: StateSnapshot, core: int) -> int:
    steps, task = image.task_steps[core], snapshot.task(core)
    return steps[task] if 0 <= task < len(steps) else -1


def _op_name(image: KernelImage, snapshot: StateSnapshot, core: int) -> str:
    number = _step(image, snapshot, core)
    op = getattr(image.plan.steps[number], "op", None) if number >= 0 else None
    return image.plan.op_names[op] if isinstance(op, int) else "?"


def _names(image: KernelImage, cores: list[int]) -> str:
    """'SM 0-131 slot 0', slot by slot."""
    slots: dict[int, list[int]] = {}
    for core in cores:
        slots.setdefault(core // image.sms, []).append(core % image.sms)
    return ", ".join(f"SM {spell(tuple(sms))} slot {slot}" for slot, sms in slots.items())


def _doing(image: KernelImage, number: int, waiting: bool, cores: list[int]) -> str:
    plan = image.plan
    if number < 0:
        return "in a task that the plan does not have"
    step = plan.steps[number]
    if not waiting:
        return f"in {plan.describe(step)}{_blocks(step, cores[0]) if len(cores) == 1 else ''}"
    for earlier in reversed(plan.steps[: number + 1]):
        if isinstance(earlier, Wait) and cores[0] in earlier.cores and earlier.op == getattr(step, "op", None):
            return plan.describe(earlier)
    return f"waiting in {plan.describe(step)}"


def _blocks(step: object, core: int) -> str:
    """', block 3' of a call."""
    if not isinstance(step, Call) or core not in step.cores:
        return ""
    cores: Cores = step.cores
    rank = cores.index(core) % step.width
    blocks = range(rank, step.blocks, step.width)
    shown = ", ".join(map(str, blocks[:_MOST_BLOCKS]))
    return f", block {shown}{', ...' if len(blocks) > _MOST_BLOCKS else ''}"


def _publish(image: KernelImage, report: str) -> None:
    """On stderr and in a file: the caller may never come back from the wait that it is in."""
    path = report_path(image.plan.graph.name)
    try:
        path.write_text(report + "\n")
        report = f"{report}\n  (also in {path})"
    except OSError:
        pass
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"superkernel: {report}\n".encode())


WATCHDOG = Watchdog()
