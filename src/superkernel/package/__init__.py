"""package: a model compiled ahead of time as a folder; what writes, checks, loads and compares such folders."""
