// SPDX-License-Identifier: Apache-2.0
//
// torch.distributed's backend "kolo" for tensors in memory of the host. A group has a communicator for collectives,
// whose calls are made in order by its lane; messages have one of two ranks for each pair, direction and tag, since
// messages of one communicator have an order that isend and irecv do not have. All meet by torch's store: the id
// there is the job's secret.
//
// Compiled by kolocomm.torch for the torch that is there, on first use.
#include "tensors.hpp"

#include <map>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

using c10d::OpType;

namespace kolotorch
{

class Backend : public c10d::Backend
{
  public:
    using Options = c10d::Backend::Options;
    Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
            bool reconfigurable)
        : c10d::Backend(rank, size), store_(store->clone()), timeout_(timeout), reconfigurable_(reconfigurable),
          handle_("kolo:" + std::to_string(rank) + ":" + std::to_string(getpid()))
    {
        if (!reconfigurable_) open("all"); // now, so that a rank which does not come is named here
    }
    const std::string getBackendName() const override
    {
        return "kolo";
    }
    c10::intrusive_ptr<Options> getBackendOptions() override
    {
        return c10::make_intrusive<Options>("kolo", timeout_);
    }
    uint64_t getSequenceNumberForGroup() override
    {
        return seq_;
    }
    void setSequenceNumberForGroup() override
    {
    }
    void setTimeout(std::chrono::milliseconds timeout) override
    {
        timeout_ = timeout; // of the communicators that come
    }

    // ---- ends and changes ------------------------------------------------------------------------------------

    void abort() override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (main_) main_->revoke();
        for (auto &l : lanes_) l.second->revoke();
    }
    void shutdown() override
    {
        if (!main_) return;
        main_->drain();
        main_->leave(); // groups may end in an order that differs by rank, and others may be late
    }
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    bool supportsReconfigure() const override
    {
        return reconfigurable_;
    }
    c10d::ReconfigureHandle get_reconfigure_handle() const override
    {
        return handle_;
    }
    WorkPtr reconfigure(const c10d::ReconfigureOptions &o) override
    {
        std::vector<std::string> members;
        if (auto *v = std::get_if<std::vector<std::string>>(&o.handles))
            members = *v;
        else {
            auto &set = std::get<std::unordered_set<std::string>>(o.handles);
            members.assign(set.begin(), set.end());
            std::sort(members.begin(), members.end());
        }
        auto me = std::find(members.begin(), members.end(), handle_);
        TORCH_CHECK(me != members.end(), "kolo: this rank's handle (", handle_, ") is not among the ",
                    members.size(), " handles");
        if (me == members.begin())
            TORCH_CHECK(store_->add("kolo/used/" + std::to_string(o.uuid), 1) == 1, "kolo: uuid ", o.uuid,
                        " was already used");
        lanes_.clear();
        main_.reset();
        rank_ = (int)(me - members.begin()), size_ = (int)members.size();
        if (o.timeout) timeout_ = *o.timeout;
        open(std::to_string(o.uuid));
        auto work = c10::make_intrusive<Work>(rank_, OpType::UNKNOWN, nullptr, Tensors(), Tensors(), ++seq_);
        work->end(nullptr);
        return work;
    }
#endif

    // ---- reductions ------------------------------------------------------------------------------------------

    WorkPtr allreduce(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        if (one(ts, true)[0].is_sparse()) return allreduce_sparse(ts, o);
        return reduce_list(ts, OpType::ALLREDUCE, o.reduceOp, o.asyncOp);
    }
    WorkPtr allreduce_coalesced(Tensors &ts, const c10d::AllreduceCoalescedOptions &o) override
    {
        return reduce_list(ts, OpType::ALLREDUCE_COALESCED, o.reduceOp, o.asyncOp);
    }
    WorkPtr allreduce_sparse(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        at::Tensor t = one(ts, true)[0];
        TORCH_CHECK(o.reduceOp == c10d::ReduceOp::SUM,
                    "kolo: sparse tensors can be summed only (allreduce with ReduceOp.SUM)");
        return submit(OpType::_ALLREDUCE_SPARSE, "kolo:sparse_all_reduce", {}, {t}, o.asyncOp,
                      [t, n = size_](kolo_comm_t c) mutable { reduce_sparse(t, n, c); });
    }
    WorkPtr reduce(Tensors &ts, const c10d::ReduceOptions &o) override
    {
        at::Tensor t = one(ts)[0];
        auto op = o.reduceOp;
        int root = (int)o.rootRank;
        return submit(OpType::REDUCE, "kolo:reduce", {t}, {t}, o.asyncOp,
                      [t, op, root, here = rank_ == root](kolo_comm_t c) {
                          Whole all(reduced_view(t, op), true);
                          must(kolo_reduce(all.data(), all.data(), all.memory.numel(), reduced_type(all.memory),
                                           Op(op, all.memory, c), root, c, nullptr));
                          if (here) all.give_back();
                      });
    }
    WorkPtr reduce_scatter(Tensors &outs, std::vector<Tensors> &ins, const c10d::ReduceScatterOptions &o) override
    {
        at::Tensor out = one(outs)[0];
        Tensors in = list_of("reduce_scatter: input", ins, out);
        auto op = o.reduceOp;
        return submit(OpType::REDUCE_SCATTER, "kolo:reduce_scatter", in, {out}, o.asyncOp,
                      [in, out, op](kolo_comm_t c) {
                          at::Tensor src = flat(in);
                          Whole dst(out, false);
                          std::vector<size_t> counts;
                          for (auto &t : in) counts.push_back(t.numel());
                          TORCH_CHECK(!src.is_complex(), "kolo: reduce_scatter with lists of complex tensors is "
                                                         "not supported: pass view_as_real of them");
                          must(kolo_reduce_scatterv(src.data_ptr(), dst.data(), counts.data(), reduced_type(src),
                                                    Op(op, src, c), c, nullptr));
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
        return submit(OpType::_REDUCE_SCATTER_BASE, "kolo:_reduce_scatter_base", {in}, {out}, o.asyncOp,
                      [in, out, op](kolo_comm_t c) { scatter_sum(in, out, op, c); });
    }
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const c10d::ReduceScatterOptions &o) override
    {
        auto op = o.reduceOp;
        return submit(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "kolo:reduce_scatter", ins, outs, o.asyncOp,
                      [ins, outs, op](kolo_comm_t c) {
                          for (size_t i = 0; i < ins.size(); i++) scatter_sum(ins[i], outs[i], op, c);
                      });
    }

    // ---- data that is moved ----------------------------------------------------------------------------------

    WorkPtr broadcast(Tensors &ts, const c10d::BroadcastOptions &o) override
    {
        at::Tensor t = one(ts)[0];
        int root = (int)o.rootRank;
        return submit(OpType::BROADCAST, "kolo:broadcast", {t}, {t}, o.asyncOp,
                      [t, root, here = rank_ == root](kolo_comm_t c) {
                          Whole all(t, here);
                          Moved m(t);
                          must(
                              kolo_broadcast(all.data(), all.data(), m.count(t.numel()), m.type, root, c, nullptr));
                          if (!here) all.give_back();
                      });
    }
    WorkPtr allgather(std::vector<Tensors> &outs, Tensors &ins, const c10d::AllgatherOptions &o) override
    {
        at::Tensor in = one(ins)[0];
        Tensors out = list_of("allgather: output", outs, in);
        return submit(OpType::ALLGATHER, "kolo:all_gather", {in}, out, o.asyncOp,
                      [in, out](kolo_comm_t c) { gather_all(in, out, c); });
    }
    WorkPtr allgather_coalesced(std::vector<Tensors> &outs, Tensors &ins, const c10d::AllgatherOptions &o) override
    {
        Tensors all;
        TORCH_CHECK((int)outs.size() == size_, "output lists should be equal to world size");
        for (auto &l : outs) {
            TORCH_CHECK(l.size() == ins.size(), "invalid output size: (expected length ", ins.size(), ", got ",
                        l.size(), ")");
            all.insert(all.end(), l.begin(), l.end());
        }
        return submit(OpType::ALLGATHER_COALESCED, "kolo:all_gather", ins, all, o.asyncOp,
                      [outs, ins](kolo_comm_t c) {
                          for (size_t i = 0; i < ins.size(); i++) {
                              Tensors out;
                              for (auto &l : outs) out.push_back(l[i]);
                              gather_all(ins[i], out, c);
                          }
                      });
    }
    WorkPtr _allgather_base(at::Tensor &out, at::Tensor &in, const c10d::AllgatherOptions &o) override
    {
        TORCH_CHECK(out.numel() == in.numel() * size_,
                    "output tensor size must be equal to world_size times input tensor size");
        TORCH_CHECK(out.scalar_type() == in.scalar_type(), "output tensor must have the same type as input tensor");
        return submit(OpType::_ALLGATHER_BASE, "kolo:_all_gather_base", {in}, {out}, o.asyncOp,
                      [in, out](kolo_comm_t c) { gather_into(in, out, c); });
    }
    WorkPtr allgather_into_tensor_coalesced(Tensors &outs, Tensors &ins, const c10d::AllgatherOptions &o) override
    {
        return submit(OpType::ALLGATHER_INTO_TENSOR_COALESCED, "kolo:all_gather_into", ins, outs, o.asyncOp,
                      [ins, outs](kolo_comm_t c) {
                          for (size_t i = 0; i < ins.size(); i++) gather_into(ins[i], outs[i], c);
                      });
    }
    WorkPtr alltoall_base(at::Tensor &out, at::Tensor &in, std::vector<int64_t> &os, std::vector<int64_t> &is,
                          const c10d::AllToAllOptions &o) override
    {
        TORCH_CHECK(out.scalar_type() == in.scalar_type(), "output tensor must have the same type as input tensor");
        auto send = splits(in, is), recv = splits(out, os);
        return submit(OpType::ALLTOALL_BASE, "kolo:all_to_all", {in}, {out}, o.asyncOp,
                      [in, out, send, recv](kolo_comm_t c) {
                          Whole dst(out, false);
                          exchange(in.contiguous(), send, dst.memory, recv, c);
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
        return submit(OpType::ALLTOALL, "kolo:all_to_all", in, out, o.asyncOp, [in, out](kolo_comm_t c) {
            Moved m(in[0]);
            at::Tensor dst = room(out);
            exchange(flat(in), counts_of(in, m), dst, counts_of(out, m), c);
            spread(dst, out);
        });
    }
    WorkPtr gather(std::vector<Tensors> &outs, Tensors &ins, const c10d::GatherOptions &o) override
    {
        at::Tensor in = one(ins)[0];
        Tensors out = rank_ == o.rootRank ? list_of("gather: output", outs, in) : Tensors();
        return gather_list(in, out, (int)o.rootRank, o.asyncOp);
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
        return gather_list(in, parts, (int)o.rootRank, o.asyncOp);
    }
    WorkPtr scatter(Tensors &outs, std::vector<Tensors> &ins, const c10d::ScatterOptions &o) override
    {
        at::Tensor out = one(outs)[0];
        int root = (int)o.rootRank;
        Tensors in = rank_ == root ? list_of("scatter: input", ins, out) : Tensors();
        return submit(OpType::SCATTER, "kolo:scatter", in, {out}, o.asyncOp, [in, out, root](kolo_comm_t c) {
            at::Tensor src = in.empty() ? at::Tensor() : flat(in);
            Whole dst(out, false);
            Moved m(out);
            must(kolo_scatter(in.empty() ? nullptr : src.data_ptr(), dst.data(), m.count(out.numel()), m.type, root,
                              c, nullptr));
            dst.give_back();
        });
    }
    WorkPtr barrier(const c10d::BarrierOptions &o) override
    {
        return submit(OpType::BARRIER, "kolo:barrier", {}, {}, o.asyncOp,
                      [](kolo_comm_t c) { must(kolo_barrier(c, nullptr)); });
    }
    WorkPtr send(Tensors &ts, int peer, int tag) override
    {
        at::Tensor t = one(ts)[0];
        return submit(
            OpType::SEND, "kolo:send", {t}, {}, true,
            [t](kolo_comm_t c) {
                at::Tensor all = t.contiguous();
                Moved m(t);
                must(kolo_send(all.data_ptr(), m.count(t.numel()), m.type, 1, c, nullptr));
            },
            &lane(rank_, peer, tag));
    }
    WorkPtr recv(Tensors &ts, int peer, int tag) override
    {
        at::Tensor t = one(ts)[0];
        return submit(
            OpType::RECV, "kolo:recv", {}, {t}, true,
            [t](kolo_comm_t c) {
                Whole all(t, false);
                Moved m(t);
                must(kolo_recv(all.data(), m.count(t.numel()), m.type, 0, c, nullptr));
                all.give_back();
            },
            &lane(peer, rank_, tag));
    }

  private:
    // ---- checks ----------------------------------------------------------------------------------------------

    static Tensors &one(Tensors &ts, bool sparse = false)
    {
        TORCH_CHECK(ts.size() == 1, "requires a single-element tensor list (kolo), and not ", ts.size(),
                    " tensors");
        check(ts[0], sparse);
        return ts;
    }
    static void check(const at::Tensor &t, bool sparse = false)
    {
        TORCH_CHECK(t.device().is_cpu(), "kolo: a tensor is on ", t.device(),
                    ", and this backend is for memory of the host: call .cpu(), or use "
                    "another backend for that device (\"cpu:kolo,cuda:nccl\")");
        TORCH_CHECK(sparse || t.layout() == at::kStrided, "only supports dense tensors (kolo)");
    }
    static void same_type(const at::Tensor &t, const Tensors &ts)
    {
        for (auto &x : ts) {
            check(x);
            TORCH_CHECK(x.scalar_type() == t.scalar_type(),
                        "invalid tensor type: all tensors must have the same type (kolo)");
        }
    }
    Tensors list_of(const char *what, const std::vector<Tensors> &lists, const at::Tensor &like) const
    {
        TORCH_CHECK(lists.size() == 1 && (int)lists[0].size() == size_, what, ": one tensor per rank is needed (",
                    size_, ")");
        same_type(like, lists[0]);
        return lists[0];
    }
    std::vector<size_t> splits(const at::Tensor &t, const std::vector<int64_t> &given) const
    {
        Moved m(t);
        check(t);
        if (given.empty()) {
            TORCH_CHECK(t.size(0) % size_ == 0, "Tensor's dim 0 does not divide equally across group size");
            return std::vector<size_t>((size_t)size_, m.count(t.numel() / size_));
        }
        TORCH_CHECK((int)given.size() == size_, "Number of tensor splits not equal to group size");
        std::vector<size_t> counts;
        int64_t row = t.size(0) ? t.numel() / t.size(0) : 1, sum = 0;
        for (auto n : given) counts.push_back(m.count(n * row)), sum += n;
        TORCH_CHECK(sum == t.size(0), "Split sizes doesn't match total dim 0 size");
        return counts;
    }

    // ---- how operations run ----------------------------------------------------------------------------------

    WorkPtr reduce_list(const Tensors &ts, OpType type, const c10d::ReduceOp &op, bool async)
    {
        for (auto &t : ts) check(t);
        return submit(type, "kolo:all_reduce", ts, ts, async, [ts, op](kolo_comm_t c) {
            for (auto &t : ts) reduce_all(t, op, c);
        });
    }
    WorkPtr gather_list(const at::Tensor &in, const Tensors &out, int root, bool async)
    {
        return submit(OpType::GATHER, "kolo:gather", {in}, out, async, [in, out, root](kolo_comm_t c) {
            at::Tensor src = in.contiguous(), dst = out.empty() ? at::Tensor() : room(out);
            Moved m(src);
            must(kolo_gather(src.data_ptr(), out.empty() ? nullptr : dst.data_ptr(), m.count(src.numel()), m.type,
                             root, c, nullptr));
            if (!out.empty()) spread(dst, out);
        });
    }
    WorkPtr submit(OpType op, const char *title, const Tensors &in, const Tensors &out, bool async,
                   CommLane::Call call, CommLane *lane = nullptr)
    {
        auto work = c10::make_intrusive<Work>(rank_, op, title, in, out, lane ? (uint64_t)seq_ : ++seq_);
        TORCH_CHECK(main_, "kolo: the group is not configured: call reconfigure() first");
        (lane ? *lane : *main_).run(work, std::move(call), !async);
        return work;
    }
    void open(const std::string &key)
    {
        key_ = key;
        main_ = std::make_unique<CommLane>([this, key] { return connect(key, rank_, size_, store_); });
        main_->comm();
    }
    CommLane &lane(int src, int dst, int tag)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        auto &l = lanes_[{src, dst, tag}];
        std::string key = key_ + "/" + std::to_string(src) + ">" + std::to_string(dst) + "/" + std::to_string(tag);
        // The store of its own: waiting there for the peer must not hold up the others.
        if (!l)
            l = std::make_unique<CommLane>(
                [this, key, second = rank_ == dst] { return connect(key, second, 2, store_->clone()); });
        return *l;
    }
    kolo_comm_t connect(const std::string &key, int rank, int size, const c10::intrusive_ptr<c10d::Store> &store)
    {
        kolo_unique_id_t id;
        if (rank == 0) {
            must(kolo_get_unique_id(&id));
            store->set("kolo/" + key, std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
        } else {
            auto bytes = store->get("kolo/" + key);
            TORCH_CHECK(bytes.size() == sizeof id.bytes, "kolo: what the store has under kolo/", key,
                        " is no id of Kolo");
            std::copy(bytes.begin(), bytes.end(), (uint8_t *)id.bytes);
        }
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        config.op_timeout_ms = config.init_timeout_ms =
            (int)std::min<int64_t>(std::max<int64_t>(timeout_.count(), 1), 1 << 30);
        config.name = "torch";
        kolo_comm_t comm;
        must(kolo_comm_init_rank(&comm, size, id, rank, &config));
        return comm;
    }
    c10::intrusive_ptr<c10d::Store> store_;
    std::chrono::milliseconds timeout_;
    std::atomic<uint64_t> seq_{0};
    std::mutex mutex_; // of lanes_
    std::map<std::tuple<int, int, int>, std::unique_ptr<CommLane>> lanes_;
    bool reconfigurable_;
    std::string handle_, key_;
    std::unique_ptr<CommLane> main_;
};

} // namespace kolotorch

PYBIND11_MODULE(_c10d, m)
{
    m.def(
        "create",
        [](const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
           const std::chrono::milliseconds &timeout, bool reconfigurable) {
            return c10::intrusive_ptr<c10d::Backend>(
                c10::make_intrusive<kolotorch::Backend>(store, rank, size, timeout, reconfigurable));
        },
        py::call_guard<py::gil_scoped_release>());
}
