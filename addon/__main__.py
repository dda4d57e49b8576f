"""`python -m addon`: the command line."""

from addon.cli.app import main

if __name__ == "__main__":
    main()
