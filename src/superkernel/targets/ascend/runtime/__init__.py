"""targets.ascend.runtime: launches built super kernels on an NPU through CANN's run time library, AscendCL."""
