"""package.opened_package: libsuperkernel and a folder -> an opened model and its contexts, freed when unused.

An exception of a signal handler may end any step here, and the handler itself may call, submit or close. So the lock
of a package is one that its thread may take again; what frees a model or a context is there before the library makes
it; and to close again goes on where it was interrupted.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ctypes import c_void_p
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

from ..errors import BuildError, GraphError, LaunchError, SuperKernelError
from ..runtime.submitted_launches import SubmittedLaunches
from .file_names import MANIFEST
from .library_functions import LibraryFunctions, ModelDescription
from .one_folder import HeldFolder
from .return_structure import structure_from_json

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class PackageSettings:
    """What `load_model` was asked for."""

    threads: int  # 0: as many as affinity and CPU quota allow
    wait: str
    cpus: tuple[int, ...]


class OpenedPackage:
    """A model of libsuperkernel. It is closed by `close`, or when this object and all contexts are gone."""

    def __init__(self, library: LibraryFunctions, folder: HeldFolder, settings: PackageSettings) -> None:
        self.library = library
        self.path = folder.path.absolute()
        self.settings = settings
        opened = c_void_p()
        self._release = _released_when_unused(self, _release_here, library.close, opened, os.getpid())
        self.address = library.open(
            self.path, settings.threads, settings.wait, settings.cpus, opened, folder.descriptor
        )
        self.description = _with_structures(library.describe(self.address), folder)
        self.where = f"package {self.description.name!r}"
        self._contexts: weakref.WeakSet[ContextHandle] = weakref.WeakSet()
        self.lock = threading.RLock()  # between what opens contexts, submits calls and closes
        self.is_closed = False

    def create_context(self) -> ContextHandle:
        with self.lock:
            if self.is_closed or not self._release.alive:
                raise LaunchError(f"{self.where} is closed; load it again")
            return ContextHandle(self, self._contexts)

    def close(self) -> None:
        """Closes all contexts, then the model. Refused, with all of them open, while a call runs or was submitted."""
        with self.lock:
            contexts = tuple(self._contexts)
            for context in contexts:
                context.check_idle()
            for context in contexts:
                context.close()
            self.is_closed = True
        self._release()

    def after_fork(self) -> None:
        """In the child: a thread that held the lock is in the parent."""
        self.lock = threading.RLock()


def _with_structures(description: ModelDescription, folder: HeldFolder) -> ModelDescription:
    """With what entries return, which is in the manifest and which the library, like C programs, does not read."""
    try:
        manifest, _ = folder.read_json(MANIFEST).foreign_fields(("entries",), ("entries",))
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

    def __init__(self, package: OpenedPackage, contexts: weakref.WeakSet[ContextHandle]) -> None:
        self.package = package  # which must outlive the context
        self.library = package.library
        self.where = package.where
        self.lock = threading.Lock()
        # `for taken in attempt():` runs its body with the lock, or not at all. It stands in a `try` whose `finally`
        # gives back a lock that was taken: Python calls handlers of signals, which may raise, where a call returns, and
        # so never between taking the lock and the body.
        self.attempt = partial(iter, partial(self.lock.acquire, False), False)
        self._wait = partial(iter, partial(self.lock.acquire, True), False)
        self.is_closed = self._is_closing = False
        self._submitted = SubmittedLaunches(package.description.name)
        created = c_void_p()
        self._release = _released_when_unused(self, _destroy, package, created, self.lock, os.getpid())
        contexts.add(self)
        _of_this_process.add(self)
        self.address = package.library.create_context(package.address, created)

    def refuse(self) -> NoReturn:
        """After an attempt to take the lock."""
        self._check_open()
        raise LaunchError(
            f"{self.where}: another thread is running in this context; give every thread a context of its own: "
            "model.new_context()"
        )

    def failure(self, status: int) -> SuperKernelError:
        """Of a call that has just failed on this thread."""
        return self.library.failure(status, f"{self.where}: ")

    def after_fork(self) -> None:
        """In the child: threads that held the locks are in the parent. The lock of calls stays the same object."""
        if not self.is_closed and self.lock.locked():
            self.lock.release()
        self.package.after_fork()

    def wait(self) -> Iterator[bool]:
        """As `attempt`, when the context is free. A context that is closed does not become free."""
        taken: Iterator[bool] = self.attempt() if self.is_closed else self._wait()
        return taken

    def alone(self, use: Callable[[], Returned]) -> Returned:
        """What `use` returns; refused while a call runs."""
        taken = False
        try:
            for taken in self.attempt():  # noqa: B007 (used in `finally`)
                return use()
        finally:
            if taken:
                self.lock.release()
        return self.refuse()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        with self.package.lock:
            if self._is_closing:
                raise LaunchError(f"{self.where}: submit() by a signal handler or finalizer during close()")
            self._check_open()
            return self._submitted.submit(call)

    def _check_open(self) -> None:
        if self.is_closed or not self._release.alive:
            raise LaunchError(f"{self.where} is closed; load it again")

    def check_idle(self) -> None:
        """A LaunchError while a call runs or was submitted."""
        if pending := self._submitted.pending():
            raise LaunchError(f"{self.where}: close() while {pending} submitted calls are not done")
        if not self.is_closed and self.lock.locked():
            raise self._running()

    def _running(self) -> LaunchError:
        return LaunchError(f"{self.where}: close() while a call is running")

    def close(self) -> None:
        with self.package.lock:
            if not self.is_closed:
                self._is_closing = True
                try:
                    self.check_idle()
                    for taken in self.attempt():
                        self.is_closed = taken
                        break
                    if not self.is_closed:
                        raise self._running()
                finally:
                    self._is_closing = False
        self._release()


def _released_when_unused(owner: object, release: Callable[..., None], *arguments: Any) -> weakref.finalize[Any, Any]:
    """Not at the end of the process, when threads may still call: the library then ends its own ones."""
    finalizer = weakref.finalize(owner, release, *arguments)
    finalizer.atexit = False
    return finalizer


def _destroy(package: OpenedPackage, created: c_void_p, lock: threading.Lock, process: int) -> None:
    """Takes the lock for good: the garbage collector comes here before it calls `__del__` of objects that still have
    the context, and the library may give its address to the next one.
    """
    lock.acquire(blocking=False)
    _release_here(package.library.destroy_context, created, process)


def _release_here(release: Callable[[int], None], made: c_void_p, process: int) -> None:
    """In the child of a fork, what the parent has opened is left alone: its threads do not exist there."""
    if made.value is not None and os.getpid() == process:
        release(made.value)


_of_this_process: weakref.WeakSet[ContextHandle] = weakref.WeakSet()


def _after_fork() -> None:
    for context in _of_this_process:
        context.after_fork()


os.register_at_fork(after_in_child=_after_fork)
