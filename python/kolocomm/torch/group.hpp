// SPDX-License-Identifier: Apache-2.0
//
// A group of torch.distributed: how it begins and ends, its communicators, who is told of what ends, the checks of
// tensors, and the ways that operations take: to the lane of the communicator for the host, to a stream of the GPU,
// as a message.
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
          options_(c10::make_intrusive<Options>("kolo", timeout)),
          handle_("kolo:" + std::to_string(rank) + ":" + std::to_string(getpid()))
    {
        if (!reconfigurable_) open("all"); // now, so that a rank which does not come is named here
    }
    // Of a communicator that was made from that of another group.
    Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
          kolo_comm_t comm, std::string key)
        : c10d::Backend(rank, size), store_(std::move(store)), timeout_(timeout), reconfigurable_(false),
          options_(c10::make_intrusive<Options>("kolo", timeout)), key_(std::move(key)),
          main_(std::make_unique<CommLane>(comm))
    {
    }
    const std::string getBackendName() const override
    {
        return "kolo";
    }
    c10::intrusive_ptr<Options> getBackendOptions() override
    {
        return options_;
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
        timeout_ = options_->timeout = timeout;
        if (main_) must(kolo_comm_set_op_timeout(main_->comm(), milliseconds_of(timeout), nullptr));
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) must(kolo_comm_set_op_timeout(device_->comm(), milliseconds_of(timeout), nullptr));
    }

    void addEphemeralTimeout(const std::chrono::milliseconds &more) // override, where torch has it
    {
        hooks_->add_longer(more);
    }
    c10d::ErrorType getError() override
    {
        kolo_status_t status = KOLO_OK;
        if (main_) kolo_comm_get_async_error(main_->comm(), &status);
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_ && (status == KOLO_OK || status == KOLO_IN_PROGRESS))
            kolo_comm_get_async_error(device_->comm(), &status);
        switch (status) {
        case KOLO_OK:
        case KOLO_IN_PROGRESS:
            return c10d::ErrorType::SUCCESS;
        case KOLO_ERR_TIMEOUT:
            return c10d::ErrorType::TIMEOUT;
        case KOLO_ERR_REMOTE:
            return c10d::ErrorType::REMOTE_ERROR;
        default:
            return c10d::ErrorType::COMM_ERROR;
        }
    }

    // ---- who is told of what ends ------------------------------------------------------------------------------

    bool supportsCompletionHooks() const // these six override, where torch has them
    {
        return true;
    }
    void registerCompletionHook(int64_t id, CompletionHook hook)
    {
        hooks_->set_completion(id, std::move(hook));
    }
    void unregisterCompletionHook(int64_t id)
    {
        hooks_->set_completion(id, nullptr);
    }
    bool supportsAbortHooks() const
    {
        return true;
    }
    void registerAbortHook(int64_t id, AbortHook hook)
    {
        hooks_->set_abort(id, std::move(hook));
    }
    void unregisterAbortHook(int64_t id)
    {
        hooks_->set_abort(id, nullptr);
    }
    void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook) override
    {
        TORCH_CHECK(!onCompletionHook_, "kolo: the group has an on-completion hook already");
        onCompletionHook_ = hook;
        hooks_->set_on_completion(std::move(hook));
    }
    void waitForPendingWorks() override
    {
        Unlocked unlocked;
        if (main_) main_->drain();
        mail_->settle_all();
        std::shared_ptr<Device> device;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            device = device_;
        }
        if (device) device->watch().drain();
    }
    void enableCollectivesTiming() override // the host's are always timed
    {
        std::lock_guard<std::mutex> lock(mutex_);
        timed_ = true;
        if (device_) device_->timed = true;
    }

    // ---- memory of GPUs ----------------------------------------------------------------------------------------

    void eagerConnectSingleDevice(at::Device device) override
    {
        if (device.is_cuda() && main_) device_on(device);
    }
    void suspend() // these three override, where torch has them
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) must(kolo_comm_suspend(device_->comm(), nullptr));
    }
    void resume()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) must(kolo_comm_resume(device_->comm()));
    }
    std::unordered_map<std::string, uint64_t> getMemoryStats()
    {
        std::unordered_map<std::string, uint64_t> stats;
        std::lock_guard<std::mutex> lock(mutex_);
        size_t bytes = 0;
        if (main_) must(kolo_comm_memory(main_->comm(), &bytes));
        stats["host_bytes"] = bytes, bytes = 0;
        if (device_) must(kolo_comm_memory(device_->comm(), &bytes));
        stats["gpu_bytes"] = bytes;
        return stats;
    }

    // ---- ends --------------------------------------------------------------------------------------------------

    bool isInitialized() // override, where torch has it
    {
        return main_ != nullptr;
    }
    void abort() override
    {
        hooks_->ending();
        revoke();
    }
    void shutdown() override
    {
        if (!main_) return;
        Unlocked unlocked;
        main_->drain();
        mail_->sweep();
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
                                                  all->out, 0, true, run, terms()));
        }
        if (all->works.size() == 1) return all->works[0];
        return c10::make_intrusive<JoinedWork>(rank_, std::move(all->works), terms());
    }

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
    // Of a list, a tensor that goes to or comes from another one: more than fits is never written.
    static void fits(const char *what, size_t place, const at::Tensor &t, int64_t elements)
    {
        TORCH_CHECK(t.numel() == elements, what, " ", place, " has ", t.numel(), " elements, and ", elements,
                    " are needed: invalid tensor size (kolo)");
    }
    static void fit(const char *what, const Tensors &ts, int64_t elements)
    {
        for (size_t i = 0; i < ts.size(); i++) fits(what, i, ts[i], elements);
    }
    void pairs(const char *what, const Tensors &large, const Tensors &small) const
    {
        TORCH_CHECK(large.size() == small.size(), what, ": the lists have ", large.size(), " and ", small.size(),
                    " tensors, and each needs its own (kolo)");
        for (size_t i = 0; i < large.size(); i++) {
            same_type(large[i], {small[i]});
            fits(what, i, large[i], small[i].numel() * size_);
        }
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
        for (auto n : given) {
            TORCH_CHECK(n >= 0, "a split of ", n, " rows: splits are 0 or more (kolo)");
            counts.push_back(m.count(n * row)), sum += n;
        }
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
    Terms terms() const
    {
        return {hooks_, timeout_};
    }
    // The limit of a call that is made now: its own or the group's, and what was added for a while.
    Terms terms_of(uint64_t key, std::chrono::milliseconds own) const
    {
        return {hooks_, (own == c10d::kUnsetTimeout ? timeout_ : own) + hooks_->longer(key)};
    }
    void configured() const
    {
        TORCH_CHECK(main_, "kolo: the group is not configured: call reconfigure() first");
    }
    WorkPtr submit(OpType op, const char *title, const Tensors &in, const Tensors &out, How how, Call call)
    {
        configured();
        const at::Tensor *first = !in.empty() ? &in[0] : !out.empty() ? &out[0] : nullptr;
        bool async = how.async || together_;
        WorkPtr made;
        if (first && first->is_cuda()) {
            made = kolotorch::queue(device_of(in, out), rank_, op, title, in, out, ++seq_, async, call, terms());
        } else {
            for (auto *list : {&in, &out})
                for (auto &t : *list)
                    TORCH_CHECK(t.is_cpu(), "kolo: ", title, ": a tensor is on ", t.device(),
                                ", and others are on the CPU");
            made = on_host(*main_, op, title, in, out, how, std::move(call));
        }
        if (together_) together_->works.push_back(made);
        return made;
    }
    WorkPtr on_host(CommLane &lane, OpType op, const char *title, const Tensors &in, const Tensors &out, How how,
                    Call call)
    {
        uint64_t key = next_key();
        Terms limits = terms_of(key, how.limit);
        auto own = limits.limit == timeout_ ? c10d::kUnsetTimeout : limits.limit;
        auto work = c10::make_intrusive<Work>(rank_, op, title, in, out, ++seq_, std::move(limits), key);
        bool wait = !(how.async || together_) || size_ == 1; // one rank waits for nobody
        lane.run(work, limited(std::move(call), own), wait);
        return work;
    }
    // A call on the communicator in its turn, which this thread waits for.
    void in_turn(const char *title, Call call)
    {
        auto work = c10::make_intrusive<Work>(rank_, OpType::UNKNOWN, title, Tensors(), Tensors(), ++seq_, terms(),
                                              next_key());
        Unlocked unlocked;
        main_->run(work, std::move(call), true);
        work->wait(kNoTimeout);
    }
    WorkPtr message(OpType op, const char *title, const at::Tensor &t, int peer, int tag)
    {
        configured();
        bool sends = op == OpType::SEND;
        Tensors in, out;
        (sends ? in : out).push_back(t);
        if (t.is_cuda()) return device_message(op, title, in, out, peer);
        mail_->sweep();
        uint64_t key = next_key();
        Terms limits = terms_of(key, c10d::kUnsetTimeout);
        limits.whole = main_->comm();
        auto message = std::make_unique<Message>(t, !sends);
        message->start(peer, tag, main_->comm(), limits.limit);
        auto work = c10::make_intrusive<MessageWork>(rank_, op, title, in, out, std::move(message), mail_, ++seq_,
                                                     std::move(limits), key);
        if (hasHooks()) mail_->open(work.get());
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
        if (!together_) return kolotorch::queue(device, rank_, op, title, in, out, ++seq_, true, call, terms());
        together_->messages.push_back(std::move(call));
        together_->in.insert(together_->in.end(), in.begin(), in.end());
        together_->out.insert(together_->out.end(), out.begin(), out.end());
        together_->device = device;
        return c10::make_intrusive<JoinedWork>(rank_, std::vector<WorkPtr>(), terms());
    }
    // The communicator of the GPU that all these tensors are on, which is made now if this is the first time: by
    // all ranks, as with NCCL.
    std::shared_ptr<Device> device_of(const Tensors &in, const Tensors &out)
    {
        auto device = device_on((in.empty() ? out : in)[0].device());
        for (auto *list : {&in, &out})
            for (auto &t : *list) one_gpu(t.device(), *device);
        return device;
    }
    std::shared_ptr<Device> device_on(at::Device where)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!device_) {
            device_ = std::make_shared<Device>(connect(key_ + "/gpu", where.index()), where);
            device_->timed = timed_;
        }
        one_gpu(where, *device_);
        return device_;
    }
    static void one_gpu(at::Device where, const Device &device)
    {
        TORCH_CHECK(where == device.device(), "kolo: a tensor is on ", where, ", and this group uses ",
                    device.device(), " on this rank: one GPU for each rank");
    }
    void revoke()
    {
        if (main_) kolo_comm_revoke(main_->comm());
        end_device();
    }
    void end_device()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (device_) kolo_comm_revoke(device_->comm());
    }
    void open(const std::string &key)
    {
        key_ = key;
        main_ = std::make_unique<CommLane>(connect(key, -1));
    }
    static kolo_config_t config_of(std::chrono::milliseconds timeout, int device)
    {
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        config.op_timeout_ms = config.init_timeout_ms = milliseconds_of(timeout);
        config.name = device < 0 ? "torch" : "torch's GPUs";
        config.device = device;
        return config;
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
        kolo_config_t config = config_of(timeout_, device);
        kolo_comm_t comm;
        must(kolo_comm_init_rank(&comm, size_, id, rank_, &config));
        return comm;
    }
    c10::intrusive_ptr<c10d::Store> store_;
    std::chrono::milliseconds timeout_;
    std::atomic<uint64_t> seq_{0};
    bool reconfigurable_, timed_ = false;
    c10::intrusive_ptr<Options> options_;
    std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
    std::string handle_, key_;
    std::shared_ptr<Mail> mail_ = std::make_shared<Mail>();
    std::unique_ptr<CommLane> main_;
    std::mutex mutex_; // of device_
    std::shared_ptr<Device> device_;
    std::unique_ptr<Together> together_;
};

} // namespace kolotorch
