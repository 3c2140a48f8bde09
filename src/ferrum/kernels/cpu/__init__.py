"""The native CPU backend: the binding of the library in `native/`, which may be missing (see `library.load`)."""
