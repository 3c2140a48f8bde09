"""Parts of a network, written against `Operations` alone."""
