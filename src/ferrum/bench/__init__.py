"""Benchmarks behind `ferrum bench`: steps against this machine's limit, and load on an HTTP server."""
