// Python bindings of the operations on the KV pool.
#pragma once

#include <memory>
#include <tuple>

#include "adapters.hpp"
#include "arrays.hpp"
#include "format_names.hpp"
#include "operations.hpp"

namespace ferrum {

using OperationPointer = std::shared_ptr<Operation>;

// Group, layer, heads, KV heads, width of a key and of a value.
using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

// Norms of heads of q, k and v.
using HeadNorms = std::tuple<MaybeFloats, MaybeFloats, MaybeFloats>;

OperationPointer rope_store(const Runtime& runtime, const In<float>& q, const MaybeFloats& k, const MaybeFloats& v, const Out<float>& out,
                            const Shape& shape, const MaybeFloats& cosines, const MaybeFloats& sines, const HeadNorms& norms, float eps,
                            bool norm_last, const MaybeFloats& temperature, int64_t extent, std::shared_ptr<AdapterSite> site,
                            std::vector<int32_t> axes);

OperationPointer latent_store(const Runtime& runtime, const In<float>& q, const In<float>& q_rope, const In<float>& latent,
                              const In<float>& k_rope, const Out<float>& out, const Shape& shape, const In<float>& cosines,
                              const In<float>& sines, int64_t extent);

OperationPointer attention(Runtime& runtime, const In<float>& q, const Out<float>& out, const Shape& shape,
                           const std::optional<ActivationTuple>& scaling, const MaybeFloats& sinks, int64_t window, int64_t chunk,
                           bool causal);

OperationPointer rotate(const In<float>& x, int64_t heads, int64_t dim, const MaybeFloats& cosines, const MaybeFloats& sines,
                        const MaybeFloats& norm, float eps, const Out<float>& out, int64_t extent, std::vector<int32_t> axes);

OperationPointer attend_all(Runtime& runtime, const In<float>& q, const In<float>& k, const In<float>& v, const Out<float>& out,
                            const std::string& format, int64_t heads, int64_t dim, const std::optional<ActivationTuple>& scaling,
                            int64_t max_rows);

}  // namespace ferrum
