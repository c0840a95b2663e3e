"""package.call_signature: the inputs of an entry -> the signature that inspect and editors show for it."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from inspect import Parameter, Signature

_OUT = Parameter("out", Parameter.KEYWORD_ONLY, default=None)
NO_SIGNATURE = Signature([Parameter("inputs", Parameter.VAR_POSITIONAL), _OUT])


def call_signature(names: Sequence[str]) -> Signature:
    """`(x, h, *, out=None)`; `(*inputs, out=None)` where an input is called `out`, or by no identifier of Python."""
    can_be_shown = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    if not can_be_shown or len({*names, _OUT.name}) <= len(names):
        return NO_SIGNATURE
    return Signature([*(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names), _OUT])
