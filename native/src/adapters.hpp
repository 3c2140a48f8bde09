// Operations of adapters: changes of products and embeddings by the adapter of each row; see kernels/adapters.py.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "operations.hpp"

namespace ferrum {

// A matrix of floats [rows, columns], in the memory of the caller.
struct Floats {
    Format format = Format::f32;
    const std::byte* data = nullptr;
    int64_t rows = 0, columns = 0;
};

// What an adapter changes of the outputs of one matrix.
struct AdapterChange {
    Floats a;  // [rank, inputs]; of an embedding [tokens, rank]. Changes that share it have the same one.
    int64_t first = 0;  // of its outputs, among those of all different matrices A
    Floats b;  // panels [panel][rank][kPanel]
    // Of groups (heads, experts) A and B are those of all groups, one after another, or one that is that of each group.
    double scale = 1;
    const float* bias = nullptr;  // of B; of a norm its own
    const float* factor = nullptr;
    const float* offset = nullptr;
    Floats replaced;  // [n, inputs]; of a norm its weight
    const int32_t* replaced_rows = nullptr;  // ascending; null: 0, 1, ...

    int64_t rank = 0;
};

// An adapter at a site. A matrix that it leaves as it is has no change.
struct AdapterEntry {
    std::vector<std::optional<AdapterChange>> changes;
    int64_t rank = 0;  // outputs of all different matrices A
};

// Return the entry of these changes, each with the place of its matrix A.
std::shared_ptr<const AdapterEntry> entry_of(std::vector<std::optional<AdapterChange>> changes);

// The entries of a place of the network by slot. They change between steps only.
class AdapterSite {
public:
    // The rows of the site are those of logits, or of the step.
    explicit AdapterSite(bool logits = false) : logits_(logits) {}
    bool logits() const { return logits_; }
    void set(int64_t slot, std::shared_ptr<const AdapterEntry> entry);
    const AdapterEntry* entry(int64_t slot) const;

private:
    bool logits_;
    std::vector<std::shared_ptr<const AdapterEntry>> entries_;
};

// Rows that an adapter changes by the matrices of a group.
struct AdapterJob {
    const AdapterEntry* entry;
    double scale;
    int64_t group;
    const int32_t* inputs;   // the number of each row among the inputs,
    const int32_t* outputs;  // and among the outputs
    int64_t count;
    int64_t first;  // of its products by A [count, rank], among those of all jobs
};

// The matrices of a site whose products are changed: y = [.., outputs] of each.
struct AdaptedProducts {
    size_t begin, end;  // matrices of the site
    const float* x;
    int64_t inputs;
    float* const* ys;
    const int64_t* outputs;
    float* t;  // products by A of all jobs
    int64_t first = 0, whole = 0;  // with a whole, the outputs are those from `first` on of as many
    bool cached = false;           // the matrices A have been prefetched
};

// Compute the thread's share of products by A, and of outputs of replaced rows.
void shrink(const Runtime& runtime, int thread, const std::vector<AdapterJob>& jobs, const AdaptedProducts& of);
// Change the thread's share of outputs, a barrier later.
void expand(const Runtime& runtime, int thread, const std::vector<AdapterJob>& jobs, const AdaptedProducts& of);

// The jobs of a step at a site.
class SiteJobs {
public:
    explicit SiteJobs(std::shared_ptr<AdapterSite> site, int64_t heads = 1) : site_(std::move(site)), heads_(heads) {}
    // List the rows of each adapter, of heads those of each head.
    void list(const Step& step);
    const std::vector<AdapterJob>& all() const { return jobs_; }
    bool none() const { return jobs_.empty(); }
    bool replaces() const;  // whether an adapter replaces rows of a matrix
    int64_t panel_bytes() const;  // of B that a panel reads: per job, those of its widest change
    int64_t bytes() const { return numbers_ * static_cast<int64_t>(sizeof(float)); }  // of products by A

private:
    const std::vector<int32_t>& rows_of(const StepAdapter& each) const { return site_->logits() ? each.logit_rows : each.rows; }

    std::shared_ptr<AdapterSite> site_;
    int64_t heads_;
    // Of a step:
    std::vector<AdapterJob> jobs_;
    std::vector<int32_t> ids_;  // of heads of rows
    int64_t numbers_ = 0;
};

// Products of x that adapters change in place: of rows, or of each head of rows.
class Adapt final : public Operation {
public:
    Adapt(Runtime& runtime, SiteJobs jobs, const float* x, int64_t inputs, std::vector<float*> ys, std::vector<int64_t> outputs)
        : runtime_(runtime), jobs_(std::move(jobs)), x_(x), inputs_(inputs), ys_(std::move(ys)), outputs_(std::move(outputs)) {}
    void prepare() override;
    void run(Runtime& runtime, int thread) override;

private:
    Runtime& runtime_;
    SiteJobs jobs_;
    const float* x_;
    int64_t inputs_;
    std::vector<float*> ys_;
    std::vector<int64_t> outputs_;
};

// A linear operation whose products adapters change. Products by A are computed while rows are packed. Few adapters of
// few rows change the outputs of a panel as soon as it is multiplied, without a barrier; more adapters would be read in
// too many places at a time. The threads also prefetch the matrices A of the next such operation, whose few products
// would wait for memory.
class AdaptedLinear final : public Operation, private LinearWork {
public:
    AdaptedLinear(Runtime& runtime, Rows x, std::vector<Product> products, int64_t max_rows, SiteJobs jobs);
    void prepare() override;
    void run(Runtime& runtime, int thread) override;
    // Set the next such operation of the program, or null. It is prepared whenever this one is.
    void set_next(const AdaptedLinear* next) { next_ = next; }

private:
    void pack(Runtime& runtime, int thread) override;
    void begin_panel(const Runtime& runtime, size_t product, int64_t panel) override;
    void end_panel(const Runtime& runtime, size_t product, int64_t panel) override;
    AdaptedProducts adapted(const Runtime& runtime) const;
    void prefetch(int64_t begin, int64_t end) const;

    Runtime& runtime_;
    Rows x_;
    std::vector<Product> products_;
    Linear linear_;
    SiteJobs jobs_;
    std::vector<float*> ys_;
    std::vector<int64_t> outputs_;
    int64_t packed_ = 0;  // bytes of packed rows
    std::vector<int64_t> places_;  // of the first panel of each product among all panels
    int64_t places_end_ = 0;
    const AdaptedLinear* next_ = nullptr;
    // Of a step:
    std::vector<const AdapterChange*> prefetched_;  // different matrices A, if they fit in a cache
    int64_t prefetched_bytes_ = 0;
    bool replaces_ = false;  // rows of matrices, whose outputs the products would overwrite
    bool by_panel_ = false;  // as soon as a panel is multiplied
};

// Link each AdaptedLinear of a program to the next, whose matrices A it prefetches.
void link_adapted(const Operations& operations);

// Embeddings that adapters change in place; given rows stay as they are.
class AdaptEmbedding final : public Operation {
public:
    AdaptEmbedding(Runtime& runtime, std::shared_ptr<AdapterSite> site, float* y, int64_t columns, double scale)
        : runtime_(runtime), site_(std::move(site)), y_(y), columns_(columns), scale_(scale) {}
    void prepare() override;
    void run(Runtime& runtime, int thread) override;

private:
    void change(Runtime& runtime, const StepAdapter& group, const AdapterChange& c, int32_t row, int thread) const;

    Runtime& runtime_;
    std::shared_ptr<AdapterSite> site_;
    float* y_;
    int64_t columns_;
    double scale_;
};

// Activated numbers, or with others activated numbers times others.
class Activate final : public Operation {
public:
    Activate(const Activation& activation, const float* x, const float* others, Rows out, int64_t columns)
        : activation_(activation), x_(x), others_(others), out_(out), columns_(columns) {}
    void run(Runtime& runtime, int thread) override;

private:
    Activation activation_;
    const float* x_;
    const float* others_;
    Rows out_;
    int64_t columns_;
};

}  // namespace ferrum
