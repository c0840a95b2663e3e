"""scope: the public spelling `superkernel.scope.super_kernel`; frontend.scope holds the code."""

from .frontend.scope import super_kernel

__all__ = ["super_kernel"]
