// SPDX-License-Identifier: Apache-2.0
//
// torch.distributed's backend "kolo". A group has a communicator for tensors in memory of the host, whose
// collectives are made in order by its lane (work.hpp) and which carries messages (messages.hpp), and one for
// tensors of this rank's GPU, made by the first operation on them (device.hpp). Ranks meet by torch's store: the id
// there is the job's secret.
//
// Compiled by kolocomm.torch for the torch that is there, on first use.
#include "changes.hpp"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

using c10d::OpType;
#ifdef C10D_BACKEND_HAS_WINDOW
constexpr OpType REDUCE_SCATTERS = OpType::REDUCE_SCATTER_TENSOR_COALESCED;
constexpr OpType ALL_GATHERS = OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#else // older torch has no names of their own for them
constexpr OpType REDUCE_SCATTERS = OpType::COALESCED, ALL_GATHERS = OpType::COALESCED;
#endif

namespace kolotorch
{

class Backend : public Changing
{
  public:
    using Changing::Changing;

    // ---- reductions ------------------------------------------------------------------------------------------

    WorkPtr allreduce(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        if (one(ts, true)[0].is_sparse()) return allreduce_sparse(ts, o);
        return reduce_list(ts, OpType::ALLREDUCE, o.reduceOp, how(o));
    }
    WorkPtr allreduce_coalesced(Tensors &ts, const c10d::AllreduceCoalescedOptions &o) override
    {
        return reduce_list(ts, OpType::ALLREDUCE_COALESCED, o.reduceOp, how(o));
    }
    WorkPtr allreduce_sparse(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        at::Tensor t = one(ts, true)[0];
        TORCH_CHECK(o.reduceOp == c10d::ReduceOp::SUM,
                    "kolo: sparse tensors can be summed only (allreduce with ReduceOp.SUM)");
        return submit(OpType::_ALLREDUCE_SPARSE, "kolo:sparse_all_reduce", {}, {t}, how(o),
                      [t, n = size_](const Place &p) mutable { reduce_sparse(t, n, p); });
    }
    WorkPtr reduce(Tensors &ts, const c10d::ReduceOptions &o) override
    {
        at::Tensor t = one(ts)[0];
        auto op = o.reduceOp;
        int root = (int)o.rootRank;
        return submit(OpType::REDUCE, "kolo:reduce", {t}, {t}, how(o),
                      [t, op, root, here = rank_ == root](const Place &p) {
                          Whole all(reduced_view(t, op), true);
                          must(kolo_reduce(all.data(), all.data(), all.memory.numel(), reduced_type(all.memory),
                                           Op(op, all.memory, p.comm), root, p.comm, p.stream));
                          if (here) all.give_back();
                      });
    }
    WorkPtr reduce_scatter(Tensors &outs, std::vector<Tensors> &ins, const c10d::ReduceScatterOptions &o) override
    {
        at::Tensor out = one(outs)[0];
        Tensors in = list_of("reduce_scatter: input", ins, out);
        fits("reduce_scatter: input", (size_t)rank_, in[(size_t)rank_], out.numel());
        auto op = o.reduceOp;
        return submit(OpType::REDUCE_SCATTER, "kolo:reduce_scatter", in, {out}, how(o),
                      [in, out, op](const Place &p) {
                          const at::Tensor &one = in[0];
                          TORCH_CHECK(!one.is_complex(), "kolo: reduce_scatter with lists of complex tensors is "
                                                         "not supported: pass view_as_real of them");
                          Parts src(in, true, reduced_type(one));
                          Whole dst(out, false);
                          must(kolo_reduce_scatterv(src.base, dst.data(), src.counts.data(), src.displs.data(),
                                                    reduced_type(one), Op(op, one, p.comm), p.comm, p.stream));
                          dst.give_back();
                      });
    }
    WorkPtr _reduce_scatter_base(at::Tensor &out, at::Tensor &in, const c10d::ReduceScatterOptions &o) override
    {
        TORCH_CHECK(in.numel() == out.numel() * size_,
                    "input tensor must be the same size as output size times world size");
        TORCH_CHECK(in.scalar_type() == out.scalar_type(),
                    "input tensor must be the same type as the output tensor");
        auto op = o.reduceOp;
        return submit(OpType::_REDUCE_SCATTER_BASE, "kolo:_reduce_scatter_base", {in}, {out}, how(o),
                      [in, out, op](const Place &p) { scatter_sum(in, out, op, p); });
    }
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const c10d::ReduceScatterOptions &o) override
    {
        auto op = o.reduceOp;
        pairs("reduce_scatter: input", ins, outs);
        return submit(REDUCE_SCATTERS, "kolo:reduce_scatter", ins, outs, how(o), [ins, outs, op](const Place &p) {
            for (size_t i = 0; i < ins.size(); i++) scatter_sum(ins[i], outs[i], op, p);
        });
    }

    // ---- data that is moved ----------------------------------------------------------------------------------

    WorkPtr broadcast(Tensors &ts, const c10d::BroadcastOptions &o) override
    {
        at::Tensor t = one(ts)[0];
        int root = (int)o.rootRank;
        return submit(
            OpType::BROADCAST, "kolo:broadcast", {t}, {t}, how(o), [t, root, here = rank_ == root](const Place &p) {
                Whole all(t, here);
                Moved m(t);
                must(kolo_broadcast(all.data(), all.data(), m.count(t.numel()), m.type, root, p.comm, p.stream));
                if (!here) all.give_back();
            });
    }
    WorkPtr allgather(std::vector<Tensors> &outs, Tensors &ins, const c10d::AllgatherOptions &o) override
    {
        at::Tensor in = one(ins)[0];
        Tensors out = list_of("allgather: output", outs, in);
        fits("allgather: output", (size_t)rank_, out[(size_t)rank_], in.numel());
        return submit(OpType::ALLGATHER, "kolo:all_gather", {in}, out, how(o),
                      [in, out](const Place &p) { gather_all(in, out, p); });
    }
    WorkPtr allgather_coalesced(std::vector<Tensors> &outs, Tensors &ins, const c10d::AllgatherOptions &o) override
    {
        Tensors all;
        TORCH_CHECK((int)outs.size() == size_, "output lists should be equal to world size");
        for (auto &l : outs) {
            TORCH_CHECK(l.size() == ins.size(), "invalid output size: (expected length ", ins.size(), ", got ",
                        l.size(), ")");
            for (size_t i = 0; i < l.size(); i++) {
                same_type(ins[i], {l[i]});
                fits("allgather: output", i, l[i], ins[i].numel());
            }
            all.insert(all.end(), l.begin(), l.end());
        }
        return submit(OpType::ALLGATHER_COALESCED, "kolo:all_gather", ins, all, how(o),
                      [outs, ins](const Place &p) {
                          for (size_t i = 0; i < ins.size(); i++) {
                              Tensors out;
                              for (auto &l : outs) out.push_back(l[i]);
                              gather_all(ins[i], out, p);
                          }
                      });
    }
    WorkPtr _allgather_base(at::Tensor &out, at::Tensor &in, const c10d::AllgatherOptions &o) override
    {
        TORCH_CHECK(out.numel() == in.numel() * size_,
                    "output tensor size must be equal to world_size times input tensor size");
        TORCH_CHECK(out.scalar_type() == in.scalar_type(), "output tensor must have the same type as input tensor");
        return submit(OpType::_ALLGATHER_BASE, "kolo:_all_gather_base", {in}, {out}, how(o),
                      [in, out](const Place &p) { gather_into(in, out, p); });
    }
    WorkPtr allgather_into_tensor_coalesced(Tensors &outs, Tensors &ins, const c10d::AllgatherOptions &o) override
    {
        pairs("allgather: output", outs, ins);
        return submit(ALL_GATHERS, "kolo:all_gather_into", ins, outs, how(o), [ins, outs](const Place &p) {
            for (size_t i = 0; i < ins.size(); i++) gather_into(ins[i], outs[i], p);
        });
    }
    WorkPtr alltoall_base(at::Tensor &out, at::Tensor &in, std::vector<int64_t> &os, std::vector<int64_t> &is,
                          const c10d::AllToAllOptions &o) override
    {
        TORCH_CHECK(out.scalar_type() == in.scalar_type(), "output tensor must have the same type as input tensor");
        auto send = splits(in, is), recv = splits(out, os);
        return submit(OpType::ALLTOALL_BASE, "kolo:all_to_all", {in}, {out}, how(o),
                      [in, out, send, recv](const Place &p) {
                          Whole dst(out, false);
                          exchange(in.contiguous(), send, dst.memory, recv, p);
                          dst.give_back();
                      });
    }
    WorkPtr alltoall(Tensors &outs, Tensors &ins, const c10d::AllToAllOptions &o) override
    {
        TORCH_CHECK((int)outs.size() == size_ && (int)ins.size() == size_,
                    "alltoall: one tensor per rank is needed");
        Tensors out = outs, in = ins;
        same_type(in[0], in);
        same_type(in[0], out);
        return submit(OpType::ALLTOALL, "kolo:all_to_all", in, out, how(o), [in, out](const Place &p) {
            Parts src(in, true), dst(out, false);
            must(kolo_all_to_allv(src.base, src.counts.data(), src.displs.data(), dst.base, dst.counts.data(),
                                  dst.displs.data(), src.moved.type, p.comm, p.stream));
            dst.give_back();
        });
    }
    WorkPtr gather(std::vector<Tensors> &outs, Tensors &ins, const c10d::GatherOptions &o) override
    {
        at::Tensor in = one(ins)[0];
        Tensors out = rank_ == o.rootRank ? list_of("gather: output", outs, in) : Tensors();
        fit("gather: output", out, in.numel());
        return gather_list(in, out, (int)o.rootRank, how(o), true);
    }
    WorkPtr gather_into_tensor(at::Tensor &out, at::Tensor &in,
                               const c10d::GatherOptions &o) // override, where torch has it
    {
        Tensors parts;
        if (rank_ == o.rootRank) {
            TORCH_CHECK(out.numel() == in.numel() * size_,
                        "output tensor size must be equal to world_size times input tensor size");
            parts.push_back(out);
        }
        return gather_list(in, parts, (int)o.rootRank, how(o), false);
    }
    WorkPtr scatter(Tensors &outs, std::vector<Tensors> &ins, const c10d::ScatterOptions &o) override
    {
        at::Tensor out = one(outs)[0];
        int root = (int)o.rootRank;
        Tensors in = rank_ == root ? list_of("scatter: input", ins, out) : Tensors();
        fit("scatter: input", in, out.numel());
        return submit(
            OpType::SCATTER, "kolo:scatter", in, {out}, how(o), [in, out, root, n = size_](const Place &p) {
                Whole dst(out, false);
                Moved m(out);
                if (go_apart(out, n)) {
                    std::vector<size_t> counts((size_t)n, m.count(out.numel()));
                    std::unique_ptr<Parts> src(in.empty() ? nullptr : new Parts(in, true));
                    must(kolo_scatterv(src ? src->base : nullptr, counts.data(), src ? src->displs.data() : nullptr,
                                       dst.data(), m.type, root, p.comm, p.stream));
                    dst.give_back();
                    return;
                }
                at::Tensor src = in.empty() ? at::Tensor() : flat(in);
                must(kolo_scatter(in.empty() ? nullptr : src.data_ptr(), dst.data(), m.count(out.numel()), m.type,
                                  root, p.comm, p.stream));
                dst.give_back();
            });
    }
    WorkPtr barrier(const c10d::BarrierOptions &o) override
    {
        std::shared_ptr<Device> device;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            device = device_;
        }
        if (device) { // what was queued before the barrier is complete behind it
            device->guard().synchronizeStream(device->current());
            must(kolo_comm_synchronize(device->comm()));
        }
        return submit(OpType::BARRIER, "kolo:barrier", {}, {}, how(o),
                      [](const Place &p) { must(kolo_barrier(p.comm, p.stream)); });
    }
    void monitoredBarrier(const c10d::BarrierOptions &o, bool all) override
    {
        configured();
        auto limit = o.timeout == c10d::kUnsetTimeout ? timeout_ : o.timeout;
        monitored_barrier(main_->comm(), rank_, size_, limit, all);
    }
    WorkPtr send(Tensors &ts, int peer, int tag) override
    {
        return message(OpType::SEND, "kolo:send", one(ts)[0], peer, tag);
    }
    WorkPtr recv(Tensors &ts, int peer, int tag) override
    {
        return message(OpType::RECV, "kolo:recv", one(ts)[0], peer, tag);
    }
    WorkPtr recvAnysource(Tensors &ts, int tag) override
    {
        return message(OpType::RECVANYSOURCE, "kolo:recvAnySource", one(ts)[0], KOLO_ANY_SOURCE, tag);
    }

  protected:
    c10::intrusive_ptr<c10d::Backend> made(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                           std::chrono::milliseconds timeout, kolo_comm_t comm, std::string key,
                                           const c10::intrusive_ptr<Options> &opts) override
    {
        return named(c10::make_intrusive<Backend>(std::move(store), rank, size, timeout, comm, std::move(key)),
                     opts);
    }
    c10::intrusive_ptr<c10d::Backend> met(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                          std::chrono::milliseconds timeout) override
    {
        return c10::make_intrusive<Backend>(std::move(store), rank, size, timeout, false);
    }

  private:
    WorkPtr reduce_list(const Tensors &ts, OpType type, const c10d::ReduceOp &op, How how)
    {
        for (auto &t : ts) check(t);
        return submit(type, "kolo:all_reduce", ts, ts, how, [ts, op](const Place &p) {
            for (auto &t : ts) reduce_all(t, op, p);
        });
    }
    WorkPtr gather_list(const at::Tensor &in, const Tensors &out, int root, How how, bool list)
    {
        return submit(
            OpType::GATHER, "kolo:gather", {in}, out, how, [in, out, root, list, n = size_](const Place &p) {
                at::Tensor src = in.contiguous();
                Moved m(src);
                if (list && go_apart(in, n)) {
                    std::vector<size_t> counts((size_t)n, m.count(in.numel()));
                    std::unique_ptr<Parts> dst(out.empty() ? nullptr : new Parts(out, false));
                    must(kolo_gatherv(src.data_ptr(), dst ? dst->base : nullptr, counts.data(),
                                      dst ? dst->displs.data() : nullptr, m.type, root, p.comm, p.stream));
                    if (dst) dst->give_back();
                    return;
                }
                at::Tensor dst = out.empty() ? at::Tensor() : room(out);
                must(kolo_gather(src.data_ptr(), out.empty() ? nullptr : dst.data_ptr(), m.count(src.numel()),
                                 m.type, root, p.comm, p.stream));
                if (!out.empty()) spread(dst, out);
            });
    }
};

} // namespace kolotorch

PYBIND11_MODULE(_c10d, m)
{
    py::gil_scoped_acquire locked;
    py::module_::import("torch.distributed");
    py::class_<kolotorch::Backend, c10d::Backend, c10::intrusive_ptr<kolotorch::Backend>>(m, "ProcessGroupKolo")
        // new_group() calls it on ranks outside of a new group; groups of Kolo's are made by their members alone
        .def("perform_nocolor_split", [](kolotorch::Backend &, const py::object &) {});
    m.def(
        "create",
        [](const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
           const std::chrono::milliseconds &timeout, bool reconfigurable) {
            return c10::make_intrusive<kolotorch::Backend>(store, rank, size, timeout, reconfigurable);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "wait_for_hooks", [] { kolotorch::Tellers::all().wait(); }, py::call_guard<py::gil_scoped_release>());
}
