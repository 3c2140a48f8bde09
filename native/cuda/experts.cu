// Experts: which experts a row gets, the rows of each expert, and the sum of a row's results. Routing in
// kernels/op_attributes.py lists the steps; kernels/reference/reference_experts.py has their order.
#include "numbers.hpp"

namespace ferrum::cuda {
namespace {

constexpr int kMostExperts = 1024, kMostGroups = 128;
constexpr int kNone = 0x7fffffff;

enum class Score : Int { softmax, sigmoid, sqrt_softplus };

FERRUM_DEVICE int bits_of(unsigned word) {
    word = word - (word >> 1 & 0x55555555u);
    word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
    return static_cast<int>(((word + (word >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}
FERRUM_DEVICE int bits_below_lane(unsigned word) { return bits_of(word & ((1u << lane()) - 1u)); }

// ---- Routing: a warp has a row, and shared memory for its scores and for those of groups of experts ----

struct RouteArgs {
    const int* rows;     // of the step, [1]
    const float* scores;  // [rows, experts]
    const float* selection_bias;  // [experts], or null
    const float* expert_scale;    // [experts], or null
    int* chosen;         // [rows, top_k], ascending
    float* weights;      // [rows, top_k]
    Int experts, top_k;
    Score score;
    Int late, groups, kept_groups, group_best, renormalise;
    Real eps, least, factor;
};

// A candidate: greater keys are better, then lower numbers; key 0 is none. NaN counts as minus infinity.
struct Candidate {
    unsigned key = 0;
    int number = kNone;

    FERRUM_DEVICE bool better_than(const Candidate& other) const {
        return key > other.key || (key == other.key && number < other.number);
    }
};

FERRUM_DEVICE float without_nan(float x) { return x == x ? x : as_float(kInfinity | kSign); }
FERRUM_DEVICE unsigned key_of(float x) {
    const unsigned bits = as_bits(without_nan(x) + 0.0f);  // zeros of both signs are equal
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

FERRUM_DEVICE Candidate best_of_warp(Candidate own) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
        const Candidate other = {static_cast<unsigned>(shuffle(static_cast<int>(own.key), lane() ^ step)), shuffle(own.number, lane() ^ step)};
        if (other.better_than(own)) own = other;
    }
    return own;
}

FERRUM_DEVICE float softplus(float x) {
    const float t = exp(-magnitude(x)), u = 1.0f + t;
    return (x > 0 ? x : 0.0f) + (log(u) + divided(t - (u - 1.0f), u));
}

struct RoutedRow {
    const RouteArgs& a;
    const float* scores;
    float* values;  // [experts], of the choice and the weights
    float* groups;  // [groups]: their scores, then whether experts may be of them
    int* chosen;    // [top_k]
    const int experts, top_k;

    FERRUM_DEVICE RoutedRow(const RouteArgs& args, Int row, float* all_values, float* all_groups, int* all_chosen)
        : a(args), scores(args.scores + row * args.experts), values(all_values + warp() * kMostExperts),
          groups(all_groups + warp() * kMostGroups), chosen(all_chosen + warp() * kWarp),
          experts(static_cast<int>(args.experts)), top_k(static_cast<int>(args.top_k)) {}

    FERRUM_DEVICE bool load() {
        bool finite = true;
        for (int e = lane(); e < experts; e += kWarp) finite = is_finite(values[e] = scores[e]) && finite;
        sync_warp();
        return ballot(!finite) == 0;
    }

    // Scores of all experts; a softmax adds them in ascending order.
    FERRUM_DEVICE void score_all() {
        float peak = values[0];
        for (int e = 1; e < experts && a.score == Score::softmax; ++e) peak = values[e] > peak ? values[e] : peak;
        sync_warp();
        for (int e = lane(); e < experts; e += kWarp) values[e] = scored(values[e], peak);
        sync_warp();
        if (a.score != Score::softmax) return;
        float total = values[0];
        for (int e = 1; e < experts; ++e) total = total + values[e];
        sync_warp();
        for (int e = lane(); e < experts; e += kWarp) values[e] = divided(values[e], total);
        sync_warp();
    }

    FERRUM_DEVICE float scored(float x, float peak) const {
        if (a.score == Score::softmax) return exp(x - peak);
        return a.score == Score::sigmoid ? sigmoid(x) : square_root(softplus(x));
    }

    FERRUM_DEVICE float rank(int e) const { return a.selection_bias != nullptr ? values[e] + a.selection_bias[e] : values[e]; }

    // The sum of a group's best experts, the best first.
    FERRUM_DEVICE float group_score(int group, int size) const {
        Candidate last = {~0u, -1};
        float total = 0;
        for (int i = 0; i < a.group_best; ++i) {
            Candidate best;
            for (int e = group * size; e < (group + 1) * size; ++e) {
                const Candidate offered = {key_of(rank(e)), e};
                if (last.better_than(offered) && offered.better_than(best)) best = offered;
            }
            if (best.number == kNone) break;
            const float value = without_nan(rank(best.number));
            total = i == 0 ? value : total + value;
            last = best;
        }
        return total;
    }

    // Keep the best groups.
    FERRUM_DEVICE void choose_groups() {
        const int count = static_cast<int>(a.groups), size = experts / count;
        for (int group = lane(); group < count; group += kWarp) groups[group] = group_score(group, size);
        sync_warp();
        unsigned kept = 0;  // bit i: group lane + 32 i
        for (int i = 0; i < a.kept_groups; ++i) {
            Candidate own;
            for (int j = 0, group = lane(); group < count; ++j, group += kWarp) {
                const Candidate offered = {key_of(groups[group]), group};
                if ((kept >> j & 1u) == 0 && offered.better_than(own)) own = offered;
            }
            const Candidate best = best_of_warp(own);
            if (best.number % kWarp == lane()) kept |= 1u << (best.number / kWarp);
        }
        sync_warp();
        for (int j = 0, group = lane(); group < count; ++j, group += kWarp) groups[group] = (kept >> j & 1u) != 0 ? 1.0f : 0.0f;
        sync_warp();
    }

    // The best expert that is not taken: of the groups that were kept, or of the others.
    FERRUM_DEVICE Candidate seek(unsigned taken, bool outside) const {
        const int size = experts / static_cast<int>(a.groups);
        Candidate own;
        for (int j = 0, e = lane(); e < experts; ++j, e += kWarp) {
            const bool other = a.groups > 1 && groups[e / size] == 0.0f;
            const Candidate offered = {key_of(rank(e)), e};
            if ((taken >> j & 1u) == 0 && other == outside && offered.better_than(own)) own = offered;
        }
        return best_of_warp(own);
    }

    FERRUM_DEVICE void choose() {
        if (a.groups > 1) choose_groups();
        unsigned taken = 0;  // bit i: expert lane + 32 i
        for (int i = 0; i < top_k; ++i) {
            Candidate best = seek(taken, false);
            if (best.number == kNone) best = seek(taken, true);
            if (best.number % kWarp == lane()) taken |= 1u << (best.number / kWarp);
        }
        for (int j = 0, begin = 0; j * kWarp < experts; ++j) {
            const unsigned lanes = ballot((taken >> j & 1u) != 0);
            if ((taken >> j & 1u) != 0) chosen[begin + bits_below_lane(lanes)] = j * kWarp + lane();
            begin += bits_of(lanes);
        }
        sync_warp();
    }

    FERRUM_DEVICE float ordered_sum(float own) const {
        float total = shuffle(own, 0);
        for (int i = 1; i < top_k; ++i) total = total + shuffle(own, i);
        return total;
    }

    // The weight of the expert of this lane.
    FERRUM_DEVICE float weight(int expert) const {
        float found = values[expert];
        if (a.late != 0) {
            float peak = shuffle(found, 0);
            for (int i = 1; i < top_k; ++i) {
                const float other = shuffle(found, i);
                peak = other > peak ? other : peak;
            }
            found = scored(found, peak);
            if (a.score == Score::softmax) found = divided(found, ordered_sum(found));
        }
        if (a.renormalise != 0) {
            const float total = ordered_sum(found) + a.eps.value;
            found = divided(found, total < a.least.value ? a.least.value : total);
        }
        found = found * a.factor.value;
        return a.expert_scale != nullptr ? found * a.expert_scale[expert] : found;
    }
};

}  // namespace

// grid: [most rows / kWarps]
FERRUM_KERNEL(route_rows, RouteArgs) {
    FERRUM_SHARED(float, values, kWarps * kMostExperts);
    FERRUM_SHARED(float, groups, kWarps * kMostGroups);
    FERRUM_SHARED(int, chosen, kWarps * kWarp);
    const Int at = block_x() * kWarps + warp();
    if (at >= *a.rows) return;
    RoutedRow row(a, at, values, groups, chosen);
    const bool finite = row.load();
    int expert = lane() < a.top_k ? lane() : 0;
    float weight = as_float(0x7fc00000u);
    if (finite) {
        if (a.late == 0) row.score_all();
        row.choose();
        expert = row.chosen[expert];
        weight = row.weight(expert);
    }
    if (lane() >= a.top_k) return;
    a.chosen[at * a.top_k + lane()] = expert;
    a.weights[at * a.top_k + lane()] = weight;
}

// ---- The rows of each expert ----

struct GroupArgs {
    const int* rows;
    const int* chosen;  // [rows, top_k]
    const float* weights;
    int* bounds;        // [experts + 1]: expert e has the places bounds[e] to bounds[e + 1],
    int* row_of;        // [rows x top_k]: of these rows, ascending,
    float* shares;      // [rows x top_k]: with these weights
    int* places;        // [rows, top_k]: the place of each chosen expert
    Int top_k, experts;
};

// grid: [experts]
FERRUM_KERNEL(group_rows, GroupArgs) {
    FERRUM_SHARED(int, counts, 2 * kWarps);
    const Int pairs = *a.rows * a.top_k;
    const int own = static_cast<int>(block_x());
    int before = 0;
    for (Int i = thread(); i - lane() < pairs; i += kThreads) before += bits_of(ballot(i < pairs && a.chosen[i] < own));
    if (lane() == 0) counts[warp()] = before;
    sync_block();
    int place = 0;
    for (int i = 0; i < kWarps; ++i) place += counts[i];
    if (thread() == 0) a.bounds[own] = place;
    for (Int first = 0, half = 1; first < pairs; first += kThreads, half = 1 - half) {
        const Int i = first + thread();
        const bool mine = i < pairs && a.chosen[i] == own;
        const unsigned lanes = ballot(mine);
        if (lane() == 0) counts[half * kWarps + warp()] = bits_of(lanes);
        sync_block();
        int at = place + bits_below_lane(lanes);
        for (int w = 0; w < kWarps; ++w) {
            const int count = counts[half * kWarps + w];
            if (w < warp()) at += count;
            place += count;
        }
        if (mine) a.row_of[at] = static_cast<int>(i / a.top_k), a.shares[at] = a.weights[i], a.places[i] = at;
    }
    if (thread() == 0 && own + 1 == a.experts) a.bounds[own + 1] = place;
}

// ---- Inputs times weights, and sums of results ----

struct ShareArgs {
    const int* count;  // of places
    const int* row_of;
    const float* shares;
    const float* x;  // [rows, columns]
    float* y;        // [places, columns]
    Int columns;
};

// grid: [columns / kThreads, most places]
FERRUM_KERNEL(share_inputs, ShareArgs) {
    const Int place = block_y(), column = block_x() * kThreads + thread();
    if (place >= *a.count || column >= a.columns) return;
    a.y[place * a.columns + column] = a.x[a.row_of[place] * a.columns + column] * a.shares[place];
}

struct SumArgs {
    const int* rows;
    const int* places;     // [rows, top_k]
    const float* weights;  // [rows, top_k], or null: 1
    const float* results;  // [places, columns]
    float* y;              // [rows, columns]
    Int top_k, columns;
};

// grid: [columns / kThreads, most rows]
FERRUM_KERNEL(sum_experts, SumArgs) {
    const Int row = block_y(), column = block_x() * kThreads + thread();
    if (row >= *a.rows || column >= a.columns) return;
    float total = 0;
    for (Int i = row * a.top_k; i < (row + 1) * a.top_k; ++i)
        total = fused(a.results[a.places[i] * a.columns + column], a.weights != nullptr ? a.weights[i] : 1.0f, total);
    a.y[row * a.columns + column] = total;
}

}  // namespace ferrum::cuda
