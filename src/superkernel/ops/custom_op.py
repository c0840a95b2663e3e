"""ops.custom_op: a schema, an eager function and a function of fake tensors -> an operator of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def define_operator(name: str, schema: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Defines superkernel::name. Arguments have no defaults: torch omits defaults when it calls the functions."""
    operator = torch.library.custom_op(f"superkernel::{name}", eager, mutates_args=(), schema=schema)
    operator.register_fake(fake)
