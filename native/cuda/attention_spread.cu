// Attention of few rows over many keys, in three kernels with the bits of attention.cu: the scores of all steps by many
// blocks, then the weights of each row, then the values, dimensions by many blocks.
//
// Between them, a row's query head has a slot for each step that it sees: 64 scores or weights, then the decay of the
// results before the step, the factor of the step's sums, and two zeros.
#include "softmax.hpp"
#include "tile_scores.hpp"

namespace ferrum::cuda {

namespace {

constexpr int kSlot = kStep + 4, kDecay = kStep, kFactor = kStep + 1;
constexpr int kMostSteps = 2048;
constexpr int kMostRows = 8;  // of a tile
constexpr int kColumns = kStep + 4;
constexpr int kBuffer = kWords * kColumns;

// The steps that a row sees, and its slots for a query head.
struct RowSteps {
    int low, last, begin, end;
    float* slots;

    FERRUM_DEVICE bool sees(int token) const { return token >= low && token <= last; }
    FERRUM_DEVICE bool has(int step) const { return step >= begin && step < end; }
    FERRUM_DEVICE float* slot(int step) const { return slots + (step - begin) * kSlot; }
};

FERRUM_DEVICE RowSteps row_steps(const AttentionArgs& a, int row, int head) {
    const int last = a.pages.last_seen[row], low = first_seen(a, a.pages.positions[row]);
    return {low, last, low / kStep, last / kStep + 1, a.steps + (row * a.heads + head) * a.most_steps * kSlot};
}
FERRUM_DEVICE RowSteps row_steps(const AttentionArgs& a, const Tile& tile, int r) {
    return row_steps(a, tile.row_of(r), tile.head_of(r));
}

// ---- Scores: a block has one of `step_blocks` shares of the steps, in turn ----

template <int N>
FERRUM_DEVICE void score_steps_of(const AttentionArgs& a, const Tile& tile, unsigned* queries, unsigned* buffers, float* scales) {
    TileScores<Terms, N> scores{a, tile, queries, scales};
    scores.read_queries();
    RowSteps rows[N];
    for (int n = 0; n < N; ++n) rows[n] = row_steps(a, tile, scores.first + n);
    sync_block();
    const int parts = scores.parts, from = tile.begin + static_cast<int>(block_z()), stride = static_cast<int>(a.step_blocks);
    const int steps = (tile.end - from + stride - 1) / stride;
    pipeline<2>(steps * parts,
        [&](int item, int buffer) {
            const int step = from + item / parts * stride;
            copy_keys<kWords, kColumns>(a.pages, tile, step, item % parts * kWords, buffers + buffer * kBuffer);
        },
        [&](int item, int buffer) {
            const int step = from + item / parts * stride;
            if (!scores.works()) return;
            scores.template add<kColumns>(step, item % parts, buffers + buffer * kBuffer);
            if (item % parts + 1 < parts) return;
            const float key_scale = Terms::kDepth == 4 ? scores.scale(step, false) : 0.0f;
            for (int n = 0; n < N; ++n) {
                if (scores.first + n >= tile.count || !rows[n].has(step)) continue;
                const float score = scores.score(n, key_scale);
                rows[n].slot(step)[scores.column] = rows[n].sees(step * kStep + scores.column) ? score : kMasked;
            }
        });
}

// ---- Weights: a block has a query head of a row, and a warp each eighth step ----

// Replace the greatest scores of steps by the greatest so far.
FERRUM_DEVICE void raise(float* tops, int count, float maximum) {
    for (int from = 0; from < count; from += kWarp) {
        float top = from + lane() < count ? tops[from + lane()] : maximum;
        for (int distance = 1; distance < kWarp; distance *= 2) {
            const float before = shuffle(top, (lane() - distance) & (kWarp - 1));
            if (lane() >= distance) top = larger(before, top);
        }
        top = larger(maximum, top);
        if (from + lane() < count) tops[from + lane()] = top;
        maximum = shuffle(top, kWarp - 1);
    }
}

FERRUM_DEVICE float value_scale(const AttentionArgs& a, int span, int kv_head, int token) {
    const Block block = token_block(a.pages, span, kv_head, token);
    if (block.keys == nullptr) return 0;
    return (a.pages.value_bytes == 0 ? key_scales(a.pages, block) : value_scales(a.pages, block))[block.token];
}

// ---- Values: a block has 32 dimensions of a tile, and a warp one of its rows ----

constexpr int kWide = 32, kBuffers = 4;
constexpr int kValueColumns = kWide + 4;
constexpr int kPartTokens = Terms::kDepth == 1 ? kWords : kStep;

struct Values {
    const AttentionArgs& a;
    const Tile& tile;
    unsigned* buffers;  // kBuffers x kBuffer
    float* weights;     // kBuffers x [row][kSlot]
    const bool latent = a.pages.value_bytes == 0;
    const int first = static_cast<int>(block_z()) * kWide, d = first + lane();
    const int padded = static_cast<int>(latent ? a.value_dim : a.pages.value_padded);
    const int parts = latent ? 1 : kStep / kPartTokens;
    const int copied = thread() / (kSlot / 4);  // the row whose slots this thread copies
    const RowSteps row = row_steps(a, tile, copied);
    Mixed<Terms, 1> mixed = {};
    float out = 0;

    // The slots of a step; of a row that does not see it, weights that change nothing.
    FERRUM_DEVICE void copy_weights(int step, float* to) const {
        if (copied >= tile.count) return;
        const int four = thread() % (kSlot / 4) * 4;
        float* const at = to + copied * kSlot + four;
        if (row.has(step)) return copy_16(at, row.slot(step) + four);
        for (int i = 0; i < 4; ++i) at[i] = four + i == kDecay ? 1.0f : 0.0f;
    }
    FERRUM_DEVICE void copy(int item, int buffer) const {
        const int step = tile.begin + item / parts;
        unsigned* const to = buffers + buffer * kBuffer;
        copy_weights(step, weights + buffer * kMostRows * kSlot);
        if (latent)
            copy_keys<kWide / Terms::kDepth, kColumns>(a.pages, tile, step, first / Terms::kDepth, to);
        else
            copy_values<Terms::kDepth, kWide, kValueColumns>(a.pages, tile, step, item % parts * kPartTokens, first, to);
    }
    FERRUM_DEVICE void compute(int item, int buffer) {
        const int step = tile.begin + item / parts, token = item % parts * kPartTokens, left = tile.tokens(step) - token;
        if (warp() >= tile.count || d >= padded || left <= 0) return;
        const float* of_row = weights + (buffer * kMostRows + warp()) * kSlot;
        const unsigned* words = buffers + buffer * kBuffer;
        const ByRow<Terms::Factor> factors{reinterpret_cast<const Terms::Factor*>(of_row)};
        mixed.begin(0, out, token == 0 ? of_row[kDecay] : 1.0f);
        if (latent) {
            const unsigned* tokens = words + lane() / Terms::kDepth * kColumns;
            add_values(mixed, factors, left, [=](int four) {
                return Terms::of_tokens(few<4>(tokens + 4 * four), lane() % Terms::kDepth);
            });
        } else {
            add_values(mixed, factors.from(token / Terms::kTerms), left < kPartTokens ? left : kPartTokens,
                       [=](int four) { return Terms::of_words<kValueColumns>(words + lane(), four); });
        }
        out = mixed.result(0, of_row[kFactor]);
    }
    FERRUM_DEVICE void run() {
        pipeline<kBuffers>((tile.end - tile.begin) * parts, [&](int item, int buffer) { copy(item, buffer); },
                           [&](int item, int buffer) { compute(item, buffer); });
        if (warp() >= tile.count || d >= a.value_dim) return;
        const Int index = tile.index_of(a, warp());
        a.out[index * a.value_dim + d] = divided(out, a.totals[index]) + 0.0f;
    }
};

}  // namespace

FERRUM_ROOMY_KERNEL(score_steps, AttentionArgs) {
    FERRUM_SHARED(unsigned, queries, kMostRows * 576);
    FERRUM_SHARED(unsigned, buffers, 2 * kBuffer);
    FERRUM_SHARED(float, scales, kMostRows);
    const Tile tile(a);
    if (tile.count == 0 || tile.begin + block_z() >= tile.end) return;
    if (tile.count <= 4)
        score_steps_of<1>(a, tile, queries, buffers, scales);
    else
        score_steps_of<2>(a, tile, queries, buffers, scales);
}

FERRUM_ROOMY_KERNEL(weigh_steps, AttentionArgs) {
    FERRUM_SHARED(float, tops, kMostSteps);
    FERRUM_SHARED(float, decays, kMostSteps);
    FERRUM_SHARED(float, sums, kMostSteps);
    const int index = static_cast<int>(block_x()), head = static_cast<int>(block_y());
    if (index >= *a.rows) return;
    const RowSteps row = row_steps(a, index, head);
    const Softmax start(a, head);
    const int count = row.end - row.begin, kv_head = head / static_cast<int>(a.heads / a.pages.kv_heads);
    for (int i = warp(); i < count; i += kWarps) {
        const float* scores = row.slots + i * kSlot + lane();
        const float top = largest({scores[0], scores[32]});
        if (lane() == 0) tops[i] = top;
    }
    sync_block();
    if (warp() == 0) raise(tops, count, start.maximum);
    sync_block();
    for (int i = warp(); i < count; i += kWarps) {
        float* const slot = row.slots + i * kSlot;
        const int token = (row.begin + i) * kStep + lane(), span = a.pages.row_span[index];
        const bool sees_low = row.sees(token), sees_high = row.sees(token + 32);
        const OfKeys weights = weights_of({slot[lane()], slot[lane() + 32]}, tops[i], sees_low, sees_high);
        OfKeys scales = {};
        if constexpr (Terms::kDepth == 4) {
            if (sees_low) scales.low = value_scale(a, span, kv_head, token);
            if (sees_high) scales.high = value_scale(a, span, kv_head, token + 32);
        }
        const float sum = sum_of(weights), decay = exp2((i == 0 ? start.maximum : tops[i - 1]) - tops[i]);
        const float factor = write_weights<Terms>(weights, scales, reinterpret_cast<unsigned*>(slot), 1);
        if (lane() < kSlot - kStep) slot[kStep + lane()] = lane() == 0 ? decay : lane() == 1 ? factor : 0.0f;
        if (lane() == 0) decays[i] = decay, sums[i] = sum;
    }
    sync_block();
    if (thread() != 0) return;
    float total = start.total;
    for (int i = 0; i < count; ++i) total = fused(total, decays[i], sums[i]);
    a.totals[index * a.heads + head] = total;
}

FERRUM_ROOMY_KERNEL(mix_steps, AttentionArgs) {
    FERRUM_SHARED(unsigned, buffers, kBuffers * kBuffer);
    FERRUM_SHARED(float, weights, kBuffers * kMostRows * kSlot);
    const Tile tile(a);
    if (tile.count == 0) return;
    Values{a, tile, buffers, weights}.run();
}

}  // namespace ferrum::cuda
