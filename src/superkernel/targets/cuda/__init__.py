"""targets.cuda: kernels as PTX in, one persistent kernel for an NVIDIA GPU out."""
