"""What every rank needs, imported once by the server from which ranks are forked. Nothing here starts a thread."""

from importlib import import_module

for _name in (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor.parallel",
    "superkernel.frontend.backend",
    "superkernel.targets.cpu.target",
):
    import_module(_name)
