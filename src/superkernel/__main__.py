"""python -m superkernel: the shell."""

from .cli import main

if __name__ == "__main__":
    main()
