"""targets.ascend.operators: operators of a model -> ops in CANN's names, with their metadata where it is known."""
