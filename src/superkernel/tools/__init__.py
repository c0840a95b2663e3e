"""tools: the shell, the doctor, the demo and the benchmarks."""
