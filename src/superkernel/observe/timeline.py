"""observe.timeline: a profile -> trace.json in the trace event format, which Perfetto and chrome://tracing open.

Times are microseconds since `baseTimeNanoseconds`, as they are in the traces of torch's profiler; ours begins with the
profile, as numbers that count from far away would lose the nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError
from ..plan.spans import Span
from ..plan.steps import SpanKind
from .profile import Profile, ProfiledLaunch, ProfiledOp

LAUNCHES, CORES = 1_000_001, 1_000_002  # process numbers of our tracks, larger than those of any system
_SPACING = 1000  # between the track numbers of two threads' cores
# Viewers round begin and duration to whole nanoseconds separately, and drop a slice that then overlaps its neighbour or
# outlasts the slice around it. Slices inside a kernel are therefore shown shorter by this much.
_SLACK_NS = 3
_PIECE = 10_000  # events that are written together


def trace(profile: Profile) -> dict[str, Any]:
    return {**_head(profile), "traceEvents": list(events_of(profile))}


def trace_pieces(profile: Profile) -> Iterator[str]:
    """The same as the text of a JSON file, in pieces: a long run has millions of events."""
    yield f'{_dumped(_head(profile))[:-1]},"traceEvents":['
    events, separator = events_of(profile), ""
    while piece := list(islice(events, _PIECE)):
        yield separator + _dumped(piece)[1:-1]
        separator = ","
    yield "]}"


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _head(profile: Profile) -> dict[str, Any]:
    facts = {"package": profile.package, "machine": dict(profile.machine)}
    return {"displayTimeUnit": "ns", "baseTimeNanoseconds": profile.began_ns, "superkernel": facts}


def events_of(profile: Profile) -> Iterator[dict[str, Any]]:
    yield from _tracks(profile)
    yield from _launches(profile)
    yield from _spans(profile)
    yield from _flows(profile)


def _tracks(profile: Profile) -> Iterator[dict[str, Any]]:
    """Names and order: launches above, cores below."""
    for pid, name, order in ((LAUNCHES, "SuperKernel launches", -2), (CORES, "SuperKernel cores", -1)):
        yield _named("process_name", pid, 0, name=name)
        yield _named("process_sort_index", pid, 0, sort_index=order)
    for thread in sorted({launch.thread for launch in profile.launches}):
        yield _named("thread_name", LAUNCHES, thread, name=f"launches of thread {thread}")
    for thread, core in sorted({(launch.thread, span.core) for launch in profile.launches for span in launch.spans}):
        of_thread = f" of thread {thread}" if thread else ""
        yield _named("thread_name", CORES, thread * _SPACING + core, name=f"core {core}{of_thread}")
        yield _named("thread_sort_index", CORES, thread * _SPACING + core, sort_index=thread * _SPACING + core)


def _named(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _slice(kind: str, name: str, pid: int, tid: int, at_us: float, us: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": at_us, "dur": us, "args": args}


def _launches(profile: Profile) -> Iterator[dict[str, Any]]:
    for launch in profile.launches:
        times = _rounded(launch.start_us), _rounded(launch.duration_us)
        args = _launch_args(profile, launch)
        yield _slice("launch", launch.name, LAUNCHES, launch.thread, *times, args)


def _launch_args(profile: Profile, launch: ProfiledLaunch) -> dict[str, Any]:
    args: dict[str, Any] = {"type": launch.type, "core type": launch.core_type, "scope": launch.scope}
    args |= {"block dim": launch.block_dim, "stream": launch.stream, "wait_us": _rounded(launch.wait_ns / 1000)}
    if launch.kernel is not None and (kernel := profile.kernels[launch.kernel]).fused:
        args |= {"ops": len(kernel.ops), "cores": kernel.cores, "options": kernel.options}
    return args


def _spans(profile: Profile) -> Iterator[dict[str, Any]]:
    ops = [{op.name: op for op in kernel.ops} for kernel in profile.kernels]
    shared: dict[tuple[object, ...], dict[str, Any]] = {}  # many spans say the same of their op
    for launch in profile.launches:
        for span in launch.spans:
            begin_ns, end_ns = round(span.begin_ns), round(span.end_ns)
            duration_ns = max(0, end_ns - begin_ns - (_SLACK_NS if span.what is not SpanKind.KERNEL else 0))
            key = launch.kernel, launch.name, launch.scope, span.op, span.what, span.inside, span.waited_for
            if (args := shared.get(key)) is None:
                op = ops[launch.kernel].get(span.op or "") if launch.kernel is not None else None
                args = shared[key] = _span_args(span, launch, op)
            name = _span_name(span, launch)
            yield _slice(
                span.what.value,
                name,
                CORES,
                core_track(launch.thread, span.core),
                begin_ns / 1000,
                duration_ns / 1000,
                args,
            )


def core_track(thread: int, core: int) -> int:
    """The track of a core of a thread's launches."""
    return thread * _SPACING + core


def _flows(profile: Profile) -> Iterator[dict[str, Any]]:
    """An arrow from the op whose signal ended a wait to the end of that wait, on another core."""
    number = 0
    for launch in profile.launches:
        ends = {(span.op, span.core): span for span in launch.spans if span.what is SpanKind.OP}
        for span in launch.spans:
            producer = None if span.signalled_by is None else ends.get((span.waited_for, span.signalled_by))
            if producer is None:
                continue
            # both ends lie inside the slices that they join; with early start the op may end after the wait
            given_ns = max(producer.begin_ns, min(producer.end_ns, span.end_ns) - 2 * _SLACK_NS)
            taken_ns = max(span.begin_ns, span.end_ns - 2 * _SLACK_NS)
            number += 1
            flow = {"cat": "sync", "name": f"{span.waited_for} signals {span.op}", "id": number, "pid": CORES}
            begin = round(given_ns) / 1000
            yield {**flow, "ph": "s", "tid": core_track(launch.thread, producer.core), "ts": begin}
            end = max(round(taken_ns) / 1000, begin)
            yield {**flow, "ph": "f", "bp": "e", "tid": core_track(launch.thread, span.core), "ts": end}


def _span_name(span: Span, launch: ProfiledLaunch) -> str:
    if span.op is None or span.what is SpanKind.OP:
        return span.op or launch.name
    if span.inside:
        return f"{'sync_all' if span.what is SpanKind.BARRIER else span.what} in {span.op}"
    return f"{span.what} {'after' if span.what is SpanKind.NOTIFY else 'before'} {span.op}"


def _span_args(span: Span, launch: ProfiledLaunch, op: ProfiledOp | None) -> dict[str, Any]:
    args: dict[str, Any] = {"kind": span.what.value, "super kernel": launch.name, "scope": launch.scope}
    if op is not None:
        args |= {"type": op.type, "blocks": op.blocks}
        args |= {"bytes read": op.bytes_read, "bytes written": op.bytes_written} if span.what is SpanKind.OP else {}
        args |= {"line": op.origin} if op.origin else {}
    return args | ({"waited for": span.waited_for} if span.waited_for is not None else {})


def _rounded(us: float) -> float:
    return round(us, 3)


def merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The trace of torch's profiler with our tracks in it, on its clock."""
    shift_us = (ours["baseTimeNanoseconds"] - theirs.get("baseTimeNanoseconds", 0)) / 1000
    events = ours["traceEvents"]
    moved = [{**event, "ts": _rounded(event["ts"] + shift_us)} if "ts" in event else event for event in events]
    return {**theirs, "traceEvents": [*theirs["traceEvents"], *moved]}


def merge_files(directory: str | Path, torch_trace: str | Path, output: str | Path) -> Path:
    """Our trace of a profile directory and one that torch's profiler exported -> one file."""
    ours = Path(directory) / "trace.json"
    if not ours.exists() and (compressed := ours.with_name("trace.json.gz")).exists():
        ours = compressed
    traces = []
    for path in (ours, Path(torch_trace)):
        try:
            content = path.read_bytes()
            found = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
            assert isinstance(found["traceEvents"], list)
        except OSError as reason:
            raise OptionError(f"{path}: {reason.strerror or reason}: not a trace that can be read") from reason
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError, EOFError, zlib.error) as reason:
            raise OptionError(f"{path} is no trace with traceEvents") from reason
        traces.append(found)
    content = json.dumps(merged(*traces)).encode()
    try:
        Path(output).write_bytes(gzip.compress(content, 3) if Path(output).suffix == ".gz" else content)
    except OSError as reason:
        raise BuildError(f"cannot write {output}: {reason}") from reason
    return Path(output)
