"""python -m superkernel: the shell."""

from .tools.cli import main

if __name__ == "__main__":
    main()
