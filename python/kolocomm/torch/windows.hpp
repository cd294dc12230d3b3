// SPDX-License-Identifier: Apache-2.0
//
// torch's windows: memory of a tensor of the host that other ranks write to. Each window has a communicator of its
// own, so what waits for a signal holds up no collective, and what fails there ends nothing else.
#pragma once

#include "group.hpp"

namespace kolotorch
{

#ifdef C10D_BACKEND_HAS_WINDOW
class Window : public c10d::Window
{
  public:
    Window(kolo_comm_t comm, int rank, int size, Terms terms)
        : rank_(rank), size_(size), terms_(std::move(terms)), lane_(comm)
    {
    }
    static void check(const at::Tensor &t)
    {
        TORCH_CHECK(t.is_cpu(), "kolo: windows are for tensors in memory of the host, and this one is on ",
                    t.device(), ": register one of the CPU, or use send and recv");
        TORCH_CHECK(t.layout() == at::kStrided && t.is_contiguous(),
                    "kolo: the tensor of a window has to be contiguous: call .contiguous() and keep that one");
    }
    void tensor_register(const at::Tensor &tensor, bool owning) override
    {
        check(tensor);
        TORCH_CHECK(!window_, "kolo: the window has a tensor: call tensor_deregister() on all ranks first");
        call("kolo:tensor_register", {}, false, c10d::kUnsetTimeout, [&](const Place &p) {
            must(kolo_window_register(p.comm, tensor.data_ptr(), tensor.nbytes(), &window_));
        });
        tensor_ = owning ? tensor : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
    }
    void tensor_deregister() override
    {
        registered();
        call("kolo:tensor_deregister", {}, false, c10d::kUnsetTimeout, [&](const Place &p) {
            must(kolo_window_deregister(p.comm, window_));
            window_ = nullptr;
        });
        tensor_ = at::Tensor();
    }
    WorkPtr put(const at::Tensor &tensor, int64_t peer, int64_t offset, bool async,
                const c10d::PutOptions &o) override
    {
        registered();
        is_rank(peer);
        TORCH_CHECK(tensor.is_cpu(), "kolo: put: a tensor is on ", tensor.device(), ", and the window on the CPU");
        TORCH_CHECK(tensor.scalar_type() == tensor_.scalar_type(), "kolo: put: a tensor of ", tensor.scalar_type(),
                    " into a window of ", tensor_.scalar_type());
        TORCH_CHECK(offset >= 0, "kolo: put: offset ", offset, " is before the window's beginning");
        at::Tensor src = tensor.contiguous();
        size_t bytes = src.nbytes(), at = (size_t)offset * tensor_.element_size();
        return call("kolo:put", {src}, async, o.timeout, [=, this](const Place &p) {
            must(kolo_put(src.data_ptr(), bytes, KOLO_UINT8, (int)peer, window_, at, p.comm, p.stream));
        });
    }
    WorkPtr signal(int64_t peer, bool async, const c10d::SignalOptions &o) override
    {
        registered();
        is_rank(peer);
        return call("kolo:signal", {}, async, o.timeout,
                    [peer](const Place &p) { must(kolo_signal((int)peer, 0, p.comm, p.stream)); });
    }
    WorkPtr wait_signal(int64_t peer, bool async, const c10d::WaitSignalOptions &o) override
    {
        registered();
        is_rank(peer);
        return call("kolo:wait_signal", {}, async, o.timeout, [peer](const Place &p) {
            kolo_signal_wait_t wait = {(int)peer, 0, 1};
            must(kolo_wait_signal(&wait, 1, p.comm, p.stream));
        });
    }
    at::Tensor map_remote_tensor(int64_t rank) override
    {
        registered();
        is_rank(rank);
        TORCH_CHECK(rank == rank_, "kolo: map_remote_tensor: the memory of rank ", rank,
                    " is not mapped in this process: write to it with put()");
        return tensor_;
    }
    c10d::WindowAttr get_attr(int64_t rank) override
    {
        is_rank(rank);
        return {c10d::WindowAccessType::UNIFIED};
    }

  private:
    void registered() const
    {
        TORCH_CHECK(window_, "kolo: the window has no tensor: call tensor_register() on all ranks first");
    }
    void is_rank(int64_t peer) const
    {
        TORCH_CHECK(peer >= 0 && peer < size_, "kolo: rank ", peer, " is not in this group of ", size_);
    }
    WorkPtr call(const char *title, const Tensors &in, bool async, std::chrono::milliseconds own, Call call)
    {
        uint64_t key = next_key();
        Terms terms = terms_;
        auto limit = (own == c10d::kUnsetTimeout ? terms.limit : own) + terms.hooks->longer(key);
        terms.limit = limit;
        auto work =
            c10::make_intrusive<Work>(rank_, OpType::UNKNOWN, title, in, Tensors(), ++seq_, std::move(terms), key);
        Unlocked unlocked;
        lane_.run(work, limited(std::move(call), limit), !async);
        if (!async) work->wait(kNoTimeout);
        return work;
    }
    int rank_, size_;
    Terms terms_;
    std::atomic<uint64_t> seq_{0};
    at::Tensor tensor_; // before lane_: what is queued ends before the memory is freed
    kolo_window_t window_ = nullptr;
    CommLane lane_;
};
#endif

} // namespace kolotorch
