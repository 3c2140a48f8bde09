"""What every dialect of the API uses: guard, errors, service, generation, limits, traces."""
