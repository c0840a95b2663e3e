"""frontend.lowering: a part of a graph in; compiled sub-kernels out. Only this package knows a kind of kernel text."""
