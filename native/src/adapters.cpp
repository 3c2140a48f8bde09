#include "adapters.hpp"

#include <algorithm>

namespace ferrum {

namespace {

constexpr int64_t kPieceRows = 16, kPieceOutputs = 8;  // of a piece of work of dot products
constexpr int64_t kLine = 64;                  // bytes that memory gives at once
constexpr int64_t kPanelBytes = 4096;          // of matrices B that are read next to a panel
constexpr int64_t kMaxPrefetched = 256 << 10;  // bytes that stay in a second-level cache

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

const std::byte* row_of(const Floats& matrix, int64_t row) {
    return matrix.data + row * matrix.columns * item_bytes(matrix.format);
}

// Bytes of B that a panel takes.
int64_t panel_bytes_of(const AdapterChange& c) { return c.rank * kPanel * item_bytes(c.b.format); }

int64_t bytes_of(const Floats& matrix) { return matrix.rows * matrix.columns * item_bytes(matrix.format); }

// The share of a thread in pieces of work of several lists, one after another.
class Pieces {
public:
    explicit Pieces(const Share& own) : own_(own) {}

    // Return the thread's part of the next `count` pieces.
    Share next(int64_t count) {
        const Share part{std::max<int64_t>(own_.begin - before_, 0), std::min(own_.end - before_, count)};
        before_ += count;
        return part;
    }

private:
    Share own_;
    int64_t before_ = 0;
};

// Compute the pieces [begin, end) of dot products of `rows` rows, those of the same rows at once.
void dot_pieces(const Runtime& runtime, const DotArgs& args, int64_t rows, const Share& part) {
    const int64_t across = ceil_divide(args.outputs, kPieceOutputs);
    for (int64_t piece = part.begin; piece < part.end;) {
        const int64_t block = piece / across, first = block * across, last = std::min(part.end, first + across);
        runtime.kernels.dots(args, block * kPieceRows, std::min((block + 1) * kPieceRows, rows), (piece - first) * kPieceOutputs,
                             std::min((last - first) * kPieceOutputs, args.outputs));
        piece = last;
    }
}

const std::byte* a_of(const AdapterChange& c, int64_t group) {
    return c.a.rows == c.rank ? c.a.data : row_of(c.a, group * c.rank);
}

// Panels of a group with these outputs, from an output on.
const std::byte* b_of(const AdapterChange& c, int64_t group, int64_t outputs, int64_t first) {
    const int64_t rows = ceil_divide(outputs, kPanel) * c.rank;
    return row_of(c.b, (c.b.rows == rows ? 0 : group * rows) + first / kPanel * c.rank);
}

// Return whether a change from `begin` on has the matrix A of change i.
bool shared_before(const AdapterEntry& entry, size_t begin, size_t i) {
    for (size_t j = begin; j < i; ++j)
        if (const auto& c = entry.changes[j]; c && c->b.data != nullptr && c->first == entry.changes[i]->first) return true;
    return false;
}

int64_t pieces_of(int64_t rows, int64_t outputs) {
    return ceil_divide(rows, kPieceRows) * ceil_divide(outputs, kPieceOutputs);
}

// Return the panels of B of a job from a panel on, or null if its adapter leaves matrix i as it is or adds nothing.
const std::byte* panels_of(const AdapterJob& job, const AdaptedProducts& of, size_t i, int64_t panel) {
    const auto& c = job.entry->changes[i];
    if (!c || c->b.data == nullptr) return nullptr;
    return b_of(*c, job.group, of.whole > 0 ? of.whole : of.outputs[i], of.first) + panel * panel_bytes_of(*c);
}

// A thread changes some outputs of all rows, so that the adapters of a row are added in order.
void expand_panels(const Runtime& runtime, const std::vector<AdapterJob>& jobs, const AdaptedProducts& of, size_t i, const Share& part) {
    for (auto job = jobs.begin(); job != jobs.end(); ++job) {
        const auto& c = job->entry->changes[i];
        if (!c) continue;
        const std::byte* b = panels_of(*job, of, i, 0);
        const std::byte* next = job + 1 != jobs.end() ? panels_of(job[1], of, i, part.begin) : nullptr;
        runtime.kernels.expand({c->b.format, b, next, c->rank, of.outputs[i], b != nullptr ? of.t + job->first + c->first : nullptr,
                                job->entry->rank, job->outputs, job->count, static_cast<float>(c->scale * job->scale), c->bias, c->factor,
                                c->offset, of.ys[i]},
                               part.begin, part.end);
    }
}

}  // namespace

std::shared_ptr<const AdapterEntry> entry_of(std::vector<std::optional<AdapterChange>> changes) {
    auto entry = std::make_shared<AdapterEntry>(AdapterEntry{std::move(changes), 0});
    for (auto each = entry->changes.begin(); each != entry->changes.end(); ++each) {
        if (!*each || (*each)->b.data == nullptr) continue;
        const auto same = std::find_if(entry->changes.begin(), each, [&](const auto& c) { return c && c->a.data == (*each)->a.data; });
        (*each)->first = same != each ? (*same)->first : entry->rank;
        if (same == each) entry->rank += (*each)->rank;
    }
    return entry;
}

void AdapterSite::set(int64_t slot, std::shared_ptr<const AdapterEntry> entry) {
    if (static_cast<size_t>(slot) >= entries_.size()) entries_.resize(static_cast<size_t>(slot) + 1);
    entries_[static_cast<size_t>(slot)] = std::move(entry);
}

const AdapterEntry* AdapterSite::entry(int64_t slot) const {
    return static_cast<size_t>(slot) < entries_.size() ? entries_[static_cast<size_t>(slot)].get() : nullptr;
}

void shrink(const Runtime& runtime, int thread, const std::vector<AdapterJob>& jobs, const AdaptedProducts& of) {
    const auto visit = [&](auto work) {
        for (const AdapterJob& job : jobs) {
            float* t = of.t + job.first;
            for (size_t i = of.begin; i < of.end; ++i) {
                const auto& c = job.entry->changes[i];
                if (c && c->b.data != nullptr && !shared_before(*job.entry, of.begin, i))
                    work(DotArgs{c->a.format, a_of(*c, job.group), c->rank, of.inputs, of.x, job.inputs, t + c->first, job.entry->rank,
                                 false, nullptr, !of.cached},
                         job.count);
                if (c && c->replaced.data != nullptr)
                    work(DotArgs{c->replaced.format, c->replaced.data, c->replaced.rows, of.inputs, of.x, job.inputs, of.ys[i],
                                 of.outputs[i], true, c->replaced_rows, true},
                         job.count);
            }
        }
    };
    int64_t all = 0;
    visit([&](const DotArgs& args, int64_t rows) { all += pieces_of(rows, args.outputs); });
    Pieces pieces(share(runtime, all, thread));
    visit([&](const DotArgs& args, int64_t rows) { dot_pieces(runtime, args, rows, pieces.next(pieces_of(rows, args.outputs))); });
}

void expand(const Runtime& runtime, int thread, const std::vector<AdapterJob>& jobs, const AdaptedProducts& of) {
    int64_t all = 0;
    for (size_t i = of.begin; i < of.end; ++i) all += ceil_divide(of.outputs[i], kPanel);
    Pieces pieces(share(runtime, all, thread));
    for (size_t i = of.begin; i < of.end; ++i) {
        const Share part = pieces.next(ceil_divide(of.outputs[i], kPanel));
        if (part.begin < part.end) expand_panels(runtime, jobs, of, i, part);
    }
}

void SiteJobs::list(const Step& step) {
    jobs_.clear();
    ids_.clear();
    numbers_ = 0;
    int64_t rows = 0;
    for (const StepAdapter& each : step.adapters) rows += static_cast<int64_t>(rows_of(each).size());
    if (heads_ > 1) ids_.reserve(static_cast<size_t>(rows * heads_));  // pointers stay valid
    for (const StepAdapter& each : step.adapters) {
        const AdapterEntry* entry = site_->entry(each.slot);
        const auto count = static_cast<int64_t>(rows_of(each).size());
        if (entry == nullptr || count == 0) continue;
        for (int64_t head = 0; head < heads_; ++head, numbers_ += count * entry->rank) {
            const int32_t* ids = heads_ > 1 ? ids_.data() + ids_.size() : rows_of(each).data();
            if (heads_ > 1)
                for (const int32_t row : rows_of(each)) ids_.push_back(static_cast<int32_t>(row * heads_ + head));
            jobs_.push_back({entry, each.scale, head, ids, ids, count, numbers_});
        }
    }
}

bool SiteJobs::replaces() const {
    for (const AdapterJob& job : jobs_)
        for (const auto& c : job.entry->changes)
            if (c && c->replaced.data != nullptr) return true;
    return false;
}

int64_t SiteJobs::panel_bytes() const {
    int64_t bytes = 0;
    for (const AdapterJob& job : jobs_) {
        int64_t most = 0;
        for (const auto& c : job.entry->changes) most = std::max(most, c ? panel_bytes_of(*c) : int64_t{0});
        bytes += most;
    }
    return bytes;
}

void Adapt::prepare() {
    jobs_.list(runtime_.step);
    runtime_.reserve(jobs_.bytes(), 0);
}

void Adapt::run(Runtime& runtime, int thread) {
    if (jobs_.none()) return;
    const AdaptedProducts of{0, ys_.size(), x_, inputs_, ys_.data(), outputs_.data(), reinterpret_cast<float*>(runtime.shared())};
    shrink(runtime, thread, jobs_.all(), of);
    runtime.team.barrier();
    expand(runtime, thread, jobs_.all(), of);
}

AdaptedLinear::AdaptedLinear(Runtime& runtime, Rows x, std::vector<Product> products, int64_t max_rows, SiteJobs jobs)
    : runtime_(runtime), x_(x), products_(std::move(products)), linear_(runtime, x, products_, max_rows), jobs_(std::move(jobs)) {
    for (const Product& p : products_) {
        ys_.push_back(p.y);
        outputs_.push_back(p.weight->outputs());
        places_.push_back(places_end_);
        places_end_ += p.weight->panels();
        packed_ = std::max(packed_, runtime.kernels.packed_bytes(p.weight->format(), max_rows, p.weight->inputs()));
    }
    packed_ = ceil_divide(packed_, kLine) * kLine;
}

// Find the work of the step. If the rows are few, those of a panel are multiplied in one piece.
void AdaptedLinear::prepare() {
    jobs_.list(runtime_.step);
    prefetched_.clear();
    prefetched_bytes_ = 0;
    if (jobs_.none()) return;
    for (const AdapterJob& job : jobs_.all())
        for (size_t i = 0; i < ys_.size(); ++i)
            if (const auto& c = job.entry->changes[i]; c && c->b.data != nullptr && !shared_before(*job.entry, 0, i)) {
                prefetched_.push_back(&*c);
                prefetched_bytes_ += bytes_of(c->a);
            }
    if (prefetched_bytes_ > kMaxPrefetched) prefetched_.clear(), prefetched_bytes_ = 0;
    runtime_.reserve(packed_ + jobs_.bytes(), 0);
    replaces_ = jobs_.replaces();
    by_panel_ = !replaces_ && jobs_.panel_bytes() <= kPanelBytes;
    for (const Product& p : products_)
        by_panel_ = by_panel_ && runtime_.kernels.row_blocks({p.weight->format(), runtime_.step.count(x_.extent)}) == 1;
}

AdaptedProducts AdaptedLinear::adapted(const Runtime& runtime) const {
    auto* t = reinterpret_cast<float*>(runtime.shared() + packed_);
    return {0, ys_.size(), x_.data, products_.front().weight->inputs(), ys_.data(), outputs_.data(), t, 0, 0, prefetched_bytes_ > 0};
}

void AdaptedLinear::run(Runtime& runtime, int thread) {
    linear_.run(runtime, thread, jobs_.none() ? nullptr : this);
    if (jobs_.none() || by_panel_) return;
    runtime.team.barrier();
    if (replaces_) {
        shrink(runtime, thread, jobs_.all(), adapted(runtime));
        runtime.team.barrier();
    }
    expand(runtime, thread, jobs_.all(), adapted(runtime));
}

void AdaptedLinear::pack(Runtime& runtime, int thread) {
    if (!replaces_) shrink(runtime, thread, jobs_.all(), adapted(runtime));
}

// Prefetch the matrices B of the panel while the panel is multiplied, and a part of the matrices A of the next operation.
void AdaptedLinear::begin_panel(const Runtime&, size_t product, int64_t panel) {
    if (by_panel_)
        for (const AdapterJob& job : jobs_.all()) {
            const auto& c = job.entry->changes[product];
            if (!c || c->b.data == nullptr) continue;
            const int64_t bytes = panel_bytes_of(*c);
            for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(c->b.data + panel * bytes + at);
        }
    if (next_ == nullptr || next_->prefetched_bytes_ == 0) return;
    const int64_t lines = next_->prefetched_bytes_ / kLine, place = places_[product] + panel;
    next_->prefetch(lines * place / places_end_ * kLine, lines * (place + 1) / places_end_ * kLine);
}

// Prefetch bytes of the matrices A, counted from the first one's.
void AdaptedLinear::prefetch(int64_t begin, int64_t end) const {
    for (const AdapterChange* c : prefetched_) {
        const int64_t bytes = bytes_of(c->a);
        for (int64_t at = std::max<int64_t>(begin, 0); at < std::min(end, bytes); at += kLine) __builtin_prefetch(c->a.data + at, 0, 2);
        begin -= bytes;
        end -= bytes;
        if (end <= 0) return;
    }
}

void AdaptedLinear::end_panel(const Runtime& runtime, size_t product, int64_t panel) {
    if (by_panel_) expand_panels(runtime, jobs_.all(), adapted(runtime), product, {panel, panel + 1});
}

void link_adapted(const Operations& operations) {
    AdaptedLinear* last = nullptr;
    for (const auto& operation : operations)
        if (auto* const found = dynamic_cast<AdaptedLinear*>(operation.get())) {
            found->set_next(nullptr);
            if (last != nullptr) last->set_next(found);
            last = found;
        }
}

void AdaptEmbedding::prepare() {
    int64_t rank = 0;
    for (const StepAdapter& each : runtime_.step.adapters)
        if (const AdapterEntry* entry = site_->entry(each.slot))
            for (const auto& c : entry->changes) rank = std::max(rank, c ? c->rank : int64_t{0});
    if (rank > 0) runtime_.reserve(0, rank * static_cast<int64_t>(sizeof(float)));
}

// A thread changes some rows, by all their adapters in order.
void AdaptEmbedding::run(Runtime& runtime, int thread) {
    const Step& step = runtime.step;
    const auto [begin, end] = share(runtime, step.count(kRows), thread);
    for (const StepAdapter& each : step.adapters) {
        const AdapterEntry* entry = site_->entry(each.slot);
        if (entry == nullptr) continue;
        const auto from = std::lower_bound(each.rows.begin(), each.rows.end(), begin);
        const auto to = std::lower_bound(from, each.rows.end(), end);
        for (auto row = from; row != to; ++row) {
            const bool given = !step.given_of.empty() && step.given_columns == columns_ && step.given_of[static_cast<size_t>(*row)] >= 0;
            if (!given) change(runtime, each, *entry->changes.front(), *row, thread);
        }
    }
}

void AdaptEmbedding::change(Runtime& runtime, const StepAdapter& group, const AdapterChange& c, int32_t row, int thread) const {
    const int32_t token = runtime.step.token_ids[static_cast<size_t>(row)];
    if (c.replaced.data != nullptr) {
        int64_t at = token;
        bool found = true;
        if (c.replaced_rows != nullptr) {
            const int32_t* last = c.replaced_rows + c.replaced.rows;
            const int32_t* place = std::lower_bound(c.replaced_rows, last, token);
            found = place != last && *place == token;
            at = place - c.replaced_rows;
        }
        if (found) runtime.kernels.widen(c.replaced.format, row_of(c.replaced, at), columns_, static_cast<float>(scale_), y_ + row * columns_);
    }
    if (c.b.data == nullptr) return;
    auto* t = reinterpret_cast<float*>(runtime.own(thread));
    runtime.kernels.widen(c.a.format, row_of(c.a, token), c.rank, 1, t);
    const auto scale = static_cast<float>(c.scale * (group.scale * scale_));
    runtime.kernels.expand({c.b.format, c.b.data, nullptr, c.rank, columns_, t, c.rank, &row, 1, scale, c.bias, c.factor, c.offset, y_}, 0,
                           ceil_divide(columns_, kPanel));
}

void Activate::run(Runtime& runtime, int thread) {
    const auto [begin, end] = share(runtime, runtime.step.count(out_.extent), thread);
    const int64_t at = begin * columns_;
    if (begin < end)
        runtime.kernels.activate_all(activation_, x_ + at, others_ == nullptr ? nullptr : others_ + at, (end - begin) * columns_,
                                     out_.data + at);
}

}  // namespace ferrum
