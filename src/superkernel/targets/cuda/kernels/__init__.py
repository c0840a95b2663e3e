"""targets.cuda.kernels: sub-kernels that the cuda target ships, as PTX."""
