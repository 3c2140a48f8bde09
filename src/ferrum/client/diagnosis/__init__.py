"""Why a prompt shares no longer prefix with an earlier one. Runs only with `--explain-prefixes`."""
