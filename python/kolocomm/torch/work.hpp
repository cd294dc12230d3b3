// SPDX-License-Identifier: Apache-2.0
//
// Kolo's operations as torch's Work: failures, futures, and the queue that a group's operations on memory of the
// host go through.
#pragma once

#include "../native/lane.hpp"
#include "hooks.hpp"

#include <ATen/record_function.h>
#include <kolo/kolo.h>
#include <kolo/message.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace kolotorch
{

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Where a call is made: on a communicator, and for GPUs on a stream.
struct Place {
    kolo_comm_t comm;
    void *stream;
};
using Call = std::function<void(const Place &)>;

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

inline int milliseconds_of(std::chrono::milliseconds t)
{
    return (int)std::min<int64_t>(std::max<int64_t>(t.count(), 1), 1 << 30);
}

[[noreturn]] inline void not_yet(std::chrono::milliseconds timeout)
{
    fail(KOLO_ERR_TIMEOUT,
         "the operation is not complete after " + std::to_string(timeout.count()) + " ms; it goes on");
}

// A title makes torch prepare a record of each operation, whoever listens.
inline bool is_profiled()
{
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

// Of a group, for its operations: who is told of their ends, and the limit of what is called now.
struct Terms {
    std::shared_ptr<Hooks> hooks;
    std::chrono::milliseconds limit;
    kolo_comm_t whole = nullptr; // where an operation ends apart: the group has failed only if this one has
    bool whole_failed() const
    {
        kolo_status_t status = KOLO_OK;
        if (whole) kolo_comm_get_async_error(whole, &status);
        return !whole || (status != KOLO_OK && status != KOLO_IN_PROGRESS);
    }
};

inline uint64_t next_key()
{
    static std::atomic<uint64_t> keys{0};
    return keys.fetch_add(1, std::memory_order_relaxed) + 1;
}

// What all kinds of Work have: results, a number, times, a future that is made when it is asked for.
class BaseWork : public c10d::Work
{
  public:
    BaseWork(int rank, c10d::OpType op, const char *title, const Tensors &in, Tensors out, uint64_t seq,
             Terms terms, uint64_t key = next_key())
        : c10d::Work(rank, op, is_profiled() ? title : nullptr, in), outputs_(std::move(out)), seq_(seq), key_(key),
          terms_(std::move(terms)), called_(Clock::now()), begun_(called_)
    {
    }
    uint64_t getCompletionKey() const // override, where torch has it
    {
        return key_;
    }
    std::chrono::milliseconds getTimeout() const // override, where torch has it
    {
        return terms_.limit;
    }
    float getDuration() const override
    {
        TORCH_CHECK(ended_at_ != Clock::time_point(),
                    "kolo: how long an operation takes is known when it is complete: wait() for it first");
        return milliseconds_between(begun_, ended_at_);
    }
    // Completed like getFuture(), with success, time limit or error of the communicator as its value.
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override
    {
        auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
        getFuture()->addCallback([result](c10::ivalue::Future &f) {
            auto how = !f.hasError() ? c10d::WorkResult::SUCCESS
                       : f.tryRetrieveErrorMessage().find("Timed out") == std::string::npos
                           ? c10d::WorkResult::COMM_ERROR
                           : c10d::WorkResult::TIMEOUT;
            result->markCompleted(c10::IValue((int64_t)how));
        });
        return result;
    }
    std::vector<at::Tensor> result() override
    {
        return outputs_;
    }
    uint64_t getSequencenumber() const override
    {
        return seq_;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::unique_lock<std::mutex> lock(future_mutex_);
        if (!future_) {
            future_ = make_future();
            if (ended_) complete_future(*future_);
        }
        return future_;
    }
    virtual void end(std::exception_ptr error) // once
    {
        ended_at_ = Clock::now();
        conclude(error);
        if (error)
            terms_.hooks->failed(key_, terms_.whole_failed());
        else
            terms_.hooks->completed(ended());
    }
    void begin()
    {
        begun_ = Clock::now();
    }
    const Terms &terms() const
    {
        return terms_;
    }
    Ended ended() const
    {
        return {key_, opType_, seq_, called_, begun_, ended_at_, milliseconds_between(begun_, ended_at_)};
    }

  protected:
    // For torch it is complete, or, on a stream, queued.
    void conclude(std::exception_ptr error)
    {
        finish(error);
        std::unique_lock<std::mutex> lock(future_mutex_);
        error_ = error, ended_ = true;
        if (future_) complete_future(*future_);
    }
    virtual c10::intrusive_ptr<c10::ivalue::Future> make_future() const
    {
        return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    }
    // Perhaps long after the end, and on another thread: whoever asks for the future first.
    virtual void complete_future(c10::ivalue::Future &future)
    {
        if (error_)
            future.setError(error_);
        else
            future.markCompleted(c10::IValue(outputs_));
    }
    Tensors outputs_;

  private:
    uint64_t seq_, key_;
    Terms terms_;
    Clock::time_point called_, begun_, ended_at_;
    std::mutex future_mutex_;
    bool ended_ = false;
    std::exception_ptr error_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// An operation that some thread makes: that of a lane, or the caller's.
class Work : public BaseWork
{
  public:
    using BaseWork::BaseWork;
    bool wait(std::chrono::milliseconds timeout) override
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (auto lane = std::move(lane_); lane && timeout == kNoTimeout) {
            lock.unlock();
            lane->help(number_);
            lock.lock();
        }
        auto ended = [this] { return told_; };
        if (timeout == kNoTimeout) {
            cv_.wait(lock, ended);
        } else if (!cv_.wait_for(lock, timeout, ended)) {
            lock.unlock();
            not_yet(timeout);
        }
        if (exception_) std::rethrow_exception(exception_);
        return true;
    }
    // Who waits for it may make the call, if the lane has not begun with it.
    void queued(const std::shared_ptr<kolocomm::Lane> &lane, uint64_t number)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!completed_) lane_ = lane, number_ = number;
    }
    void end(std::exception_ptr error) override
    {
        BaseWork::end(error);
        std::lock_guard<std::mutex> lock(mutex_);
        lane_.reset();
        told_ = true; // who waits finds it in the flight recorder as complete
        cv_.notify_all();
    }

  private:
    std::shared_ptr<kolocomm::Lane> lane_;
    bool told_ = false;
    uint64_t number_ = 0;
};

// Several, as one.
class JoinedWork : public BaseWork
{
  public:
    JoinedWork(int rank, std::vector<WorkPtr> all, Terms terms)
        : BaseWork(rank, c10d::OpType::COALESCED, nullptr, {}, {}, 0, std::move(terms)), all_(std::move(all))
    {
    }
    bool wait(std::chrono::milliseconds timeout) override
    {
        for (auto &w : all_) w->wait(timeout);
        return true;
    }
    void synchronize() override
    {
        for (auto &w : all_) w->synchronize();
    }
    bool isCompleted() override
    {
        return std::all_of(all_.begin(), all_.end(), [](auto &w) { return w->isCompleted(); });
    }
    bool isSuccess() const override
    {
        return std::all_of(all_.begin(), all_.end(), [](auto &w) { return w->isSuccess(); });
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
            c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
        for (auto &w : all_) futures.push_back(w->getFuture());
        return c10::collectAll(futures);
    }

  private:
    std::vector<WorkPtr> all_;
};

// A call with a limit of its own, where it has one.
inline Call limited(Call call, std::chrono::milliseconds limit)
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

// A communicator and the thread that calls it. A blocking call of an idle lane is made by the caller's thread. What
// is late is ended by revoke(), which wakes it.
class CommLane
{
  public:
    explicit CommLane(kolo_comm_t comm) : comm_(comm)
    {
    }
    ~CommLane()
    {
        Unlocked unlocked;
        drain(); // what is queued ends first
        lane_.reset();
        kolo_comm_leave(comm_);
        kolo_comm_destroy(comm_);
    }
    void run(const c10::intrusive_ptr<Work> &work, Call call, bool wait)
    {
        if (wait && lane().enter()) {
            execute(work, call);
            lane().leave();
            return;
        }
        auto kept = std::make_shared<c10::intrusive_ptr<Work>>(work);
        uint64_t number = lane().submit(
            [this, kept, call = std::move(call)]() mutable {
                execute(*kept, call);
                call = nullptr, kept->reset(); // tensors are freed here, not when the next call comes
                return KOLO_OK;
            },
            [](kolo_status_t, std::string) {});
        work->queued(lane_, number);
    }
    kolo_comm_t comm() const
    {
        return comm_;
    }
    void drain()
    {
        if (lane_) lane_->drain();
    }

  private:
    kolocomm::Lane &lane()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!lane_) lane_ = std::make_shared<kolocomm::Lane>();
        return *lane_;
    }
    void execute(const c10::intrusive_ptr<Work> &work, const Call &call)
    {
        std::exception_ptr error;
        work->begin();
        try {
            call({comm_, nullptr});
        } catch (...) {
            error = std::current_exception();
        }
        work->end(error);
    }
    kolo_comm_t comm_;
    std::mutex mutex_;
    std::shared_ptr<kolocomm::Lane> lane_;
};

} // namespace kolotorch
