"""`python -m cramix` runs the command line."""

from cramix.cli import main

if __name__ == "__main__":
    main()
