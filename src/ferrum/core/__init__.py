"""What everybody shares: steps, requests, the executor and its contract, errors. No numerics."""
