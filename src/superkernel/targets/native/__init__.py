"""targets.native: what targets with C++ share: the toolchain, objects, ELF, symbols, call graphs."""
