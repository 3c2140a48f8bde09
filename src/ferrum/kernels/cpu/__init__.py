"""The native CPU backend: binding of the compiled library from `native/`. `library.load` reports if it is missing."""
