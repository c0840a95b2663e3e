"""targets.cpu.runtime: arguments in, a launch on the machine's cores out."""
