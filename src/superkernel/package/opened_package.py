"""package.opened_package: libsuperkernel and a folder -> an opened model and its contexts, freed when unused."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..errors import BuildError, GraphError, LaunchError
from ..model.json_value import parse_json
from ..runtime.submitted_launches import SubmittedLaunches
from .file_names import MANIFEST
from .library_functions import LibraryFunctions, ModelDescription
from .return_structure import structure_from_json


@dataclass(frozen=True)
class PackageSettings:
    """What `load_model` was asked for."""

    threads: int  # 0: as many as affinity and CPU quota allow
    wait: str
    cpus: tuple[int, ...]


class OpenedPackage:
    """A model of libsuperkernel. It is closed by `close`, or when this object and all contexts are gone."""

    def __init__(self, library: LibraryFunctions, path: Path, settings: PackageSettings) -> None:
        self.library = library
        self.path = path
        self.settings = settings
        self.address = library.open(path, settings.threads, settings.wait, settings.cpus)
        self._release = _released_when_unused(self, _release_here, library.close, self.address, os.getpid())
        self.description = _with_structures(library.describe(self.address), path)
        self.where = f"package {self.description.name!r}"
        self._contexts: weakref.WeakSet[ContextHandle] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.is_closed = False

    def create_context(self) -> ContextHandle:
        with self._lock:
            if self.is_closed:
                raise LaunchError(f"{self.where} is closed; load it again")
            context = ContextHandle(self)
            self._contexts.add(context)
            _of_this_process.add(context)
            return context

    def close(self) -> None:
        """Closes all contexts, then the model. Refused, with all of them open, while a call runs or was submitted."""
        with self._lock:
            if self.is_closed:
                return
            contexts = tuple(self._contexts)
            for context in contexts:
                context.check_idle()
            for context in contexts:
                context.close()
            self.is_closed = True
        self._release()

    def after_fork(self) -> None:
        """In the child: a thread that held the lock is in the parent."""
        self._lock = threading.Lock()


def _with_structures(description: ModelDescription, path: Path) -> ModelDescription:
    """With what entries return, which is in the manifest and which the library, like C programs, does not read."""
    try:
        manifest, _ = parse_json(path / MANIFEST).foreign_fields(("entries",), ("entries",))
        listed = [entry.foreign_fields(("name", "returns"), ("name",))[0] for entry in manifest["entries"].items()]
        given = {fields["name"].text(): fields["returns"] for fields in listed if "returns" in fields}
        entries = tuple(
            replace(entry, returns=structure_from_json(given[entry.name], len(entry.shapes[0].outputs)))
            if entry.name in given
            else entry
            for entry in description.entries
        )
    except GraphError as error:
        raise BuildError(str(error)) from error
    return replace(description, entries=entries)


class ContextHandle:
    """A context of libsuperkernel. The call that runs in it holds the lock; closing it takes the lock for good."""

    def __init__(self, package: OpenedPackage) -> None:
        self.package = package  # which must outlive the context
        self.library = package.library
        self.where = package.where
        self.lock = threading.Lock()
        # `for _ in attempt():` runs its body with the lock, or not at all. Python calls handlers of signals, which may
        # raise, where a call returns: never between taking the lock here and a `try` at the beginning of the body.
        self.attempt = partial(iter, partial(self.lock.acquire, False), False)
        self.wait = partial(iter, partial(self.lock.acquire, True), False)
        self._closing = threading.Lock()  # between close and submit
        self.is_closed = False
        self._submitted = SubmittedLaunches(package.description.name)
        self.address = package.library.create_context(package.address)
        self._release = _released_when_unused(self, _destroy, package, self.address, os.getpid())

    def refuse(self) -> NoReturn:
        """After an attempt to take the lock."""
        self._check_open()
        raise LaunchError(
            f"{self.where}: another thread is running in this context; give every thread a context of its own: "
            "model.new_context()"
        )

    def after_fork(self) -> None:
        """In the child: threads that held the locks are in the parent. The lock of calls stays the same object."""
        self._closing = threading.Lock()
        if not self.is_closed and self.lock.locked():
            self.lock.release()
        self.package.after_fork()

    @contextmanager
    def held(self) -> Iterator[None]:
        for _ in self.attempt():
            try:
                yield
            finally:
                self.lock.release()
            return
        self.refuse()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        with self._closing:
            self._check_open()
            return self._submitted.submit(call)

    def _check_open(self) -> None:
        if self.is_closed:
            raise LaunchError(f"{self.where} is closed; load it again")

    def check_idle(self) -> None:
        """A LaunchError while a call runs or was submitted."""
        if pending := self._submitted.pending():
            raise LaunchError(f"{self.where}: close() while {pending} submitted calls are not done")
        if not self.is_closed and self.lock.locked():
            raise LaunchError(f"{self.where}: close() while a call is running")

    def close(self) -> None:
        with self._closing:
            if self.is_closed:
                return
            self.check_idle()
            for _ in self.attempt():
                self.is_closed = True
                break
            else:
                self.refuse()
        self._submitted.stop()
        self._release()


def _released_when_unused(owner: object, release: Callable[..., None], *arguments: Any) -> weakref.finalize[Any, Any]:
    """Not at the end of the process, when threads may still call: the library then ends its own ones."""
    finalizer = weakref.finalize(owner, release, *arguments)
    finalizer.atexit = False
    return finalizer


def _destroy(package: OpenedPackage, address: int, process: int) -> None:
    _release_here(package.library.destroy_context, address, process)


def _release_here(release: Callable[[int], None], address: int, process: int) -> None:
    """In the child of a fork, what the parent has opened is left alone: its threads do not exist there."""
    if os.getpid() == process:
        release(address)


_of_this_process: weakref.WeakSet[ContextHandle] = weakref.WeakSet()


def _after_fork() -> None:
    for context in _of_this_process:
        context.after_fork()


os.register_at_fork(after_in_child=_after_fork)
