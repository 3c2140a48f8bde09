// The operations of a network over fixed memory. All threads of the team call `run` at once; the caller adds a barrier
// after it. Row counts vary by step, pointers do not: a list of operations is a recorded program.
#pragma once

#include <memory>
#include <vector>

#include "runtime.hpp"
#include "weight.hpp"

namespace ferrum {

class Operation {
public:
    virtual ~Operation() = default;
    // Called before a step by one thread.
    virtual void prepare() {}
    virtual void run(Runtime& runtime, int thread) = 0;
    // Experts whose weights all runs so far have read.
    virtual int64_t experts_read() const { return 0; }
};

using WeightPointer = std::shared_ptr<const Weight>;
using RowNormsPointer = std::shared_ptr<class RowNorms>;  // null: no adapter changes the norm

// A matrix of the program: its memory and row count.
struct Rows {
    float* data;
    int64_t extent;
};

// Rows of a packed table times `scale`: of each token, row token x stride + offset. With a stride of 1, the given
// rows of the step in place of those they stand for, unless the table has another width: then it holds no embeddings.
class Embed final : public Operation {
public:
    Embed(WeightPointer table, Rows out, float scale = 1, int64_t stride = 1, int64_t offset = 0)
        : table_(std::move(table)), out_(out), scale_(scale), stride_(stride), offset_(offset) {}
    void run(Runtime& runtime, int thread) override;

private:
    WeightPointer table_;
    Rows out_;
    float scale_;
    int64_t stride_, offset_;
};

// Add columns `offset` and later of the step's added numbers to the given rows of x. Other rows stay.
class AddGiven final : public Operation {
public:
    AddGiven(Rows x, int64_t columns, int64_t offset) : x_(x), columns_(columns), offset_(offset) {}
    void run(Runtime& runtime, int thread) override;

private:
    Rows x_;
    int64_t columns_, offset_;
};

// Rows of a packed table at the positions of the step's rows.
class EmbedPositions final : public Operation {
public:
    EmbedPositions(WeightPointer table, Rows out) : table_(std::move(table)), out_(out) {}
    void run(Runtime& runtime, int thread) override;

private:
    WeightPointer table_;
    Rows out_;
};

// Products of two matrices, number by number.
class Multiply final : public Operation {
public:
    Multiply(const float* x, const float* y, Rows out, int64_t columns) : x_(x), y_(y), out_(out), columns_(columns) {}
    void run(Runtime& runtime, int thread) override;

private:
    const float* x_;
    const float* y_;
    Rows out_;
    int64_t columns_;
};

class Norm final : public Operation {
public:
    Norm(const NormArgs& args, int64_t extent, RowNormsPointer norms = nullptr)
        : args_(args), extent_(extent), norms_(std::move(norms)) {}
    void prepare() override;
    void run(Runtime& runtime, int thread) override;

private:
    NormArgs args_;
    int64_t extent_;
    RowNormsPointer norms_;
};

class Add final : public Operation {
public:
    Add(const AddArgs& args, int64_t extent) : args_(args), extent_(extent) {}
    void run(Runtime& runtime, int thread) override;

private:
    AddArgs args_;
    int64_t extent_;
};

// A weight of a linear operation; see ProductArgs. One that gates follows the product with the other factor, which has
// another format.
struct Product {
    WeightPointer weight, up;
    const float* bias;
    float* y;
    Activation activation = {};
    const float* up_bias = nullptr;
    bool gates = false;
};

// More work of a linear operation, without barriers: while rows are packed the first time, and around each panel.
class LinearWork {
public:
    virtual void pack(Runtime& runtime, int thread) = 0;
    virtual void begin_panel(const Runtime& runtime, size_t product, int64_t panel) = 0;
    virtual void end_panel(const Runtime& runtime, size_t product, int64_t panel) = 0;

protected:
    ~LinearWork() = default;
};

// Products of one input. Its rows are packed once for all products with a format and an order of inputs in common.
class Linear final : public Operation {
public:
    Linear(Runtime& runtime, Rows x, std::vector<Product> products, int64_t max_rows);
    void run(Runtime& runtime, int thread) override { run(runtime, thread, nullptr); }
    // With more work, or null.
    void run(Runtime& runtime, int thread, LinearWork* more);

private:
    // The position of a panel within one of the products.
    struct Place {
        const Product& product;
        int64_t panel;

        NextPanel panels() const;
    };

    void pack(Runtime& runtime, size_t first, const TiledRows& tiled, int thread) const;
    void multiply(Runtime& runtime, size_t first, const TiledRows& tiled, int thread, LinearWork* more) const;
    int64_t panels_of(size_t first) const;
    Place find(size_t first, int64_t panel) const;

    Rows x_;
    std::vector<Product> products_;
    std::vector<size_t> firsts_;  // of each product, the first one for which rows are packed alike
};

class RopeStore final : public Operation {
public:
    RopeStore(const RopeArgs& args, int64_t group, int64_t extent, RowNormsPointer q_norms = nullptr,
              RowNormsPointer k_norms = nullptr, std::vector<int32_t> axes = {})
        : args_(args), group_(group), extent_(extent), q_norms_(std::move(q_norms)), k_norms_(std::move(k_norms)),
          axes_(std::move(axes)) {}
    void prepare() override;
    void run(Runtime& runtime, int thread) override;

private:
    RopeArgs args_;
    int64_t group_, extent_;
    RowNormsPointer q_norms_, k_norms_;
    std::vector<int32_t> axes_;
};

// Heads of x, normed if there is a norm, then rotated by the position of their row, or by its place.
class Rotate final : public Operation {
public:
    Rotate(const RopeArgs& args, int64_t extent, std::vector<int32_t> axes) : args_(args), extent_(extent), axes_(std::move(axes)) {}
    void run(Runtime& runtime, int thread) override;

private:
    RopeArgs args_;
    int64_t extent_;
    std::vector<int32_t> axes_;
};

class LatentStore final : public Operation {
public:
    LatentStore(const LatentArgs& args, int64_t group, int64_t extent) : args_(args), group_(group), extent_(extent) {}
    void run(Runtime& runtime, int thread) override;

private:
    LatentArgs args_;
    int64_t group_, extent_;
};

// Copies of the logit rows or hidden rows of the step.
class Gather final : public Operation {
public:
    Gather(const float* x, Rows out, int64_t columns) : x_(x), out_(out), columns_(columns) {}
    void run(Runtime& runtime, int thread) override;

private:
    const float* x_;
    Rows out_;
    int64_t columns_;
};

class Finite final : public Operation {
public:
    Finite(const float* x, int64_t columns, bool* out) : x_(x), columns_(columns), out_(out) {}
    void run(Runtime& runtime, int thread) override;

private:
    const float* x_;
    int64_t columns_;
    bool* out_;
};

using Operations = std::vector<std::shared_ptr<Operation>>;

// Run the operations in order in one call of the team.
void run_all(Runtime& runtime, const Operations& operations);

// A list of operations, made once and run at every step.
struct Program {
    Operations operations;
};

}  // namespace ferrum
