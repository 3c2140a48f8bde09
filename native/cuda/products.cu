// Products by weights in blocks, compiled for each format: -DFERRUM_FORMAT=q8_0.
#include "few_rows.hpp"
#include "many_rows.hpp"

using namespace ferrum::cuda;

namespace {

constexpr ferrum::Format kFormat = ferrum::Format::FERRUM_FORMAT;

// How many of the tile's rows the group has.
FERRUM_DEVICE int rows_from(const GroupRows& rows, Int first, int most) {
    const Int left = rows.end - first;
    return static_cast<int>(left < most ? left : most);
}

}  // namespace

FERRUM_ROOMY_KERNEL(product_few, BlockProducts) {
    using Few = FewRows<kFormat>;
    const Place place(a, 1);
    const ProductArgs& product = a.of[place.product];
    const GroupRows rows(product);
    const Int first = rows.begin + block_x() * Few::kRows;
    if (first >= rows.end) return;
    FERRUM_SHARED(Byte, slots, Few::kSlots * Few::kSlot);
    FERRUM_SHARED(int, sums, 2 * Few::kSums);
    FERRUM_SHARED(float, factors, 2 * Few::kFactors);
    const Few few(product, place.panel, first, rows_from(rows, first, Few::kRows), shared_points<kFormat>(a));
    few.run(slots, sums, factors, place.panel * kPanel + lane(), a.rounded);
}

FERRUM_KERNEL(product_many, BlockProducts) {
    using Many = ManyRows<kFormat>;
    const Place place(a, kTilePanels);
    const ProductArgs& product = a.of[place.product];
    const GroupRows rows(product);
    const Int first = rows.begin + block_x() * kTileRows;
    if (first >= rows.end) return;
    FERRUM_SHARED(Byte, codes, Many::kCodeBytes);
    FERRUM_SHARED(float, scales, Many::kNumbers);
    FERRUM_SHARED(Byte, inputs, 2 * Many::kInputBytes);
    const Many many(product, first, rows_from(rows, first, kTileRows), place.panel, shared_points<kFormat>(a), codes, scales, inputs);
    many.run();
}
