// Norms whose weights and biases adapters replace; see kernels/adapters.py.
#pragma once

#include <memory>
#include <vector>

#include "adapters.hpp"

namespace ferrum {

// The weight and the bias of a norm for each row of a step: those of its adapter, or the base's.
class RowNorms {
public:
    // The norm is that of the site's change `index`, over the rows of a step. The bias may be null.
    RowNorms(const Runtime& runtime, std::shared_ptr<AdapterSite> site, size_t index, const float* weight, const float* bias)
        : runtime_(runtime), site_(std::move(site)), index_(index), weight_(weight), bias_(bias) {}

    // List those of the step's rows. New weights are f32.
    void choose();
    // [rows], or null if all rows have the base's.
    const float* const* weights() const { return weights_.empty() ? nullptr : weights_.data(); }
    const float* const* biases() const { return biases_.empty() ? nullptr : biases_.data(); }

private:
    const Runtime& runtime_;
    std::shared_ptr<AdapterSite> site_;
    size_t index_;
    const float* weight_;
    const float* bias_;
    std::vector<const float*> weights_, biases_;
};

// Return the norms of a site's change, or null without a site.
inline RowNormsPointer row_norms(const Runtime& runtime, std::shared_ptr<AdapterSite> site, size_t index, const float* weight,
                                 const float* bias) {
    return site == nullptr ? nullptr : std::make_shared<RowNorms>(runtime, std::move(site), index, weight, bias);
}

}  // namespace ferrum
