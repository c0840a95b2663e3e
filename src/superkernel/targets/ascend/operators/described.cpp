// An operator of a model whose compiled kernel is not known. A super kernel of it can be planned and printed, not built.
#error "this operator has no kernel: name the folder of its metadata with the back end option kernel_meta"
