// Attention of tiles of many rows: a block goes over all keys that its rows see, and keeps its results in shared memory.
#include "softmax.hpp"
#include "tile_scores.hpp"

namespace ferrum::cuda {

namespace {

constexpr int kNumbers = 2304;  // of queries of a tile, and of its results
constexpr int kMostRows = 16;   // of a tile
constexpr int kColumns = kStep + 4;  // of a buffer: words of a column of four tokens are in different banks
constexpr int kBuffer = kWords * kColumns;

// The shared memory of a block.
struct Memory {
    unsigned* queries;  // [term][row]
    float* out;         // [row][value_padded]
    unsigned* buffers;  // 2 x [word][kColumns]
    float* scores;      // [row][kStep]
    unsigned* weights;  // [term][row]
    float* scales;      // of values
    float* maximum;     // [row] each
    float* total;
    float* decay;
    float* factor;
    float* query_scales;
    int* low;  // the first key that a row sees, and the last
    int* high;
};

// A tile of up to 4 x N rows. A thread has a column of 64 tokens or dimensions, and N rows.
template <class F, int N>
struct Attention {
    static constexpr int kRows = 4 * N;
    using Factor = typename F::Factor;

    const AttentionArgs& a;
    const Tile& tile;
    const Memory& m;
    TileScores<F, N> scores{a, tile, m.queries, m.query_scales};
    const int column = scores.column, first = scores.first, key_parts = scores.parts;
    const bool latent = a.pages.value_bytes == 0;

    FERRUM_DEVICE int padded() const { return static_cast<int>(latent ? a.value_dim : a.pages.value_padded); }
    // Dimensions of a part of latent values, and tokens of one of others.
    static constexpr int kLatentWidth = kWords * F::kDepth;
    static constexpr int kPartTokens = F::kDepth == 1 ? kWords : kStep;
    FERRUM_DEVICE int value_parts() const {
        if (latent) return (padded() + kLatentWidth - 1) / kLatentWidth;
        return (padded() + kValueSide - 1) / kValueSide * (kStep / kPartTokens);
    }

    FERRUM_DEVICE void start() const {
        scores.read_queries();
        for (int i = thread(); i < kRows * padded(); i += kThreads) m.out[i] = 0;
        if (thread() >= kRows) return;
        const Softmax state(a, tile.head_of(thread()));
        m.maximum[thread()] = state.maximum;
        m.total[thread()] = state.total;
        m.high[thread()] = a.pages.last_seen[tile.row_of(thread())];
        m.low[thread()] = first_seen(a, a.pages.positions[tile.row_of(thread())]);
    }

    // The threads of the first rows also read the scales of values.
    FERRUM_DEVICE void write_scores(int step) const {
        float key_scale = 0;
        if constexpr (F::kDepth == 4) {
            key_scale = scores.scale(step, false);
            if (first == 0) m.scales[column] = latent ? key_scale : scores.scale(step, true);
        }
        for (int n = 0; n < N; ++n) m.scores[(first + n) * kStep + column] = scores.score(n, key_scale);
    }

    // ---- Weights: a warp has a row ----

    FERRUM_DEVICE void weigh(int step) const {
        for (int r = warp(); r < (tile.count + N - 1) / N * N; r += kWarps) {
            const int low = m.low[r] - step * kStep, high = m.high[r] - step * kStep;
            const auto sees = [=](int token) { return token >= low && token <= high; };
            const bool sees_low = sees(lane()), sees_high = sees(lane() + 32), active = low < kStep && high >= 0;
            const float* from = m.scores + (r < tile.count ? r : tile.count - 1) * kStep + lane();
            const OfKeys seen = {sees_low ? from[0] : kMasked, sees_high ? from[32] : kMasked};
            const float raised = larger(largest(seen), m.maximum[r]);
            const OfKeys weights = weights_of(seen, raised, sees_low, sees_high);
            const float sum = sum_of(weights), decay = active ? exp2(m.maximum[r] - raised) : 1.0f;
            OfKeys scales = {};
            if constexpr (F::kDepth == 4) scales = {m.scales[lane()], m.scales[lane() + 32]};
            const float factor = write_weights<F>(weights, scales, m.weights + r, kRows);
            sync_warp();
            if (lane() != 0) continue;
            if (active) m.total[r] = fused(m.total[r], decay, sum);
            m.maximum[r] = raised;
            m.decay[r] = decay;
            m.factor[r] = factor;
        }
    }

    // ---- Values ----

    // Add `count` tokens from `token` on to dimension `d` of N rows. `begins`: they are the first ones of the step.
    template <class Values>
    FERRUM_DEVICE void mix(int d, int token, int count, bool begins, Values values) const {
        Mixed<F, N> mixed;
        float* out = m.out + first * padded() + d;
        for (int n = 0; n < N; ++n) {
            const float before = out[n * padded()];
            mixed.begin(n, before, begins ? m.decay[first + n] : 1.0f);
        }
        const ByTerm<Factor, N> weights{reinterpret_cast<const Factor*>(m.weights) + first, kRows};
        add_values(mixed, weights.from(token / F::kTerms), count, values);
        for (int n = 0; n < N; ++n) out[n * padded()] = mixed.result(n, m.factor[first + n]);
    }
    FERRUM_DEVICE void value_part(int step, int part, const unsigned* buffer) const {
        constexpr int kParts = kStep / kPartTokens;
        const int d = part / kParts * kValueSide + column, token = part % kParts * kPartTokens;
        const int left = tile.tokens(step) - token;
        if (d >= padded() || left <= 0) return;
        mix(d, token, left < kPartTokens ? left : kPartTokens, token == 0,
            [=](int four) { return F::template of_words<kColumns>(buffer + column, four); });
    }
    FERRUM_DEVICE void latent_part(int step, int part, const unsigned* buffer) const {
        for (int from = column; from < kLatentWidth; from += kStep) {
            const int d = part * kLatentWidth + from;
            if (d >= padded()) return;
            const unsigned* words = buffer + from / F::kDepth * kColumns;
            mix(d, 0, tile.tokens(step), true,
                [=](int four) { return F::of_tokens(few<4>(words + 4 * four), from % F::kDepth); });
        }
    }

    // ---- All of it ----

    FERRUM_DEVICE void copy(int step, int part, unsigned* buffer) const {
        if (part < key_parts || latent)
            return copy_keys<kWords, kColumns>(a.pages, tile, step, (part < key_parts ? part : part - key_parts) * kWords, buffer);
        constexpr int kParts = kStep / kPartTokens;
        const int index = part - key_parts;
        copy_values<F::kDepth, kValueSide, kColumns>(a.pages, tile, step, index % kParts * kPartTokens,
                                                     index / kParts * kValueSide, buffer);
    }
    FERRUM_DEVICE void compute(int step, int part, const unsigned* buffer) {
        if (part < key_parts) {
            if (scores.works()) scores.template add<kColumns>(step, part, buffer);
            if (part + 1 < key_parts) return;
            if (scores.works()) write_scores(step);
            sync_block();
            weigh(step);
        } else if (scores.works()) {
            latent ? latent_part(step, part - key_parts, buffer) : value_part(step, part - key_parts, buffer);
        }
    }
    FERRUM_DEVICE void run() {
        start();
        sync_block();
        const int parts = key_parts + value_parts();
        pipeline<2>((tile.end - tile.begin) * parts,
            [&](int item, int buffer) { copy(tile.begin + item / parts, item % parts, m.buffers + buffer * kBuffer); },
            [&](int item, int buffer) { compute(tile.begin + item / parts, item % parts, m.buffers + buffer * kBuffer); });
        sync_block();
        const int dim = static_cast<int>(a.value_dim);
        for (int r = warp(); r < tile.count; r += kWarps)
            for (int d = lane(); d < dim; d += kWarp)
                a.out[tile.index_of(a, r) * dim + d] = divided(m.out[r * padded() + d], m.total[r]) + 0.0f;
    }
};

}  // namespace

FERRUM_ROOMY_KERNEL(attend, AttentionArgs) {
    FERRUM_SHARED(unsigned, queries, kNumbers);
    FERRUM_SHARED(float, out, kNumbers);
    FERRUM_SHARED(unsigned, buffers, 2 * kBuffer);
    FERRUM_SHARED(float, scores, kMostRows * kStep);
    FERRUM_SHARED(unsigned, weights, kMostRows * kStep);
    FERRUM_SHARED(float, numbers, kStep + 7 * kMostRows);
    const Tile tile(a);
    if (tile.count == 0) return;
    float* const of_rows = numbers + kStep;
    int* const bounds = reinterpret_cast<int*>(of_rows + 5 * kMostRows);
    const Memory memory = {queries, out, buffers, scores, weights, numbers, of_rows, of_rows + kMostRows, of_rows + 2 * kMostRows,
                           of_rows + 3 * kMostRows, of_rows + 4 * kMostRows, bounds, bounds + kMostRows};
    if (tile.count <= 4)
        Attention<Terms, 1>{a, tile, memory}.run();
    else if (tile.count <= 8)
        Attention<Terms, 2>{a, tile, memory}.run();
    else
        Attention<Terms, 4>{a, tile, memory}.run();
}

}  // namespace ferrum::cuda
