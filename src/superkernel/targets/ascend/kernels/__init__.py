"""targets.ascend.kernels: sub-kernels for the emulated chip."""
