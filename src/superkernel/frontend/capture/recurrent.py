"""frontend.capture.recurrent: nn.LSTM, nn.GRU and nn.RNN in a Dynamo graph -> their steps, or one call of torch.

Dynamo leaves these modules out of its graphs unless its option `allow_rnn` is set. It is set here while Dynamo traces
for this back end without gradients; with gradients, a graph ends before such a module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config
from torch._dynamo.callback import callback_handler
from torch.fx import GraphModule

# Time steps times layers times directions that are unrolled: each becomes a few ops of a super kernel.
MOST_STEPS = 64

_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_FUNCTIONS = {getattr(owner, kind): kind for kind in _KINDS for owner in (torch, torch._VF)}
_FUNCTIONS |= {getattr(torch.ops.aten, kind).input: kind for kind in _KINDS}  # in the graphs of torch.export
_UNWRAPPED = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")
_before: list[bool] = []  # the option before it was set


@torch.library.custom_op(
    "superkernel::recurrent_layers",
    mutates_args=(),
    schema="(str kind, Tensor input, Tensor[] hidden, Tensor[] params, bool has_biases, int num_layers, "
    "bool bidirectional, bool batch_first) -> Tensor[]",
)
def recurrent_layers(
    kind: str,
    input: Tensor,
    hidden: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """Recurrent layers as one call of torch's library; without gradients."""
    state = list(hidden) if kind == "lstm" else hidden[0]
    function = getattr(torch, kind)
    results = function(input, state, params, has_biases, num_layers, 0.0, False, bidirectional, batch_first)
    return [result.contiguous() for result in results]


@recurrent_layers.register_fake
def _(
    kind: str,
    input: Tensor,
    hidden: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    width = hidden[0].shape[2] * (2 if bidirectional else 1)
    return [input.new_empty((*input.shape[:2], width)), *(state.new_empty(state.shape) for state in hidden)]


def unroll_recurrent(module: GraphModule) -> None:
    """Recurrent layers of few steps are traced step by step, others as one operator; both without dropout."""
    changed = False
    for node in module.graph.nodes:
        kind = _FUNCTIONS.get(node.target) if node.op == "call_function" else None
        if kind is None or len(node.args) != 9 or not isinstance(node.args[3], bool):  # not one, or a packed sequence
            continue
        sequence, _, _, _, layers, dropout, train, bidirectional, batch_first = node.args
        if train and dropout:
            continue
        example = sequence.meta.get("example_value", sequence.meta.get("val"))
        steps = int(example.shape[1 if batch_first else 0])
        is_short = steps * layers * (2 if bidirectional else 1) <= MOST_STEPS
        node.target = (_BY_STEPS if is_short else _AT_ONCE)[kind]
        changed = True
    if changed:
        module.recompile()


def _by_steps(kind: str) -> Callable[..., Any]:
    """torch's decomposition into steps; with oneDNN enabled, an LSTM is decomposed into calls of that library."""

    def compute(*args: Any) -> Any:
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            output, *states = getattr(torch, kind)(*args)
        finally:
            torch._C._set_mkldnn_enabled(enabled)
        given = args[1] if kind == "lstm" else [args[1]]
        # the decomposition of torch 2.11 returns states with a dimension of 1 too many
        return output, *(state.reshape(before.shape) for state, before in zip(states, given, strict=True))

    compute.__name__ = f"{kind}_by_steps"  # in the text of the graph
    return compute


def _at_once(kind: str) -> Callable[..., Any]:
    def compute(*args: Any) -> Any:
        sequence, hidden, params, has_biases, layers, _, _, bidirectional, batch_first = args
        states = list(hidden) if kind == "lstm" else [hidden]
        return tuple(recurrent_layers(kind, sequence, states, params, has_biases, layers, bidirectional, batch_first))

    compute.__name__ = f"{kind}_at_once"
    return compute


_BY_STEPS = {kind: _by_steps(kind) for kind in _KINDS}
_AT_ONCE = {kind: _at_once(kind) for kind in _KINDS}


def trace_recurrent_layers(backend: Callable[..., Any]) -> None:
    """From now on Dynamo traces recurrent layers when it compiles for this back end without gradients.

    torch._dynamo.reset forgets it, so this is called whenever the back end is looked up.
    """
    if _end not in callback_handler.end_callbacks:
        callback_handler.register_start_callback(partial(_begin, backend))
        callback_handler.register_end_callback(_end)


def _begin(backend: Callable[..., Any], _: Any) -> None:
    if not torch.is_grad_enabled() and _compiling_backend() is backend:
        _before.append(config.allow_rnn)
        config.allow_rnn = True


def _end(_: Any) -> None:
    if _before:
        config.allow_rnn = _before.pop()


def _compiling_backend() -> Any:
    """The back end for which Dynamo compiles, found on the stack."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == "torch._dynamo.convert_frame":
            found = frame.f_locals.get("compiler_fn")
            while inner := next((getattr(found, name) for name in _UNWRAPPED if hasattr(found, name)), None):
                found = inner
            return found
    return None
