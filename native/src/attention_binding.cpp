#include "attention_binding.hpp"

#include "attend_all.hpp"
#include "attention.hpp"
#include "row_norms.hpp"

namespace ferrum {

namespace {

void check_shape(const Runtime& runtime, const Shape& shape) {
    const auto& [group, layer, heads, kv_heads, dim, value_dim] = shape;
    require(group >= 0 && group < runtime.pool.size(), "layer group out of range");
    const GroupStore& s = runtime.pool.group(group);
    require(layer >= 0 && layer < s.num_layers && kv_heads == s.num_kv_heads && dim == s.key_dim, "layer, KV heads or head size do not match the pool");
    require(s.latent() ? value_dim > 0 && value_dim <= dim : value_dim == s.value_dim, "the width of values does not match the pool");
    require(kv_heads > 0 && heads % kv_heads == 0, "query heads must be a multiple of KV heads");
}

void check_axes(const std::vector<int32_t>& axes, int64_t pairs) {
    require(axes.empty() || static_cast<int64_t>(axes.size()) == pairs, "expected an axis for each pair");
    for (const int32_t axis : axes) require(axis >= 0 && axis < kPlaceAxes, "axis out of range");
}

}  // namespace

OperationPointer rope_store(const Runtime& runtime, const In<float>& q, const MaybeFloats& k, const MaybeFloats& v, const Out<float>& out,
                            const Shape& shape, const MaybeFloats& cosines, const MaybeFloats& sines, const HeadNorms& norms, float eps,
                            bool norm_last, const MaybeFloats& temperature, int64_t extent, std::shared_ptr<AdapterSite> site,
                            std::vector<int32_t> axes) {
    check_shape(runtime, shape);
    const auto& [group, layer, heads, kv_heads, dim, value_dim] = shape;
    const auto& [q_norm, k_norm, v_norm] = norms;
    require(k.has_value() == v.has_value(), "k and v must be given together");
    require(!runtime.pool.group(group).latent(), "the layer group stores no values");
    check_size(q_norm, dim, "expected a norm of a head of q");
    check_size(k_norm, dim, "expected a norm of a head of k");
    check_size(v_norm, value_dim, "expected a norm of a head of v");
    RopeArgs args{};
    args.q = q.data();
    args.k = data_or_null(k);
    args.v = data_or_null(v);
    args.q_out = out.data();
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = dim;
    args.pairs = cosines ? static_cast<int64_t>(cosines->shape(1)) : 0;
    require(2 * args.pairs <= dim, "rope has more pairs than a head");
    check_axes(axes, args.pairs);
    args.cosines = data_or_null(cosines);
    args.sines = data_or_null(sines);
    args.q_norm = data_or_null(q_norm);
    args.k_norm = data_or_null(k_norm);
    args.v_norm = data_or_null(v_norm);
    args.temperature = data_or_null(temperature);
    args.eps = eps;
    args.norm_last = norm_last;
    args.layer = layer;
    return std::make_shared<RopeStore>(args, group, extent, row_norms(runtime, site, 0, args.q_norm, nullptr),
                                       args.k_norm == nullptr ? nullptr : row_norms(runtime, site, 1, args.k_norm, nullptr),
                                       std::move(axes));
}

OperationPointer latent_store(const Runtime& runtime, const In<float>& q, const In<float>& q_rope, const In<float>& latent,
                              const In<float>& k_rope, const Out<float>& out, const Shape& shape, const In<float>& cosines,
                              const In<float>& sines, int64_t extent) {
    check_shape(runtime, shape);
    const auto& [group, layer, heads, kv_heads, dim, value_dim] = shape;
    require(runtime.pool.group(group).latent() && kv_heads == 1, "the layer group stores values, or several heads");
    LatentArgs args{};
    args.q = q.data();
    args.q_rope = q_rope.data();
    args.latent = latent.data();
    args.k_rope = k_rope.data();
    args.q_out = out.data();
    args.num_heads = heads;
    args.value_dim = value_dim;
    args.rope_dim = dim - value_dim;
    args.pairs = static_cast<int64_t>(cosines.shape(1));
    require(2 * args.pairs <= args.rope_dim, "rope has more pairs than the rotated part of a head");
    args.cosines = cosines.data();
    args.sines = sines.data();
    args.layer = layer;
    return std::make_shared<LatentStore>(args, group, extent);
}

OperationPointer attention(Runtime& runtime, const In<float>& q, const Out<float>& out, const Shape& shape,
                           const std::optional<ActivationTuple>& scaling, const MaybeFloats& sinks, int64_t window, int64_t chunk,
                           bool causal) {
    check_shape(runtime, shape);
    const auto& [group, layer, heads, kv_heads, dim, value_dim] = shape;
    check_size(sinks, heads, "expected one sink per head");
    AttentionArgs args{};
    args.value_dim = value_dim;
    args.q = q.data();
    args.out = out.data();
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = dim;
    args.scaling = activation_of(scaling);
    args.sinks = data_or_null(sinks);
    args.window = window;
    args.chunk = chunk;
    args.causal = causal;
    args.layer = layer;
    return std::make_shared<Attention>(runtime, args, group);
}

OperationPointer rotate(const In<float>& x, int64_t heads, int64_t dim, const MaybeFloats& cosines, const MaybeFloats& sines,
                        const MaybeFloats& norm, float eps, const Out<float>& out, int64_t extent, std::vector<int32_t> axes) {
    require(cosines.has_value() == sines.has_value(), "expected cosines and sines, or neither");
    require(!cosines || (cosines->ndim() == 2 && cosines->size() == sines->size()), "expected a cosine and a sine per pair");
    check_size(norm, dim, "expected a norm of a head");
    RopeArgs args{};
    args.q = x.data();
    args.q_out = out.data();
    args.num_heads = args.num_kv_heads = heads;
    args.head_dim = dim;
    args.pairs = cosines ? static_cast<int64_t>(cosines->shape(1)) : 0;
    require(2 * args.pairs <= dim, "rope has more pairs than a head");
    check_axes(axes, args.pairs);
    args.cosines = data_or_null(cosines);
    args.sines = data_or_null(sines);
    args.q_norm = data_or_null(norm);
    args.eps = eps;
    return std::make_shared<Rotate>(args, extent, std::move(axes));
}

OperationPointer attend_all(Runtime& runtime, const In<float>& q, const In<float>& k, const In<float>& v, const Out<float>& out,
                            const std::string& format, int64_t heads, int64_t dim, const std::optional<ActivationTuple>& scaling,
                            int64_t max_rows) {
    require(heads > 0 && dim > 0 && dim <= kMaxHead, "heads or head size out of range");
    const KvFormat kind = kv_format_of(format);
    require(kind != KvFormat::int8, "attention among all rows has no int8 form");
    const AttendAll::Args args{q.data(), k.data(), v.data(), out.data(), heads, dim, activation_of(scaling)};
    return std::make_shared<AttendAll>(runtime, args, kind, max_rows);
}

}  // namespace ferrum
