"""package.model: the folder of a package -> a model that is called with arrays; needs no torch and no compiler."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError, nearest, shown
from ..model.plain_values import checked_path, truth_value, whole_number
from .checksums import check_files, read_checksums
from .file_names import is_torch_file
from .library_functions import WAIT_POLICIES, loaded_library
from .model_context import ModelContext
from .one_folder import HeldFolder, read_one_folder
from .opened_package import OpenedPackage, PackageSettings
from .torch_model import TorchModel, load_torch_model

_MOST_THREADS = 4096


class LoadedModel(ModelContext):
    """A package that was opened, with a context of its own. `new_context()` gives others that run at the same time.

    Entries are attributes: `model.decode(...)`. `model(...)` calls the only entry, or the entry `forward`.
    """

    def new_context(self) -> ModelContext:
        """A context with the initial states: it runs independently of this one, with the same weights and code."""
        return ModelContext(self._package)

    def close(self) -> None:
        """Closes all contexts, and then the package. Refused while a call runs or was submitted."""
        self._package.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """By its path and settings: states are not pickled, and the package must be there when it is read."""
        return load_again, (str(self.path), self._package.settings)


# attributes of loaded models, which entries cannot be called
TAKEN_NAMES = frozenset(
    name for name in (*dir(LoadedModel), *dir(TorchModel), "needs_torch") if not name.startswith("_")
)


def load_model(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    wait: str = "balanced",
    cpus: Iterable[int] | None = None,
    verify: bool = False,
) -> LoadedModel | TorchModel:
    """Open a package that `sk.export` has written. **This runs native code of the package**: open what you trust.

    `threads`: the most that a call uses, the calling thread included; by default what affinity and CPU quota allow.
    `wait`: how threads wait for the next call: "balanced" (spin, then sleep), "spin" or "sleep".
    `cpus`: processors for the threads of the model, one after the other.
    `verify`: compare every file with its checksum before; otherwise the manifest and all code.
    """
    folder = checked_path(path, "the path of a package", BuildError)
    if truth_value(verify) is None:
        raise OptionError(f"verify is {shown(verify)}; it must be True or False")
    settings = PackageSettings(_thread_count(threads), _wait_policy(wait), _processors(cpus))
    return _load(folder, settings, bool(verify))


def _load(folder: Path, settings: PackageSettings, verify: bool = False) -> LoadedModel | TorchModel:
    return read_one_folder(folder, partial(_load_folder, settings, verify))


def _load_folder(settings: PackageSettings, verify: bool, folder: HeldFolder) -> LoadedModel | TorchModel:
    files = read_checksums(folder)
    if verify:
        check_files(folder, files, everything=True)
    if any(map(is_torch_file, files)):
        return load_torch_model(folder, files, partial(load_again, str(folder.path.absolute()), settings))
    return LoadedModel(OpenedPackage(loaded_library(folder, files), folder, settings))


def load_again(path: str, settings: PackageSettings) -> LoadedModel | TorchModel:
    """What a pickled model becomes."""
    return _load(Path(path), settings)


def _thread_count(threads: object) -> int:
    if threads is None:
        return 0
    count = whole_number(threads)
    if count is None or not 1 <= count <= _MOST_THREADS:
        raise OptionError(f"threads is {shown(threads)}; a number from 1 to {_MOST_THREADS} is needed, or None")
    return count


def _wait_policy(wait: object) -> str:
    if not isinstance(wait, str) or wait not in WAIT_POLICIES:
        known = ", ".join(WAIT_POLICIES)
        raise OptionError(f"wait is {shown(wait)}{nearest(wait, WAIT_POLICIES)}; there are {known}")
    return wait


def _processors(cpus: object) -> tuple[int, ...]:
    if cpus is None:
        return ()
    if isinstance(cpus, str | bytes) or not isinstance(cpus, Iterable):
        raise OptionError(f"cpus is {shown(cpus)}; a list of processor numbers is needed, such as (2, 3)")
    numbers = []
    for cpu in cpus:
        number = whole_number(cpu)
        if number is None or not 0 <= number < 1 << 16:
            raise OptionError(f"cpus: {shown(cpu)} is no number of a processor")
        numbers.append(number)
    return tuple(numbers)
