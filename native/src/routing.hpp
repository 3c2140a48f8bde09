// Which experts a row gets, and the weights of their results: Routing in kernels/op_attributes.py.
#pragma once

#include "kernel_table.hpp"

namespace ferrum {

struct Routing {
    int64_t experts, top_k;
    Score score;
    bool late;
    int64_t groups, kept_groups, group_best;
    bool renormalise;
    float eps, least, factor;
    bool on_input;
    const float* selection_bias;  // [experts], or null
    const float* expert_scale;    // [experts], or null

    // Bytes that `route` needs.
    int64_t room() const;
};

// Choose the experts of a row with these scores, ascending, and their weights: top_k of each.
void route(const KernelTable& kernels, const Routing& routing, const float* scores, std::byte* room, int32_t* experts,
           float* weights);

}  // namespace ferrum
