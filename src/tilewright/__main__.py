"""`python -m tilewright` is the command line."""

from .faces.cli import main

if __name__ == "__main__":
    main()
