"""`python -m ferrum` is the `ferrum` command."""

from ferrum.cli.start import main

if __name__ == "__main__":
    main()
