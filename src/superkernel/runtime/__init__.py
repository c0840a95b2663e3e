"""runtime: drives the stages: compiles, launches, replays and saves super kernels."""
