// The operation of experts: rows by the matrices that their routing chooses.
#pragma once

#include <vector>

#include "adapters.hpp"
#include "exchange.hpp"
#include "operations.hpp"
#include "routing.hpp"
#include "row_groups.hpp"

namespace ferrum {

// The matrices of all experts, one after another, and their biases or null.
struct ExpertWeights {
    WeightPointer gate, up, down;
    const float* gate_bias;
    const float* up_bias;
    const float* down_bias;
};

// Each row through its experts. The rows are packed once, alone; tiles of the rows of an expert are gathered from them. With
// weights on inputs, or an order of inputs for each expert, each pair of a row and an expert is packed.
// In a step with adapters of its site, gate and up are two products, which adapters change before the activation.
// With ranks, each has some outputs of gate and up, whose results are joined, and some outputs of down.
class Experts final : public Operation {
public:
    Experts(Runtime& runtime, Rows x, const float* scores, float* out, const Routing& routing, const ExpertWeights& weights,
            const Activation& activation, int64_t max_rows, std::shared_ptr<AdapterSite> site = nullptr,
            std::shared_ptr<Exchange> exchange = nullptr, Starts starts = {});
    void prepare() override;
    void run(Runtime& runtime, int thread) override;
    int64_t experts_read() const override { return experts_read_; }

private:
    // Memory that the threads share in a step, and memory of one thread.
    struct Shared;
    struct Own;

    void route_rows(const Runtime& runtime, const Shared& s, const Own& o, int64_t rows, int thread) const;
    void pack_alone(const Runtime& runtime, const Shared& s, const Own& o, const Weight& weight, int64_t begin, int64_t end) const;
    RowGroups group(const Shared& s, const Own& o, int64_t rows) const;
    void multiply_inner(Runtime& runtime, const Shared& s, const Own& o, const RowGroups& groups, GroupedProduct product,
                        float* y, int thread) const;
    void list_jobs(const Runtime& runtime, const Own& o, const RowGroups& groups);
    void adapt_inner(Runtime& runtime, const Shared& s, int64_t rows, int thread) const;
    void join_inner(Runtime& runtime, const Shared& s, int64_t rows, int thread) const;
    AdaptedProducts adapted_outer(const Shared& s, const GroupedProduct& product, float* const* ys, const int64_t* outputs) const;
    int64_t strip(int64_t pairs) const;
    void multiply_outer(Runtime& runtime, const Shared& s, const Own& o, const RowGroups& groups, GroupedProduct product,
                        int thread) const;
    void add_results(const Runtime& runtime, const Shared& s, const Own& o, int64_t rows, const GroupedProduct& product,
                     int thread) const;

    Rows x_;
    const float* scores_;
    float* out_;
    Routing routing_;
    ExpertWeights weights_;
    std::vector<GroupedProduct> inner_;  // gate and up: one product, or one for each of two formats
    GroupedProduct outer_;
    int64_t max_rows_, columns_, outputs_, hidden_, own_;  // columns of x, of results, of an expert, and its own ones
    int64_t inner_bytes_ = 0, hidden_bytes_ = 0;  // of a packed row
    int64_t tile_bytes_ = 0;
    bool by_pair_ = false;
    int64_t experts_read_ = 0;

    // Of adapters:
    Runtime& runtime_;
    std::shared_ptr<AdapterSite> site_;
    Activation activation_;
    std::vector<GroupedProduct> plain_;  // up, gate
    // Of ranks:
    std::shared_ptr<Exchange> exchange_;  // null with one rank
    Starts starts_;                       // of the columns of an expert
    // Of a step:
    int64_t adapted_pairs_ = 0;  // all pairs if a row has an adapter, else 0
    int64_t numbers_ = 0;        // products by matrices A
    std::vector<AdapterJob> inner_jobs_, outer_jobs_;
    std::vector<int32_t> ids_;
};

}  // namespace ferrum
