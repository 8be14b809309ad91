"""`python -m graphkit`: the command line."""

from graphkit.cli.main import main

if __name__ == "__main__":
    main()
