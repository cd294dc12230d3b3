// SPDX-License-Identifier: Apache-2.0
//
// send, recv and recv from any rank for tensors in memory of the host: Kolo's messages with tags (kolo/message.h),
// each of which completes apart from all else on the group's communicator.
#pragma once

#include "tensors.hpp"

namespace kolotorch
{

// A message under way. Its memory is in use until its request is complete, whether its Work is still there or not.
class Message
{
  public:
    Message(const at::Tensor &t, bool receive) : whole_(t, !receive), receive_(receive)
    {
    }
    ~Message()
    {
        kolo_request_free(request_);
    }
    void start(int peer, int tag, kolo_comm_t comm, std::chrono::milliseconds timeout)
    {
        kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
        opts.timeout_ms = milliseconds_of(timeout);
        uint64_t number = (uint32_t)tag;
        if (receive_)
            must(kolo_irecv_tag(whole_.data(), bytes(), KOLO_UINT8, peer, number, comm, &opts, &request_));
        else
            must(kolo_isend_tag(whole_.data(), bytes(), KOLO_UINT8, peer, number, comm, &opts, &request_));
    }
    bool complete() const
    {
        int done = 0;
        must(kolo_request_test(request_, &done));
        return done != 0;
    }
    bool wait(std::chrono::milliseconds timeout) const // false: not yet
    {
        return kolo_request_wait(request_, timeout == kNoTimeout ? -1 : (int)timeout.count()) != KOLO_IN_PROGRESS;
    }
    std::exception_ptr take(int *source) const // of a complete one
    {
        try {
            const char *text = "";
            kolo_status_t status = kolo_request_error(request_, &text);
            if (status != KOLO_OK) fail(status, text);
            if (!receive_) return nullptr;
            kolo_received_t got;
            must(kolo_request_get_received(request_, &got));
            *source = got.source;
            if (got.bytes != bytes())
                fail(KOLO_ERR_MISMATCH, "recv: rank " + std::to_string(got.source) + " sent " +
                                            std::to_string(got.bytes) + " bytes, and the tensor has " +
                                            std::to_string(bytes()) + ": pass one of the size that is sent");
            whole_.give_back();
            return nullptr;
        } catch (...) {
            return std::current_exception();
        }
    }
    kolo_request_t request() const
    {
        return request_;
    }

  private:
    size_t bytes() const
    {
        return whole_.memory.nbytes();
    }
    Whole whole_;
    bool receive_;
    kolo_request_t request_ = nullptr;
};

class MessageWork;

// Messages that nobody holds any more and that are not complete, and a thread that completes the futures of those
// for which somebody has asked.
class Mail
{
  public:
    ~Mail()
    {
        Unlocked unlocked;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        if (!thread_.joinable()) return;
        if (thread_.get_id() == std::this_thread::get_id())
            thread_.detach(); // the last Work was dropped there
        else
            thread_.join();
    }
    void keep(std::unique_ptr<Message> message, const Terms &terms, const Ended &what)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        kept_.push_back({std::move(message), terms, what});
    }
    void sweep() // completes what is kept and has ended
    {
        std::vector<Kept> ended;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (kept_.empty()) return;
            auto first = std::partition(kept_.begin(), kept_.end(), [](auto &k) { return !k.message->complete(); });
            std::move(first, kept_.end(), std::back_inserter(ended));
            kept_.erase(first, kept_.end());
        }
        for (auto &k : ended) k.end();
    }
    void watch(c10::intrusive_ptr<MessageWork> work);
    void open(MessageWork *work); // one whose completion somebody wants to hear of
    void settle_all();            // waits for all of these, and for what is kept

  private:
    struct Kept {
        std::unique_ptr<Message> message;
        Terms terms;
        Ended what;
        void end()
        {
            int source;
            what.ended = Clock::now();
            what.milliseconds = milliseconds_between(what.begun, what.ended);
            if (!message->take(&source)) terms.hooks->completed(what);
        }
    };
    void loop();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Kept> kept_;
    std::vector<c10::intrusive_ptr<MessageWork>> watched_;
    std::vector<c10::weak_intrusive_ptr<MessageWork>> open_;
    bool stop_ = false;
    std::thread thread_;
};

class MessageWork : public BaseWork
{
  public:
    MessageWork(int rank, c10d::OpType op, const char *title, const Tensors &in, const Tensors &out,
                std::unique_ptr<Message> message, std::shared_ptr<Mail> mail, uint64_t seq, Terms terms,
                uint64_t key)
        : BaseWork(rank, op, title, in, out, seq, std::move(terms), key), message_(std::move(message)),
          mail_(std::move(mail))
    {
    }
    ~MessageWork() override
    {
        if (!over_) mail_->keep(std::move(message_), terms(), ended());
    }
    bool wait(std::chrono::milliseconds timeout) override
    {
        if (!message_->wait(timeout)) not_yet(timeout);
        settle();
        std::lock_guard<std::mutex> lock(mutex_);
        if (exception_) std::rethrow_exception(exception_);
        return true;
    }
    bool isCompleted() override
    {
        if (!message_->complete()) return false;
        settle();
        return true;
    }
    int sourceRank() const override
    {
        return source_;
    }
    void abort() override
    {
        kolo_request_cancel(message_->request());
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        auto future = BaseWork::getFuture();
        if (!isCompleted()) mail_->watch(c10::intrusive_ptr<MessageWork>::reclaim_copy(this));
        return future;
    }
    void settled() // when the message is complete, whether well or not
    {
        message_->wait(kNoTimeout);
        settle();
    }
    void settle() // of a complete message: once
    {
        std::lock_guard<std::mutex> lock(settling_);
        if (over_) return;
        end(message_->take(&source_));
        over_ = true;
    }
    kolo_request_t request() const
    {
        return message_->request();
    }

  private:
    std::unique_ptr<Message> message_;
    std::shared_ptr<Mail> mail_;
    std::mutex settling_;
    bool over_ = false;
    int source_ = -1;
};

inline void Mail::watch(c10::intrusive_ptr<MessageWork> work)
{
    std::lock_guard<std::mutex> lock(mutex_);
    watched_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    changed_.notify_all();
}

inline void Mail::open(MessageWork *work)
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_.size() >= 64) // those that are gone
        open_.erase(std::remove_if(open_.begin(), open_.end(), [](auto &w) { return w.expired(); }), open_.end());
    open_.push_back(c10::weak_intrusive_ptr<MessageWork>(c10::intrusive_ptr<MessageWork>::reclaim_copy(work)));
}

inline void Mail::settle_all()
{
    std::vector<c10::weak_intrusive_ptr<MessageWork>> open;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        open.swap(open_);
    }
    for (auto &weak : open)
        if (auto work = weak.lock()) work->settled();
    open.clear(); // what nobody holds comes to what is kept
    std::vector<Kept> kept;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        kept.swap(kept_);
    }
    for (auto &k : kept) {
        k.message->wait(kNoTimeout); // each has a limit of its own
        k.end();
    }
}

inline void Mail::loop()
{
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
        if (watched_.empty()) {
            changed_.wait(lock);
            continue;
        }
        auto some = watched_;
        lock.unlock();
        std::vector<kolo_request_t> requests;
        for (auto &w : some) requests.push_back(w->request());
        int first = -1;
        kolo_request_wait_any(requests.data(), (int)requests.size(), 5, &first); // 5 ms: others may have come
        for (auto &w : some)
            if (w->isCompleted()) w.reset();
        lock.lock();
        watched_.erase(std::remove_if(watched_.begin(), watched_.end(), [](auto &w) { return w->isCompleted(); }),
                       watched_.end());
    }
}

// All ranks report to rank 0, which names those that do not, and answers when all have.
inline void monitored_barrier(kolo_comm_t comm, int rank, int size, std::chrono::milliseconds limit, bool all)
{
    constexpr uint64_t REPORT = UINT64_C(1) << 32, ANSWER = REPORT + 1; // torch's tags are less
    kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
    std::string took = " in " + std::to_string(limit.count()) + " ms";
    auto end = std::chrono::steady_clock::now() + limit;
    auto left = [&] {
        auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        opts.timeout_ms = milliseconds_of(ms);
        return &opts;
    };
    if (rank != 0) {
        must(kolo_send_tag(nullptr, 0, KOLO_UINT8, 0, REPORT, comm, left()));
        kolo_status_t status = kolo_recv_tag(nullptr, 0, KOLO_UINT8, 0, ANSWER, comm, left(), nullptr);
        if (status != KOLO_OK)
            fail(status, "Rank " + std::to_string(rank) +
                             " successfully reached monitoredBarrier, but received errors while waiting for "
                             "send/recv from rank 0. Rank 0 timed out in monitoredBarrier" +
                             took + ": " + kolo_get_last_error(nullptr));
        return;
    }
    std::string missing;
    for (int r = 1, more = 1; r < size && more; r++) {
        kolo_status_t status = kolo_recv_tag(nullptr, 0, KOLO_UINT8, r, REPORT, comm, left(), nullptr);
        if (status == KOLO_OK) continue;
        missing += (missing.empty() ? "" : ", ") + std::to_string(r);
        more = all;
    }
    if (!missing.empty())
        fail(KOLO_ERR_TIMEOUT, "Rank 0 timed out in monitoredBarrier: " + std::string(all ? "Ranks " : "Rank ") +
                                   missing + " failed to pass monitoredBarrier" + took);
    for (int r = 1; r < size; r++) must(kolo_send_tag(nullptr, 0, KOLO_UINT8, r, ANSWER, comm, left()));
}

} // namespace kolotorch
