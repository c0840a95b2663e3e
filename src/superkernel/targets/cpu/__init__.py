"""targets.cpu: worker threads as cores, ELF objects as binaries; runs everywhere."""
