// SPDX-License-Identifier: Apache-2.0
//
// Operations on tensors of a GPU: queued on a stream when the call returns, as torch's own kernels are. A call that
// is not asynchronous goes to the caller's current stream, any other to a stream of the group, whose end
// Work::wait() puts before what comes on the then current stream. Written with torch's general streams and events:
// nothing of CUDA is needed to compile it.
#pragma once

#include "tensors.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

namespace kolotorch
{

inline const char *device_words()
{
    return "kolo: an operation on this group's GPU has failed; results of the operations after it are not right: ";
}

// The error that has made a communicator unusable, for the person.
inline std::exception_ptr error_of(kolo_comm_t comm)
{
    kolo_status_t status = KOLO_OK;
    kolo_comm_get_async_error(comm, &status);
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS) return nullptr;
    try {
        fail(status, device_words() + std::string(kolo_get_last_error(comm)));
    } catch (...) {
        return std::current_exception();
    }
}

// Learns of the ends of operations on a GPU, for hooks: a thread asks their events, while there are any. It is
// never joined, since a hook may wait for the interpreter's lock that a thread which ends the group holds.
class Watch : public std::enable_shared_from_this<Watch>
{
  public:
    struct Entry {
        std::shared_ptr<c10::Event> end, begin;
        Ended what;
        c10::Stream stream;
    };
    Watch(kolo_comm_t comm, c10::Device device) : comm_(comm), device_(device)
    {
    }
    void add(Entry entry, const std::shared_ptr<Hooks> &hooks)
    {
        if (is_captured(entry.stream)) return; // its event is part of the graph
        std::lock_guard<std::mutex> lock(mutex_);
        entries_.push_back(std::move(entry));
        hooks_ = hooks;
        if (!std::exchange(runs_, true)) std::thread([self = shared_from_this()] { self->loop(); }).detach();
        changed_.notify_all();
    }
    void drain() // until hooks have been told of all, or the communicator has failed
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return entries_.empty() || stop_; });
    }
    void stop()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        changed_.notify_all();
    }

  private:
    static bool is_captured_by_cuda(void *stream) // older torch does not say
    {
        using Ask = int (*)(void *, int *);
        static auto ask = (Ask)dlsym(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY), "cuStreamIsCapturing");
        int captured = 0;
        return ask && ask(stream, &captured) == 0 && captured;
    }
    bool is_captured(const c10::Stream &stream) const
    {
        auto ask = [&](const auto &guard) {
            if constexpr (requires { guard.isStreamCapturing(stream); })
                return guard.isStreamCapturing(stream);
            else
                return is_captured_by_cuda(stream.native_handle());
        };
        return ask(c10::impl::VirtualGuardImpl(device_.type()));
    }
    void loop()
    {
        c10::DeviceGuard on(device_); // or the thread would make a context on the first GPU
        std::unique_lock<std::mutex> lock(mutex_);
        while (!stop_) {
            if (entries_.empty()) {
                changed_.wait(lock);
                continue;
            }
            Entry first = entries_.front();
            lock.unlock();
            bool failed = false, over = is_over(first, &failed);
            lock.lock();
            if (failed) stop_ = true;
            if (over || failed) entries_.pop_front();
            if (over || failed) changed_.notify_all();
            if (!over && !failed) changed_.wait_for(lock, std::chrono::milliseconds(1));
        }
    }
    bool is_over(Entry &e, bool *failed)
    {
        try {
            if (e.end->query()) {
                e.what.ended = Clock::now();
                e.what.milliseconds = std::nullopt;
                if (e.begin) e.what.milliseconds = (float)e.begin->elapsedTime(*e.end);
                hooks_->completed(e.what);
                return true;
            }
            *failed = error_of(comm_) != nullptr;
        } catch (...) {
            *failed = true; // the GPU has failed, or the process ends
        }
        if (*failed) hooks_->failed(e.what.key, true);
        return false;
    }
    kolo_comm_t comm_;
    c10::Device device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Entry> entries_;
    std::shared_ptr<Hooks> hooks_;
    bool runs_ = false, stop_ = false;
};

// A communicator on a GPU and the stream of what is asynchronous.
class Device
{
  public:
    Device(kolo_comm_t comm, c10::Device device)
        : comm_(comm), device_(device), guard_(device.type()),
          own_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
          watch_(std::make_shared<Watch>(comm, device))
    {
    }
    ~Device()
    {
        Unlocked unlocked;
        watch_->stop();
        kolo_comm_leave(comm_);
        kolo_comm_destroy(comm_);
    }
    kolo_comm_t comm() const
    {
        return comm_;
    }
    c10::Device device() const
    {
        return device_;
    }
    c10::Stream current() const
    {
        return guard_.getStream(device_);
    }
    c10::Stream own() const
    {
        return own_;
    }
    const c10::impl::VirtualGuardImpl &guard() const
    {
        return guard_;
    }
    std::exception_ptr error() const
    {
        return error_of(comm_);
    }
    Watch &watch()
    {
        return *watch_;
    }
    std::mutex mutex; // one call at a time: torch's main and autograd threads share a group
    std::atomic<bool> timed{false};

  private:
    kolo_comm_t comm_;
    c10::Device device_;
    c10::impl::VirtualGuardImpl guard_;
    c10::Stream own_;
    std::shared_ptr<Watch> watch_;
};

// Complete for the host when its stream has reached its end.
class DeviceWork : public BaseWork
{
  public:
    DeviceWork(int rank, c10d::OpType op, const char *title, const Tensors &in, const Tensors &out, uint64_t seq,
               std::shared_ptr<Device> device, c10::Stream stream, Terms terms)
        : BaseWork(rank, op, title, in, out, seq, std::move(terms)), device_(std::move(device)), stream_(stream)
    {
        auto flag = device_->timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
        end_ = std::make_shared<c10::Event>(stream.device_type(), flag);
        if (!device_->timed) return;
        begin_ = std::make_shared<c10::Event>(stream.device_type(), flag);
        begin_->record(stream);
    }
    ~DeviceWork() override
    {
        // Nobody has waited: the allocator has to know that the stream may still use them.
        for (auto &t : kept_)
            if (t.has_storage()) device_->guard().recordDataPtrOnStream(t.storage().data_ptr(), stream_);
    }
    // Behind the queued operation. What is kept stays until somebody waits.
    void queued(Tensors kept)
    {
        end_->record(stream_);
        kept_ = std::move(kept);
        conclude(nullptr);
        if (terms().hooks->wanted()) device_->watch().add({end_, begin_, ended(), stream_}, terms().hooks);
    }
    float getDuration() const override
    {
        TORCH_CHECK(begin_,
                    "kolo: operations on GPUs are not timed: call _enable_collectives_timing() before them");
        TORCH_CHECK(end_->query(), "kolo: how long an operation takes is known when the GPU is through with it");
        return (float)begin_->elapsedTime(*end_);
    }
    void blockCurrentStream() override
    {
        synchronize();
    }
    bool wait(std::chrono::milliseconds timeout) override
    {
        if (timeout != kNoTimeout) {
            auto limit = std::chrono::steady_clock::now() + timeout;
            while (!end_->query()) {
                if (std::chrono::steady_clock::now() > limit) not_yet(timeout);
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            }
        }
        synchronize();
        if (auto error = device_->error()) std::rethrow_exception(error);
        return true;
    }
    void synchronize() override
    {
        c10::Stream current = device_->current();
        if (current != stream_) end_->block(current);
        kept_.clear();
    }
    bool isCompleted() override
    {
        return end_->query() || device_->error();
    }
    bool isSuccess() const override
    {
        return !device_->error();
    }
    std::exception_ptr exception() const override
    {
        return device_->error();
    }

  protected:
    c10::intrusive_ptr<c10::ivalue::Future> make_future() const override
    {
        return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                        std::vector<c10::Device>{device_->device()});
    }

    // What comes behind the future comes behind the operation, whatever stream is the current one of who asks for
    // it.
    void complete_future(c10::ivalue::Future &future) override
    {
        c10::StreamGuard on(stream_); // the future's events are recorded there
        BaseWork::complete_future(future);
    }

  private:
    std::shared_ptr<Device> device_;
    c10::Stream stream_;
    std::shared_ptr<c10::Event> end_, begin_; // begin_: where operations are timed
    Tensors kept_;
};

// Makes a call on a stream of the device.
inline WorkPtr queue(const std::shared_ptr<Device> &d, int rank, c10d::OpType op, const char *title,
                     const Tensors &in, const Tensors &out, uint64_t seq, bool async, const Call &call,
                     const Terms &terms)
{
    std::lock_guard<std::mutex> lock(d->mutex);
    if (auto error = d->error()) std::rethrow_exception(error);
    c10::Stream current = d->current(), stream = async ? d->own() : current;
    if (async) {
        c10::Event before(stream.device_type(), c10::EventFlag::PYTORCH_DEFAULT);
        before.record(current);
        before.block(stream);
    }
    auto work = c10::make_intrusive<DeviceWork>(rank, op, title, in, out, seq, d, stream, terms);
    c10::StreamGuard on(stream); // torch's own copies for the call go there too
    call({d->comm(), stream.native_handle()});
    Tensors kept;
    if (async) {
        kept = in;
        kept.insert(kept.end(), out.begin(), out.end());
    }
    work->queued(std::move(kept));
    return work;
}

} // namespace kolotorch
