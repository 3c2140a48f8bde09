"""The `ferrum` command line."""
