// The tables of a step: page rows of the step's width to rows of a fixed one, and tokens that a step before it samples.
#include "device.hpp"

namespace ferrum::cuda {

struct SpreadArgs {
    const int* from;  // [spans, width]
    int* to;          // [spans, stride]
    Int spans, width, stride;
};

FERRUM_KERNEL(spread_pages, SpreadArgs) {
    const Int i = block_x() * kThreads + thread();
    if (i < a.spans * a.width) a.to[i / a.width * a.stride + i % a.width] = a.from[i];
}

struct CarryArgs {
    const int* rows;   // [count], of this step
    const int* spans;  // [count], of the other step
    const int* tokens;
    int* token_ids;
    Int count;
};

// A span that failed has sampled -1: its row has no effect, and takes token 0.
FERRUM_KERNEL(carry_tokens, CarryArgs) {
    const Int i = block_x() * kThreads + thread();
    if (i >= a.count) return;
    const int token = a.tokens[a.spans[i]];
    a.token_ids[a.rows[i]] = token < 0 ? 0 : token;
}

}  // namespace ferrum::cuda
