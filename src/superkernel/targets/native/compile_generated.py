"""targets.native.compile_generated: generated texts in, one object per text out; new texts are compiled together.

What generated kernels include takes most of their compile time, so new texts share as few compiler calls as there are
processors, and fewer where they are short. The cache has an entry for each text.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...cache import Cache, digest
from ...errors import BuildError
from ..protocol import GeneratedText
from .build_context import BuildContext
from .objects import CXX_FLAGS, text_key, versions
from .precompiled import precompiled
from .toolchain import cpu_features, run

_TEXT = ".text.json"  # beside an object: what it was compiled from
# Reading the precompiled header takes half a second, as long as compiling so many characters of kernels.
_WORTH_A_CALL = 8000


def compile_generated(texts: Sequence[GeneratedText], flags: Sequence[str], context: BuildContext) -> list[Path]:
    """The object of each text; several may be copies of one object, which then defines more than was asked for."""
    headers = text_key((), context.include_dirs)
    identity = (*CXX_FLAGS, *flags, context.toolchain.identity, cpu_features(), versions(), headers)
    keys = [digest("text", *text, *identity) for text in texts]
    missing = {key: text for key, text in zip(keys, texts, strict=True) if context.cache.get(key, ".o") is None}
    if missing:
        _compile_missing(missing, flags, context)
    for key, text in zip(keys, texts, strict=True):
        context.cache.make(key, _TEXT, partial(_write_text, text, flags))
    # Usually there by now; a file that was damaged or removed meanwhile is compiled alone.
    return [
        context.cache.make(key, ".o", partial(_compile, [text], flags, context))
        for key, text in zip(keys, texts, strict=True)
    ]


def text_of(path: Path, cache: Cache) -> tuple[GeneratedText, tuple[str, ...]] | None:
    """The text of a generated object, and its flags; None: the object is none of ours."""
    if path.suffix != ".o" or cache.get(path.stem, ".o") != path or (known := cache.get(path.stem, _TEXT)) is None:
        return None
    includes, functions, flags = json.loads(known.read_text())
    return (includes, functions), tuple(flags)


def _write_text(text: GeneratedText, flags: Sequence[str], output: Path) -> None:
    output.write_text(json.dumps([*text, list(flags)]))


def _compile_missing(missing: dict[str, GeneratedText], flags: Sequence[str], context: BuildContext) -> None:
    groups = _balanced(missing, max(1, len(os.sched_getaffinity(0))))
    includes = dict.fromkeys(text[0] for text in missing.values())
    headers = {text: precompiled(text, _command(flags, context), context) for text in includes}

    def compile_group(group: dict[str, GeneratedText]) -> None:
        texts = list(group.values())
        build = partial(_compile, texts, flags, context, header=headers[texts[0][0]])
        compiled = context.cache.make(digest("texts", *group), ".o", build)
        for key in group:
            context.cache.make(key, ".o", partial(shutil.copyfile, compiled))

    with ThreadPoolExecutor(len(groups), "superkernel-compile") as pool:
        for done in [pool.submit(compile_group, group) for group in groups]:
            done.result()


def _balanced(texts: dict[str, GeneratedText], most: int) -> list[dict[str, GeneratedText]]:
    """At most `most` groups of about equal length, each with one set of includes."""
    by_includes: dict[str, dict[str, GeneratedText]] = {}
    for key, text in texts.items():
        by_includes.setdefault(text[0], {})[key] = text
    groups: list[dict[str, GeneratedText]] = []
    for same in by_includes.values():
        calls = min(most, len(same), 1 + sum(len(text[1]) for text in same.values()) // _WORTH_A_CALL)
        shares: list[dict[str, GeneratedText]] = [{} for _ in range(calls)]
        loads = [0] * len(shares)
        for key, text in sorted(same.items(), key=lambda pair: -len(pair[1][1])):
            lightest = loads.index(min(loads))
            shares[lightest][key] = text
            loads[lightest] += len(text[1])
        groups += shares
    return groups


def _command(flags: Sequence[str], context: BuildContext) -> list[str]:
    return [*context.toolchain.cxx, *CXX_FLAGS, *flags, *(f"-I{folder}" for folder in context.include_dirs)]


def _compile(
    texts: list[GeneratedText], flags: Sequence[str], context: BuildContext, output: Path, header: Path | None = None
) -> None:
    source, (includes, _) = output.with_suffix(".cpp"), texts[0]
    functions = "\n\n".join(text[1] for text in texts)
    command = _command(flags, context)
    files, what = ["-c", str(source), "-o", str(output)], "compiling generated kernels"
    try:
        if header is not None:
            source.write_text(f"{functions}\n")
            with suppress(BuildError):  # kernels or header: the compilation without the header tells
                run([*command, "-include", str(header), *files], what=what, log=context.commands)
                return
        source.write_text(f"{includes}\n\n{functions}\n")
        run([*command, *files], what=what, log=context.commands)
    finally:
        source.unlink(missing_ok=True)
