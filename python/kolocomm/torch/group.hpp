// SPDX-License-Identifier: Apache-2.0
//
// A group of torch.distributed: how it begins and ends, its communicators, the checks of tensors, and the ways that
// operations take: to the lane of the communicator for the host, to a stream of the GPU, as a message.
#pragma once

#include "device.hpp"
#include "messages.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace kolotorch
{

using c10d::OpType;

class Group : public c10d::Backend
{
  public:
    using Options = c10d::Backend::Options;
    Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
          bool reconfigurable)
        : c10d::Backend(rank, size), store_(std::move(store)), timeout_(timeout), reconfigurable_(reconfigurable),
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
        timeout_ = timeout;
        if (main_) must(kolo_comm_set_op_timeout(main_->comm(), milliseconds_of(timeout), nullptr));
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) must(kolo_comm_set_op_timeout(device_->comm(), milliseconds_of(timeout), nullptr));
    }

    // ---- ends and changes ------------------------------------------------------------------------------------

    void abort() override
    {
        if (main_) kolo_comm_revoke(main_->comm());
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) kolo_comm_revoke(device_->comm());
    }
    void shutdown() override
    {
        if (!main_) return;
        main_->drain();
        kolo_comm_leave(main_->comm()); // groups may end in an order that differs by rank, and others may be late
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) kolo_comm_leave(device_->comm());
    }
    bool supportsCoalescing() const override
    {
        return true;
    }
    void startCoalescing() override
    {
        TORCH_CHECK(!together_, "kolo: _start_coalescing: the group is already coalescing");
        together_ = std::make_unique<Together>();
    }
    WorkPtr endCoalescing() override
    {
        TORCH_CHECK(together_, "kolo: _end_coalescing: the group is not coalescing");
        auto all = std::move(together_);
        if (!all->messages.empty()) {
            auto run = [&](const Place &p) {
                must(kolo_group_start());
                try {
                    for (auto &m : all->messages) m(p);
                } catch (...) {
                    kolo_group_drop();
                    throw;
                }
                must(kolo_group_end());
            };
            all->works.push_back(kolotorch::queue(all->device, rank_, OpType::COALESCED, "kolo:coalesced", all->in,
                                                  all->out, 0, true, run));
        }
        if (all->works.size() == 1) return all->works[0];
        return c10::make_intrusive<JoinedWork>(rank_, std::move(all->works));
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
        {
            std::lock_guard<std::mutex> lock(mutex_);
            device_.reset();
        }
        main_.reset();
        rank_ = (int)(me - members.begin()), size_ = (int)members.size();
        if (o.timeout) timeout_ = *o.timeout;
        open(std::to_string(o.uuid));
        auto work = c10::make_intrusive<Work>(rank_, OpType::UNKNOWN, nullptr, Tensors(), Tensors(), ++seq_);
        work->end(nullptr);
        return work;
    }
#endif

  protected:
    // What is collected between startCoalescing() and endCoalescing().
    struct Together {
        std::vector<WorkPtr> works;
        std::vector<Call> messages; // of GPUs: in one group, so that exchanges do not wait for each other
        Tensors in, out;
        std::shared_ptr<Device> device;
    };

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
        TORCH_CHECK(t.device().is_cpu() || t.device().is_cuda(), "kolo: a tensor is on ", t.device(),
                    ", and this backend is for memory of the host and of CUDA's GPUs: call .cpu()");
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

    // Of one call: whether it returns before it is complete, and its limit, where it has one of its own.
    struct How {
        bool async;
        std::chrono::milliseconds limit;
    };
    template <class O> static How how(const O &o)
    {
        return {o.asyncOp, o.timeout};
    }
    static Call limited(Call call, std::chrono::milliseconds limit)
    {
        if (limit == c10d::kUnsetTimeout) return call;
        return [call = std::move(call), limit](const Place &p) {
            int before = 0;
            must(kolo_comm_set_op_timeout(p.comm, milliseconds_of(limit), &before));
            try {
                call(p);
            } catch (...) {
                kolo_comm_set_op_timeout(p.comm, before, nullptr);
                throw;
            }
            must(kolo_comm_set_op_timeout(p.comm, before, nullptr));
        };
    }
    WorkPtr submit(OpType op, const char *title, const Tensors &in, const Tensors &out, How how, Call call)
    {
        TORCH_CHECK(main_, "kolo: the group is not configured: call reconfigure() first");
        const at::Tensor *first = !in.empty() ? &in[0] : !out.empty() ? &out[0] : nullptr;
        bool async = how.async || together_;
        WorkPtr made;
        if (first && first->is_cuda()) {
            made = kolotorch::queue(device_of(in, out), rank_, op, title, in, out, ++seq_, async, call);
        } else {
            for (auto *list : {&in, &out})
                for (auto &t : *list)
                    TORCH_CHECK(t.is_cpu(), "kolo: ", title, ": a tensor is on ", t.device(),
                                ", and others are on the CPU");
            auto work = c10::make_intrusive<Work>(rank_, op, title, in, out, ++seq_);
            main_->run(work, limited(std::move(call), how.limit),
                       !async || size_ == 1); // one rank waits for nobody
            made = work;
        }
        if (together_) together_->works.push_back(made);
        return made;
    }
    WorkPtr message(OpType op, const char *title, const at::Tensor &t, int peer, int tag)
    {
        TORCH_CHECK(main_, "kolo: the group is not configured: call reconfigure() first");
        bool sends = op == OpType::SEND;
        Tensors in, out;
        (sends ? in : out).push_back(t);
        if (t.is_cuda()) return device_message(op, title, in, out, peer);
        mail_->sweep();
        auto message = std::make_unique<Message>(t, !sends);
        message->start(peer, tag, main_->comm(), timeout_);
        auto work = c10::make_intrusive<MessageWork>(rank_, op, title, in, out, std::move(message), mail_);
        if (together_) together_->works.push_back(work);
        return work;
    }
    // Of GPUs: in the order of the calls, whatever the tag, as with NCCL.
    WorkPtr device_message(OpType op, const char *title, const Tensors &in, const Tensors &out, int peer)
    {
        TORCH_CHECK(op != OpType::RECVANYSOURCE, "kolo: recv from any rank is for tensors of the CPU: pass src");
        at::Tensor t = op == OpType::SEND ? in[0] : out[0];
        TORCH_CHECK(t.is_contiguous(), "kolo: ", title,
                    " of a tensor on a GPU that is not contiguous: call .contiguous()");
        Call call = [t, peer, op](const Place &p) {
            Moved m(t);
            if (op == OpType::SEND)
                must(kolo_send(t.data_ptr(), m.count(t.numel()), m.type, peer, p.comm, p.stream));
            else
                must(kolo_recv(t.data_ptr(), m.count(t.numel()), m.type, peer, p.comm, p.stream));
        };
        auto device = device_of(in, out);
        if (!together_) return kolotorch::queue(device, rank_, op, title, in, out, 0, true, call);
        together_->messages.push_back(std::move(call));
        together_->in.insert(together_->in.end(), in.begin(), in.end());
        together_->out.insert(together_->out.end(), out.begin(), out.end());
        together_->device = device;
        return c10::make_intrusive<JoinedWork>(rank_, std::vector<WorkPtr>());
    }
    // The communicator of the GPU that all these tensors are on, which is made now if this is the first time: by
    // all ranks, as with NCCL.
    std::shared_ptr<Device> device_of(const Tensors &in, const Tensors &out)
    {
        at::Device where = (in.empty() ? out : in)[0].device();
        std::lock_guard<std::mutex> lock(mutex_);
        if (!device_) device_ = std::make_shared<Device>(connect(key_ + "/gpu", where.index()), where);
        for (auto *list : {&in, &out})
            for (auto &t : *list)
                TORCH_CHECK(t.device() == device_->device(), "kolo: a tensor is on ", t.device(),
                            ", and this group uses ", device_->device(), " on this rank: one GPU for each rank");
        return device_;
    }
    void open(const std::string &key)
    {
        key_ = key;
        main_ = std::make_unique<CommLane>(connect(key, -1));
    }
    kolo_comm_t connect(const std::string &key, int device)
    {
        kolo_unique_id_t id;
        if (rank_ == 0) {
            must(kolo_get_unique_id(&id));
            store_->set("kolo/" + key, std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
        } else {
            auto bytes = store_->get("kolo/" + key);
            TORCH_CHECK(bytes.size() == sizeof id.bytes, "kolo: what the store has under kolo/", key,
                        " is no id of Kolo");
            std::copy(bytes.begin(), bytes.end(), (uint8_t *)id.bytes);
        }
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        config.op_timeout_ms = config.init_timeout_ms = milliseconds_of(timeout_);
        config.name = device < 0 ? "torch" : "torch's GPUs";
        config.device = device;
        kolo_comm_t comm;
        must(kolo_comm_init_rank(&comm, size_, id, rank_, &config));
        return comm;
    }
    c10::intrusive_ptr<c10d::Store> store_;
    std::chrono::milliseconds timeout_;
    std::atomic<uint64_t> seq_{0};
    bool reconfigurable_;
    std::string handle_, key_;
    std::shared_ptr<Mail> mail_ = std::make_shared<Mail>();
    std::unique_ptr<CommLane> main_;
    std::mutex mutex_; // of device_
    std::shared_ptr<Device> device_;
    std::unique_ptr<Together> together_;
};

} // namespace kolotorch
