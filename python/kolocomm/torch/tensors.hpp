// SPDX-License-Identifier: Apache-2.0
//
// Tensors as Kolo's buffers: types, operators, lists of tensors that lie apart, parts of different lengths.
#pragma once

#include "work.hpp"

namespace kolotorch
{

inline bool find_type(at::ScalarType t, kolo_type_t *type)
{
    switch (t) {
    case at::kChar:
        *type = KOLO_INT8;
        return true;
    case at::kByte:
        *type = KOLO_UINT8;
        return true;
    case at::kShort:
        *type = KOLO_INT16;
        return true;
    case at::kUInt16:
        *type = KOLO_UINT16;
        return true;
    case at::kInt:
        *type = KOLO_INT32;
        return true;
    case at::kUInt32:
        *type = KOLO_UINT32;
        return true;
    case at::kLong:
        *type = KOLO_INT64;
        return true;
    case at::kUInt64:
        *type = KOLO_UINT64;
        return true;
    case at::kHalf:
        *type = KOLO_FLOAT16;
        return true;
    case at::kBFloat16:
        *type = KOLO_BFLOAT16;
        return true;
    case at::kFloat:
        *type = KOLO_FLOAT32;
        return true;
    case at::kDouble:
        *type = KOLO_FLOAT64;
        return true;
    case at::kFloat8_e4m3fn:
        *type = KOLO_FLOAT8_E4M3;
        return true;
    case at::kFloat8_e5m2:
        *type = KOLO_FLOAT8_E5M2;
        return true;
    case at::kBool:
        *type = KOLO_BOOL;
        return true;
    default:
        return false;
    }
}

// What is only moved goes as bytes when Kolo has no such type (complex numbers, for instance).
struct Moved {
    kolo_type_t type = KOLO_UINT8;
    size_t scale = 1;
    explicit Moved(const at::Tensor &t)
    {
        if (!find_type(t.scalar_type(), &type)) scale = t.element_size();
    }
    size_t count(int64_t n) const
    {
        return (size_t)n * scale;
    }
};

// GPUs reduce no bool: they are bytes of 0 and 1 there, "or" is the greatest of them and "and" the least.
inline bool is_bool_of_gpu(const at::Tensor &t)
{
    return t.is_cuda() && t.scalar_type() == at::kBool;
}

inline kolo_type_t reduced_type(const at::Tensor &t)
{
    kolo_type_t type;
    if (is_bool_of_gpu(t)) return KOLO_UINT8;
    TORCH_CHECK(find_type(t.scalar_type(), &type), "Invalid scalar type: kolo cannot reduce tensors of type ",
                t.scalar_type());
    return type;
}

// Complex numbers are pairs of reals for sums.
inline at::Tensor reduced_view(const at::Tensor &t, const c10d::ReduceOp &op)
{
    if (!t.is_complex()) return t;
    TORCH_CHECK(c10d::isComplexViewAsRealAllowed(op), "all_reduce does not support ",
                "this operator on complex tensors (kolo)");
    return at::view_as_real(t);
}

// An operator for one call.
class Op
{
  public:
    Op(const c10d::ReduceOp &op, const at::Tensor &t, kolo_comm_t comm) : comm_(comm)
    {
        if (is_bool_of_gpu(t)) {
            op_of_bool(op);
            return;
        }
        switch ((c10d::ReduceOp::RedOpType)op) {
        case c10d::ReduceOp::SUM:
            op_ = KOLO_SUM;
            break;
        case c10d::ReduceOp::AVG:
            op_ = KOLO_AVG;
            break;
        case c10d::ReduceOp::PRODUCT:
            op_ = KOLO_PROD;
            break;
        case c10d::ReduceOp::MIN:
            op_ = KOLO_MIN;
            break;
        case c10d::ReduceOp::MAX:
            op_ = KOLO_MAX;
            break;
        case c10d::ReduceOp::BAND:
            op_ = KOLO_BAND;
            break;
        case c10d::ReduceOp::BOR:
            op_ = KOLO_BOR;
            break;
        case c10d::ReduceOp::BXOR:
            op_ = KOLO_BXOR;
            break;
        case c10d::ReduceOp::PREMUL_SUM:
            premultiplied(op, t);
            break;
        default:
            TORCH_CHECK(false, "Cannot use this ReduceOp with backend kolo");
        }
    }
    ~Op()
    {
        if (made_) kolo_op_destroy(op_, comm_);
    }
    Op(const Op &) = delete;
    operator kolo_op_t() const
    {
        return op_;
    }

  private:
    void op_of_bool(const c10d::ReduceOp &op)
    {
        switch ((c10d::ReduceOp::RedOpType)op) {
        case c10d::ReduceOp::SUM:
        case c10d::ReduceOp::MAX:
        case c10d::ReduceOp::BOR:
            op_ = KOLO_MAX;
            break;
        case c10d::ReduceOp::PRODUCT:
        case c10d::ReduceOp::MIN:
        case c10d::ReduceOp::BAND:
            op_ = KOLO_MIN;
            break;
        default:
            TORCH_CHECK(false, "Cannot use this ReduceOp on bool with backend kolo");
        }
    }
    void premultiplied(const c10d::ReduceOp &op, const at::Tensor &t)
    {
        const auto *extra = reinterpret_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
        at::Tensor factor = extra->tensor_factor.defined()
                                ? extra->tensor_factor.to(at::kCPU, t.scalar_type()).contiguous()
                                : at::full({1}, extra->double_factor, t.options().device(at::kCPU));
        must(kolo_op_create_premul_sum(&op_, factor.data_ptr(), reduced_type(t), comm_));
        made_ = true;
    }
    kolo_comm_t comm_;
    kolo_op_t op_ = KOLO_SUM;
    bool made_ = false;
};

// One contiguous tensor of all elements of a list; the list's own memory where it has a single contiguous tensor.
inline at::Tensor flat(const Tensors &ts)
{
    if (ts.size() == 1) return ts[0].contiguous().view(-1);
    Tensors all;
    for (auto &t : ts) all.push_back(t.contiguous().view(-1));
    return at::cat(all);
}

// Memory for the elements of a list, not yet filled.
inline at::Tensor room(const Tensors &ts)
{
    int64_t n = 0;
    if (ts.size() == 1 && ts[0].is_contiguous()) return ts[0].view(-1);
    for (auto &t : ts) n += t.numel();
    return at::empty({n}, ts[0].options());
}

inline void spread(const at::Tensor &from, const Tensors &to)
{
    int64_t at = 0;
    for (auto &t : to) {
        if (t.numel() && t.data_ptr() != (char *)from.data_ptr() + at * (int64_t)from.element_size())
            t.copy_(from.narrow(0, at, t.numel()).view(t.sizes()));
        at += t.numel();
    }
}

// A tensor's memory, or a contiguous copy of it that goes back at the end.
struct Whole {
    at::Tensor tensor, memory;
    Whole(const at::Tensor &t, bool filled)
        : tensor(t), memory(t.is_contiguous() ? t
                            : filled          ? t.contiguous()
                                              : at::empty(t.sizes(), t.options()))
    {
    }
    void give_back() const
    {
        if (!memory.is_same(tensor)) tensor.copy_(memory);
    }
    void *data() const
    {
        return memory.data_ptr();
    }
};

inline std::vector<size_t> counts_of(const Tensors &ts, const Moved &m)
{
    std::vector<size_t> counts;
    for (auto &t : ts) counts.push_back(m.count(t.numel()));
    return counts;
}

inline std::vector<size_t> displs_of(const std::vector<size_t> &counts)
{
    std::vector<size_t> displs(counts.size());
    for (size_t i = 1; i < displs.size(); i++) displs[i] = displs[i - 1] + counts[i - 1];
    return displs;
}

inline bool are_equal(const std::vector<size_t> &counts)
{
    return std::all_of(counts.begin(), counts.end(), [&](size_t n) { return n == counts[0]; });
}

// A list as one buffer: where its tensors lie in memory of the host, with the distances between them, or a copy of
// them, which goes back at the end.
class Parts
{
  public:
    // With a type: numbers of that type, which are reduced, instead of bytes that are moved.
    Parts(const Tensors &ts, bool filled, kolo_type_t type = KOLO_TYPE_COUNT)
        : tensors_(ts), moved(ts[0]), counts(counts_of(ts, moved))
    {
        if (type != KOLO_TYPE_COUNT) {
            moved.type = type;
            for (size_t i = 0; i < ts.size(); i++) counts[i] = ts[i].numel();
        }
        if (in_place()) return;
        copy_ = filled ? flat(ts) : room(ts);
        base = copy_.data_ptr(), displs = displs_of(counts);
    }
    void give_back() const
    {
        if (copy_.defined()) spread(copy_, tensors_);
    }

  private:
    bool in_place()
    {
        size_t unit = kolo_type_size(moved.type);
        uintptr_t low = UINTPTR_MAX;
        for (auto &t : tensors_) {
            if (!t.is_cpu() || !t.is_contiguous()) return false;
            if (t.numel()) low = std::min(low, (uintptr_t)t.data_ptr());
        }
        if (low == UINTPTR_MAX) return false;
        for (auto &t : tensors_) {
            uintptr_t away = t.numel() ? (uintptr_t)t.data_ptr() - low : 0;
            if (away % unit) return false;
            displs.push_back(away / unit);
        }
        base = (void *)low;
        return true;
    }
    Tensors tensors_;
    at::Tensor copy_;

  public:
    Moved moved;
    std::vector<size_t> counts, displs;
    void *base = nullptr;
};

// Lists of parts of this size (together) go without a copy; smaller ones by the faster calls for one buffer. It is
// the same on all ranks.
constexpr int64_t APART_BYTES = 256 << 10;

inline bool go_apart(const at::Tensor &one, int size)
{
    return one.is_cpu() && (int64_t)one.nbytes() * size >= APART_BYTES;
}

// Every rank gets every rank's `in`, one behind the other in `out`.
inline void gather_all(const at::Tensor &in, const Tensors &out, const Place &p)
{
    Moved m(in);
    at::Tensor src = in.contiguous();
    if (are_equal(counts_of(out, m)) && !go_apart(in, (int)out.size())) {
        at::Tensor dst = room(out);
        must(kolo_all_gather(src.data_ptr(), dst.data_ptr(), m.count(in.numel()), m.type, p.comm, p.stream));
        spread(dst, out);
        return;
    }
    Parts dst(out, false);
    must(
        kolo_all_gatherv(src.data_ptr(), dst.base, dst.counts.data(), dst.displs.data(), m.type, p.comm, p.stream));
    dst.give_back();
}

inline void gather_into(const at::Tensor &in, const at::Tensor &out, const Place &p)
{
    at::Tensor src = in.contiguous();
    Whole dst(out, false);
    Moved m(src);
    must(kolo_all_gather(src.data_ptr(), dst.data(), m.count(src.numel()), m.type, p.comm, p.stream));
    dst.give_back();
}

inline void reduce_all(const at::Tensor &t, const c10d::ReduceOp &op, const Place &p)
{
    Whole all(reduced_view(t, op), true);
    kolo_type_t type = reduced_type(all.memory);
    must(kolo_all_reduce(all.data(), all.data(), all.memory.numel(), type, Op(op, all.memory, p.comm), p.comm,
                         p.stream));
    all.give_back();
}

inline void scatter_sum(const at::Tensor &in, const at::Tensor &out, const c10d::ReduceOp &op, const Place &p)
{
    at::Tensor src = reduced_view(in, op).contiguous();
    Whole dst(reduced_view(out, op), false);
    must(kolo_reduce_scatter(src.data_ptr(), dst.data(), dst.memory.numel(), reduced_type(src), Op(op, src, p.comm),
                             p.comm, p.stream));
    dst.give_back();
}

inline void exchange(const at::Tensor &src, const std::vector<size_t> &send, const at::Tensor &dst,
                     const std::vector<size_t> &recv, const Place &p)
{
    must(kolo_all_to_allv(src.data_ptr(), send.data(), displs_of(send).data(), dst.data_ptr(), recv.data(),
                          displs_of(recv).data(), Moved(src).type, p.comm, p.stream));
}

// The sum of sparse tensors: all rows of all ranks, which torch then adds up.
inline void reduce_sparse(at::Tensor &t, int size, const Place &p)
{
    at::Tensor mine = t.coalesce(), rows = mine.indices().t().contiguous(), values = mine.values().contiguous();
    at::Tensor count = at::full({1}, rows.size(0), rows.options()), counts = at::empty({size}, rows.options());
    gather_into(count, counts, p);
    Tensors all_rows, all_values;
    for (int r = 0; r < size; r++) {
        int64_t n = counts[r].item<int64_t>();
        auto shape = values.sizes().vec();
        shape[0] = n;
        all_rows.push_back(at::empty({n, rows.size(1)}, rows.options()));
        all_values.push_back(at::empty(shape, values.options()));
    }
    gather_all(rows, all_rows, p);
    gather_all(values, all_values, p);
    at::Tensor sum =
        at::sparse_coo_tensor(at::cat(all_rows).t().contiguous(), at::cat(all_values), t.sizes()).coalesce();
    t.copy_(sum);
}

} // namespace kolotorch
