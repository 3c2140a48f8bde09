// Agreement of the tiers of this machine with each other, in every bit.
#pragma once

namespace ferrum {

// Run every operation in every format, with 1 to 600 rows (each `stride`-th), on all tiers. Prints a line per operation and
// one per case that differs from the portable tier; returns the number of these cases. The first have a hash of all results:
// equal hashes in two builds mean equal bits on processors that cannot run each other's code.
int disagreements(int stride);

}  // namespace ferrum
