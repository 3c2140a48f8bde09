"""Types that all rooms share: steps, requests, options, errors. No numerics and no third-party imports."""
