// SPDX-License-Identifier: Apache-2.0
//
// Operations on tensors of a GPU: queued on a stream when the call returns, as torch's own kernels are. A call that
// is not asynchronous goes to the caller's current stream, any other to a stream of the group, whose end
// Work::wait() puts before what comes on the then current stream. Written with torch's general streams and events:
// nothing of CUDA is needed to compile it.
#pragma once

#include "tensors.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace kolotorch
{

inline const char *device_words()
{
    return "kolo: an operation on this group's GPU has failed; results of the operations after it are not right: ";
}

// A communicator on a GPU and the stream of what is asynchronous.
class Device
{
  public:
    Device(kolo_comm_t comm, c10::Device device)
        : comm_(comm), device_(device), guard_(device.type()),
          own_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true))
    {
    }
    ~Device()
    {
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
    // What has made this communicator unusable, for the person.
    std::exception_ptr error() const
    {
        kolo_status_t status = KOLO_OK;
        kolo_comm_get_async_error(comm_, &status);
        if (status == KOLO_OK || status == KOLO_IN_PROGRESS) return nullptr;
        try {
            fail(status, device_words() + std::string(kolo_get_last_error(comm_)));
        } catch (...) {
            return std::current_exception();
        }
    }
    std::mutex mutex; // one call at a time: torch's main and autograd threads share a group

  private:
    kolo_comm_t comm_;
    c10::Device device_;
    c10::impl::VirtualGuardImpl guard_;
    c10::Stream own_;
};

// Complete for the host when its stream has reached its end.
class DeviceWork : public BaseWork
{
  public:
    DeviceWork(int rank, c10d::OpType op, const char *title, const Tensors &in, const Tensors &out, uint64_t seq,
               std::shared_ptr<Device> device, c10::Stream stream)
        : BaseWork(rank, op, title, in, out, seq), device_(std::move(device)), stream_(stream),
          end_(stream.device_type(), c10::EventFlag::PYTORCH_DEFAULT)
    {
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
        end_.record(stream_);
        kept_ = std::move(kept);
        c10::StreamGuard on(stream_); // the future's events are recorded there
        end(nullptr);
    }
    bool wait(std::chrono::milliseconds timeout) override
    {
        if (timeout != kNoTimeout) {
            auto limit = std::chrono::steady_clock::now() + timeout;
            while (!end_.query()) {
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
        if (current != stream_) end_.block(current);
        kept_.clear();
    }
    bool isCompleted() override
    {
        return end_.query() || device_->error();
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

  private:
    std::shared_ptr<Device> device_;
    c10::Stream stream_;
    c10::Event end_;
    Tensors kept_;
};

// Makes a call on a stream of the device.
inline WorkPtr queue(const std::shared_ptr<Device> &d, int rank, c10d::OpType op, const char *title,
                     const Tensors &in, const Tensors &out, uint64_t seq, bool async, const Call &call)
{
    std::lock_guard<std::mutex> lock(d->mutex);
    if (auto error = d->error()) std::rethrow_exception(error);
    c10::Stream current = d->current(), stream = async ? d->own() : current;
    auto work = c10::make_intrusive<DeviceWork>(rank, op, title, in, out, seq, d, stream);
    if (async) {
        c10::Event before(stream.device_type(), c10::EventFlag::PYTORCH_DEFAULT);
        before.record(current);
        before.block(stream);
    }
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
