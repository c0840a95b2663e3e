"""targets.ascend.runtime.host_agent: a thread beside a launch: events of the host, tilings and weight prefetches.

It reads all words of the launch by one small copy, again and again, and writes single words back. Such copies neither
wait for the kernel nor make it wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....errors import LaunchError
from ....model.events import Event
from ....model.node import Node
from ....model.params import Kind
from ....model.tiling import TilingFunction, chosen_tiling
from ..kernel_description import EventWord, Prefetch, TilingWords
from .acl_functions import CMO_PREFETCH
from .launch_room import LaunchRoom

_POLL_S = 50e-6
ASKED, ANSWERED = 2, 1  # in the lock word of a dynamic op
Words = Mapping[int, int]  # slot -> value


class Duty(Protocol):
    """Something that the agent watches for."""

    def serve(self, words: Words) -> None: ...  # after every look at the words
    def finish(self, words: Words) -> None: ...  # after the launch
    def pending(self, words: Words) -> str: ...  # what a launch that does not end may wait for; empty: nothing


@dataclass
class SentEvent:
    """The kernel sets the word; the host's event follows."""

    event: Event
    word: EventWord
    done: bool = False

    def serve(self, words: Words) -> None:
        if not self.done and words[self.word.slot] == 1:
            self.done = True
            self.event.set()

    finish = serve

    def pending(self, words: Words) -> str:
        return ""


@dataclass
class ReceivedEvent:
    """The host sets its event; the word follows, and the kernel resets it."""

    event: Event
    word: EventWord
    room: LaunchRoom
    delivered: bool = False

    def serve(self, words: Words) -> None:
        if not self.delivered and self.event.is_set():
            self.delivered = True
            self.room.write_word(self.word.slot, 1)

    def finish(self, words: Words) -> None:
        if not self.delivered:
            return
        self.event.clear()
        if words[self.word.slot] != 0:
            raise LaunchError(f"op {self.word.op!r} did not reset the word of event {self.word.label}")

    def pending(self, words: Words) -> str:
        if not self.delivered:
            return f"event {self.word.label}, which op {self.word.op!r} waits for, is not set"
        return ""


@dataclass
class TilingRequest:
    """The kernel asks; the user's function gets what the op reads, and its answer goes into three words."""

    node: Node
    slots: TilingWords
    function: TilingFunction
    inputs: Callable[[str], Any]  # a buffer's present contents
    room: LaunchRoom
    unknown_key: str = ""
    asked: bool = False
    done: bool = False

    def serve(self, words: Words) -> None:
        if self.done or words[self.slots.lock_slot] != ASKED:
            return
        self.asked = True
        names = {name: param.kind for param, name in self.node.arguments()}
        read = {str(name): self.inputs(name) for name, kind in names.items() if kind in (Kind.IN, Kind.INOUT)}
        key, blocks = chosen_tiling(self.function(read), self.slots.op)
        if not 0 <= blocks <= self.node.blocks:
            raise LaunchError(
                f"the tiling function of op {self.slots.op!r} wants {blocks} blocks; "
                f"it may have 0 to {self.node.blocks}"
            )
        keys = [known for known, _ in self.node.kernel.tiling_variants]
        if key not in keys:  # the cores will trap; the error then says why
            known_keys = ", ".join(map(str, keys))
            self.unknown_key = f"op {self.slots.op!r} was given the unknown tiling key {key}; its keys are {known_keys}"
        self.room.write_word(self.slots.key_slot, key % 2**64)
        self.room.write_word(self.slots.blocks_slot, blocks)
        self.room.write_word(self.slots.lock_slot, ANSWERED)  # last: key and block count are there when cores see it
        self.done = True

    def finish(self, words: Words) -> None: ...

    def pending(self, words: Words) -> str:
        if self.asked and not self.done:
            return f"the tiling function of op {self.slots.op!r} has not returned"
        return ""


@dataclass
class PrefetchRequest:
    """The kernel asks one op ahead; the weights go to the cache by a stream beside the launch."""

    prefetch: Prefetch
    room: LaunchRoom
    done: bool = False

    def serve(self, words: Words) -> None:
        if self.done or words[self.prefetch.go_slot] != 1:
            return
        self.done = True
        acl, left = self.room.device.acl, self.prefetch.budget
        for name in self.prefetch.buffers:
            memory = self.room.buffers[name]
            size = min(memory.bytes, left)
            left -= size
            if size and acl.has("aclrtCmoAsync"):  # it makes the launch faster, nothing else
                doing = f"prefetching {name!r} for op {self.prefetch.op!r}"
                acl.check(doing, "aclrtCmoAsync", memory.address, size, CMO_PREFETCH, self.room.side_stream)
        self.room.write_word(self.prefetch.go_slot, 0)  # taken

    def finish(self, words: Words) -> None: ...

    def pending(self, words: Words) -> str:
        return ""


@dataclass
class HostAgent:
    """Serves one launch, from `start` to `leave`. What fails in it aborts the launch, and is its error."""

    room: LaunchRoom
    duties: Sequence[Duty]
    error: BaseException | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _abandoned: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        if self.duties:
            self._thread = threading.Thread(target=self._serve, name="superkernel-npu-agent", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        with self.room.device.current():
            try:
                while not self._over.is_set():
                    words = self.room.words()
                    for duty in self.duties:
                        duty.serve(words)
                    time.sleep(_POLL_S)
            except BaseException as error:  # also what a tiling function raises: the launching thread raises it again
                self.error = error
                if not self._over.is_set():
                    self.room.device.acl.code("aclrtStreamAbort", self.room.stream)
            with self._lock:
                self._over.set()
                if self._abandoned:
                    self.room.close(stopped=True)

    def leave(self, patience_s: float | None) -> bool:
        """After the launch. False: a tiling function still runs; the agent closes the room when that returns."""
        self._over.set()
        if self._thread is None:
            return True
        self._thread.join(patience_s)
        with self._lock:
            self._abandoned = self._thread.is_alive()
        return not self._abandoned

    def finish(self) -> None:
        """The launch has ended well: what its last steps wrote to words, and what it must have reset."""
        words = self.room.words() if self.duties else {}
        for duty in self.duties:
            duty.finish(words)

    def pending(self) -> list[str]:
        words = self.room.words() if self.duties else {}
        return [text for duty in self.duties if (text := duty.pending(words))]

    def notes(self) -> list[str]:
        return [duty.unknown_key for duty in self.duties if isinstance(duty, TilingRequest) and duty.unknown_key]
