// Quantisation to formats with several groups in a block, with the bits of quant/block_quantizers.py.
#pragma once

#include "block_format.hpp"
#include "scale_search.hpp"

namespace ferrum::FERRUM_TIER {

// A block of kLanes outputs. Codes follow from the scales, so they are computed where they are needed.
template <int GROUPS, int N, bool MINIMA>
struct Superblock {
    using Numbers = Group<N>;
    const vf* x;
    const vf* weights;
    float low, high;  // of codes
    vf d{}, m{}, sub[GROUPS]{}, sub_m[GROUPS]{}, errors[GROUPS]{};

    Numbers group(int g) const { return {x + g * N, weights + g * N}; }
    vf minimum(int g, vf scale) const { return MINIMA ? scale * -sub_m[g] : vf{}; }

    void codes(int g, vf* out) const { group(g).codes(d * sub[g], minimum(g, m), low, high, out); }

    vf fit_minimum(int g, vf scale, const vf* codes) const {
        const Numbers numbers = group(g);
        const vf sum = fold<N>([&](int k) { return numbers.weigh(k, numbers.x[k] - codes[k] * scale); });
        return nearest_within(ratio(sum, numbers.total()) * -inverse(m), 0.0f, 63.0f);
    }

    Rounding start(const Search& search) {
        vf scale[GROUPS], least[GROUPS];
        for (int g = 0; g < GROUPS; ++g) {
            const Rounding found = fault(g);
            if (found != Rounding::fine) return found;
            const Line line = MINIMA ? fit_affine(group(g), high, search, false) : Line{fit_symmetric(group(g), low, high, search), vf{}};
            scale[g] = line.scale, least[g] = line.minimum;
        }
        const float levels = MINIMA ? 63.0f : 127.0f;
        d = MINIMA ? half(largest_of<GROUPS>(scale) / 63.0f) : half(signed_largest_of<GROUPS>(scale) / -128.0f);
        const vf steps = inverse(d);
        for (int g = 0; g < GROUPS; ++g) {
            sub[g] = nearest_within(scale[g] * steps, MINIMA ? 0.0f : -128.0f, levels);
            sub_m[g] = vf{};
        }
        if (MINIMA) start_minima(least);
        for (int g = 0; g < GROUPS; ++g) errors[g] = error(g, d, m);
        return Rounding::fine;
    }

    // The error that plain scales would have.
    Rounding fault(int g) const {
        const Numbers numbers = group(g);
        const vf spoiled = numbers.spoiled();
        if (!MINIMA) return fault_of(numbers.signed_largest() / (low * 128.0f) + spoiled);
        const vf smallest = smaller(numbers.smallest(), vf{});
        const Rounding of_minimum = fault_of(smallest / 63.0f + spoiled);
        const Rounding of_scale = fault_of((numbers.largest() - smallest) / (high * 63.0f));
        return of_minimum > of_scale ? of_minimum : of_scale;
    }

    void start_minima(const vf (&least)[GROUPS]) {
        vf sizes[GROUPS], codes[N];
        for (int g = 0; g < GROUPS; ++g) sizes[g] = -least[g];
        m = half(largest_of<GROUPS>(sizes) / 63.0f);
        for (int g = 0; g < GROUPS; ++g) {
            const vf scale = d * sub[g];
            group(g).codes(scale, least[g], low, high, codes);
            sub_m[g] = fit_minimum(g, scale, codes);
        }
    }

    vf error(int g, vf scale, vf minima) const {
        vf codes[N];
        const vf own = scale * sub[g], least = minimum(g, minima);
        group(g).codes(own, least, low, high, codes);
        return group(g).error(codes, own, least);
    }

    // Fit d and m to the codes by least squares; keep them in blocks whose error shrinks.
    void refit() {
        vf new_d, new_m{}, new_errors[GROUPS];
        least_squares(new_d, new_m);
        for (int g = 0; g < GROUPS; ++g) new_errors[g] = error(g, new_d, new_m);
        const vi better = fold<GROUPS>([&](int g) { return new_errors[g]; }) < fold<GROUPS>([&](int g) { return errors[g]; });
        d = select(better, new_d, d), m = select(better, new_m, m);
        for (int g = 0; g < GROUPS; ++g) errors[g] = select(better, new_errors[g], errors[g]);
    }

    void least_squares(vf& new_d, vf& new_m) const {
        vf of_squares[GROUPS], of_products[GROUPS], of_mixed[GROUPS], of_constants[GROUPS], of_sums[GROUPS], own[N];
        for (int g = 0; g < GROUPS; ++g) {
            const Numbers numbers = group(g);
            codes(g, own);
            of_squares[g] = sub[g] * (sub[g] * numbers.squares(own));
            of_products[g] = sub[g] * numbers.products(own);
            if (!MINIMA) continue;
            of_mixed[g] = sub[g] * (sub_m[g] * numbers.sum_of(own));
            of_constants[g] = sub_m[g] * (sub_m[g] * numbers.total());
            of_sums[g] = sub_m[g] * numbers.sum();
        }
        const auto sum = [](const vf(&of)[GROUPS]) { return fold<GROUPS>([&](int g) { return of[g]; }); };
        const vf squares = sum(of_squares), products = sum(of_products);
        if (!MINIMA) {
            new_d = half(ratio(products, squares));
            return;
        }
        const vf mixed = sum(of_mixed), constants = sum(of_constants), sums = sum(of_sums);
        const vf determinant = squares * constants - mixed * mixed;
        const vf both = ratio(products * constants - sums * mixed, determinant);
        new_d = half(select(determinant > 0.0f, both, ratio(products, squares)));
        new_m = half(ratio(products * mixed - sums * squares, determinant));
    }

    // Try the groups' integer scales plus a number, each with its best minimum.
    void step(float change) {
        for (int g = 0; g < GROUPS; ++g) {
            vf own[N];
            const vf tried = bounded(sub[g] + change, MINIMA ? 0.0f : -128.0f, MINIMA ? 63.0f : 127.0f), scale = d * tried;
            group(g).codes(scale, minimum(g, m), low, high, own);
            vf least{}, tried_m{};
            if (MINIMA) {
                tried_m = fit_minimum(g, scale, own), least = m * -tried_m;
                group(g).codes(scale, least, low, high, own);
            }
            const vf error = group(g).error(own, scale, least);
            const vi better = error < errors[g];
            sub[g] = select(better, tried, sub[g]), sub_m[g] = select(better, tried_m, sub_m[g]);
            errors[g] = select(better, error, errors[g]);
        }
    }

    Rounding run(const Search& search) {
        const Rounding found = start(search);
        if (found != Rounding::fine) return found;
        refit();
        for (int round = 0; round < search.rounds; ++round) {
            for (int i = 0; i < search.step_count; ++i) step(static_cast<float>(search.steps[i]));
            refit();
        }
        return Rounding::fine;
    }
};

}  // namespace ferrum::FERRUM_TIER
