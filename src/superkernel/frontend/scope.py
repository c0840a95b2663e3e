"""frontend.scope: a `with` block around a piece of a model -> a mark on every graph node traced inside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from ..errors import OptionError, shown
from ..model.options import Options

# The key under `node.meta["custom"]` whose value is the pair (scope, options) of the innermost `with`.
ANNOTATION = "super_kernel_scope"


@contextmanager
def super_kernel(scope: str | None, options: str = "") -> Iterator[None]:
    """Marks what is traced in the body as one scope; None leaves the body out of every scope.

    Blocks with the same name are one scope, an inner block replaces the outer one, and `options` is a text such as
    "stream-fusion=1:early-start=2". Outside of torch.compile the arguments are checked and nothing else happens.
    """
    torch = sys.modules.get("torch")  # not an import: without torch, this package works and there is nothing to mark
    if torch is None or not torch.compiler.is_dynamo_compiling():
        check(scope, options)
        yield
        return
    # From here on Dynamo traces every line, so the mark only carries the arguments and the back end checks them.
    mark = (_constant(scope), _constant(options))
    with torch.fx.traceback.annotate({ANNOTATION: mark}), torch._dynamo.error_on_graph_break(True):
        _name_scope_in_graph_breaks()
        yield


def _constant(argument: object) -> object:
    # A mark holds constants only; anything else is replaced by its type, which is enough to refuse it.
    return argument if isinstance(argument, str | None) else type(argument)


def check(scope: object, options: object) -> Options:
    """The options of a mark, or an OptionError that names the scope."""
    name = shown(scope)
    if not isinstance(scope, str | None):
        kind = scope if isinstance(scope, type) else type(scope)
        raise OptionError(f"{ANNOTATION} {name}: a scope is named by a text, or None, not by {kind.__name__}")
    if scope is not None and not scope.strip():
        raise OptionError(f"{ANNOTATION} {name}: the name is blank; give a name, or None to leave the body out")
    if not isinstance(options, str):
        raise OptionError(
            f"{ANNOTATION} {scope!r}: options cannot be {shown(options)}; "
            "allowed: a text of key=value pairs joined by ':'"
        )
    try:
        return _parsed(options)
    except OptionError as error:
        raise OptionError(f"{ANNOTATION} {scope!r}: {error}") from None


@lru_cache(maxsize=256)  # a model that runs eagerly passes here in every step
def _parsed(options: str) -> Options:
    return Options.parse(options)


def _name_scope_in_graph_breaks() -> None:
    """Called by Dynamo while it traces, so that the error of a graph break inside the scope names the scope."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer = InstructionTranslator.current_tx()
    tracer.output.add_cleanup_hook(_name_scope_in_error)


# What torch.compiler.assume_constant_result sets; set here because calling that imports torch.
_name_scope_in_graph_breaks._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _name_scope_in_error() -> None:
    """Runs when tracing ends, before the mark is removed: names the open scope in the error that ended tracing."""
    from torch._dynamo.exc import Unsupported, UserError
    from torch.fx.traceback import current_meta

    error = sys.exc_info()[1]
    mark = current_meta.get("custom", {}).get(ANNOTATION)
    if mark is None or not isinstance(error, Unsupported | UserError) or ANNOTATION in str(error):
        return
    message = (
        f"{ANNOTATION} {mark[0]!r}: a graph break inside a scope is an error, because a scope lies in one graph; "
        f"move what breaks the graph out of the `with` block. The graph break:\n{error}"
    )
    error.args = (message, *error.args[1:])
