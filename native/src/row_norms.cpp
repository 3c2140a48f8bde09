#include "row_norms.hpp"

namespace ferrum {

void RowNorms::choose() {
    const Step& step = runtime_.step;
    weights_.clear();
    biases_.clear();
    for (const StepAdapter& each : step.adapters) {
        const AdapterEntry* entry = site_->entry(each.slot);
        if (entry == nullptr || !entry->changes[index_]) continue;
        const AdapterChange& change = *entry->changes[index_];
        const auto rows = static_cast<size_t>(step.count(kRows));
        weights_.resize(rows, weight_);
        biases_.resize(rows, bias_);
        const auto* weight = change.replaced.data == nullptr ? weight_ : reinterpret_cast<const float*>(change.replaced.data);
        const float* bias = change.bias == nullptr ? bias_ : change.bias;
        for (const int32_t row : each.rows) {
            weights_[static_cast<size_t>(row)] = weight;
            biases_[static_cast<size_t>(row)] = bias;
        }
    }
}

}  // namespace ferrum
