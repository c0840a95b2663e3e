"""targets.cpu.runtime.ranks: memory that the ranks of one machine share, and what a rank notices of the others."""
