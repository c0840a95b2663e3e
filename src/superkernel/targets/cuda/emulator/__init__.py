"""targets.cuda.emulator: runs emitted PTX on a GPU emulated on the host, and finds what would go wrong."""
