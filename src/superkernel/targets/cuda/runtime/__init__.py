"""targets.cuda.runtime: launches built super kernels on an NVIDIA GPU through the CUDA driver API."""
