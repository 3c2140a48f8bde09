#include "rope_table.hpp"

#include <cstring>

#include "float_mode.hpp"

namespace ferrum {

namespace {

constexpr double kTwoByPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPi[3] = {0x1.921fb54p+0, 0x1.10b461p-30, 0x1.a62633145c06ep-58};  // products of the first two are exact
constexpr double kMost = 0x1p24;
constexpr double kWhole = 0x1.8p52;  // added, it leaves no bits for a fraction

constexpr double factorial(int n) { return n < 2 ? 1.0 : n * factorial(n - 1); }

constexpr double kSine[] = {1 / factorial(17), -1 / factorial(15), 1 / factorial(13), -1 / factorial(11),
                            1 / factorial(9),  -1 / factorial(7),  1 / factorial(5),  -1 / factorial(3)};
constexpr double kCosine[] = {-1 / factorial(18), 1 / factorial(16), -1 / factorial(14), 1 / factorial(12),
                              -1 / factorial(10), 1 / factorial(8),  -1 / factorial(6),  1 / factorial(4)};

double horner(double x, const double (&c)[8]) {
    double total = c[0];
    for (int i = 1; i < 8; ++i) total = total * x + c[i];
    return total;
}

}  // namespace

Turn::Turn(double angle) {
    const double x = __builtin_fabs(angle) < kMost ? angle : angle - kMost * __builtin_trunc(angle / kMost);
    const double shifted = x * kTwoByPi + kWhole, n = shifted - kWhole;
    const double r = ((x - n * kHalfPi[0]) - n * kHalfPi[1]) - n * kHalfPi[2], z = r * r;
    const double s = r + (r * z) * horner(z, kSine), c = (1.0 - 0.5 * z) + (z * z) * horner(z, kCosine);
    uint64_t quarters;  // in the low bits
    std::memcpy(&quarters, &shifted, sizeof quarters);
    const double first = (quarters & 1) != 0 ? s : c, second = (quarters & 1) != 0 ? c : s;
    cosine = ((quarters + 1) & 2) != 0 ? -first : first;
    sine = (quarters & 2) != 0 ? -second : second;
}

void rope_rows(const float* frequencies, int64_t pairs, double scaling, int64_t begin, int64_t end, float* cosines,
               float* sines) {
    const FloatMode plain;
    for (int64_t position = begin; position < end; ++position)
        for (int64_t pair = 0; pair < pairs; ++pair, ++cosines, ++sines) {
            const Turn turn(static_cast<double>(static_cast<float>(position) * frequencies[pair]));
            *cosines = static_cast<float>(turn.cosine * scaling);
            *sines = static_cast<float>(turn.sine * scaling);
        }
}

}  // namespace ferrum
