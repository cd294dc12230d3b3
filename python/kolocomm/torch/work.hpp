// SPDX-License-Identifier: Apache-2.0
//
// Kolo's operations as torch's Work: failures, futures, and the queue that a group's operations go through.
#pragma once

#include "../native/lane.hpp"

#include <kolo/kolo.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace kolotorch
{

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// DistBackendError in Python, with the library's words, which name the rank that is to blame.
[[noreturn]] inline void fail(kolo_status_t status, const std::string &text)
{
    std::string message = std::string("kolo: ") +
                          (status == KOLO_ERR_TIMEOUT ? "Timed out (timeout of the group or of the call): " : "") +
                          text;
    throw c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
}

inline void must(kolo_status_t status)
{
    if (status != KOLO_OK) fail(status, kolo_get_last_error(nullptr));
}

class Work : public c10d::Work
{
  public:
    Work(int rank, c10d::OpType op, const char *title, const Tensors &in, Tensors out, uint64_t seq)
        : c10d::Work(rank, op, title, in), outputs_(std::move(out)), seq_(seq)
    {
    }
    std::vector<at::Tensor> result() override
    {
        return outputs_;
    }
    uint64_t getSequencenumber() const override
    {
        return seq_;
    }
    int sourceRank() const override
    {
        return source_;
    }
    void set_source(int rank)
    {
        source_ = rank;
    }
    bool wait(std::chrono::milliseconds timeout) override
    {
        std::unique_lock<std::mutex> lock(mutex_);
        auto ended = [this] { return completed_; };
        if (timeout == kNoTimeout) {
            cv_.wait(lock, ended);
        } else if (!cv_.wait_for(lock, timeout, ended)) {
            lock.unlock();
            fail(KOLO_ERR_TIMEOUT,
                 "the operation is not complete after " + std::to_string(timeout.count()) + " ms; it goes on");
        }
        if (exception_) std::rethrow_exception(exception_);
        return true;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::unique_lock<std::mutex> lock(future_mutex_);
        if (!future_) {
            future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
            if (ended_) end_future();
        }
        return future_;
    }
    void end(std::exception_ptr error)
    {
        finish(error);
        std::unique_lock<std::mutex> lock(future_mutex_);
        error_ = error, ended_ = true;
        if (future_) end_future();
    }

  private:
    void end_future()
    {
        if (error_)
            future_->setError(error_);
        else
            future_->markCompleted(c10::IValue(outputs_));
    }
    Tensors outputs_;
    uint64_t seq_;
    int source_ = -1;
    std::mutex future_mutex_;
    bool ended_ = false;
    std::exception_ptr error_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A communicator and the thread that calls it. A blocking call of an idle lane is made by the caller's thread. What
// is late is ended by revoke(), which wakes it.
class CommLane
{
  public:
    using Call = std::function<void(kolo_comm_t)>;
    explicit CommLane(std::function<kolo_comm_t()> connect) : connect_(std::move(connect))
    {
    }
    ~CommLane()
    {
        lane_.reset(); // what is queued ends first
        if (comm_) leave();
        if (comm_) kolo_comm_destroy(comm_);
    }
    void run(const c10::intrusive_ptr<Work> &work, Call call, bool wait)
    {
        if (wait && lane().enter()) {
            execute(work, call);
            lane().leave();
            return;
        }
        auto kept = std::make_shared<c10::intrusive_ptr<Work>>(work);
        lane().submit(
            [this, kept, call = std::move(call)]() mutable {
                execute(*kept, call);
                call = nullptr, kept->reset(); // tensors are freed here, not when the next call comes
                return KOLO_OK;
            },
            [](kolo_status_t, std::string) {});
    }
    kolo_comm_t comm()
    {
        if (!comm_) comm_ = connect_();
        return comm_;
    }
    void drain()
    {
        if (lane_) lane_->drain();
    }
    void leave()
    {
        kolo_comm_t comm = comm_;
        if (comm) kolo_comm_leave(comm);
    }
    void revoke()
    {
        kolo_comm_t comm = comm_;
        if (comm) kolo_comm_revoke(comm);
    }

  private:
    kolocomm::Lane &lane()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!lane_) lane_ = std::make_unique<kolocomm::Lane>();
        return *lane_;
    }
    void execute(const c10::intrusive_ptr<Work> &work, const Call &call)
    {
        std::exception_ptr error;
        try {
            call(comm());
        } catch (...) {
            error = std::current_exception();
        }
        work->end(error);
    }
    std::function<kolo_comm_t()> connect_;
    std::atomic<kolo_comm_t> comm_{nullptr};
    std::mutex mutex_;
    std::unique_ptr<kolocomm::Lane> lane_;
};

} // namespace kolotorch
