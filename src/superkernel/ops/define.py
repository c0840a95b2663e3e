"""ops.define: a schema, what an operator computes and what it makes of fake tensors in, an operator of torch out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def define(name: str, schema: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """superkernel::name. Its arguments have no defaults: torch would leave them out where it calls the functions."""
    operator = torch.library.custom_op(f"superkernel::{name}", eager, mutates_args=(), schema=schema)
    operator.register_fake(fake)
