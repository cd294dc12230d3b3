// SPDX-License-Identifier: Apache-2.0
//
// A queue of calls on one communicator, and the thread that makes them in order. Knows nothing of Python.
#pragma once

#include <kolo/kolo.h>

#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace kolocomm
{

class Lane
{
  public:
    using Call = std::function<kolo_status_t()>;
    using Then = std::function<void(kolo_status_t status, std::string text)>; // on the lane's thread

    Lane() = default;
    Lane(const Lane &) = delete;
    ~Lane() // what is queued is still called: revoke or abort the communicator first to make that short
    {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        if (thread_.joinable()) thread_.join();
    }
    uint64_t submit(Call call, Then then) // returns its number
    {
        std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back({std::move(call), std::move(then), ++numbers_});
        if (!thread_.joinable()) start();
        changed_.notify_all();
        return numbers_;
    }
    // Makes the call of that number on the caller's thread, which is about to wait for it, if it is the next.
    void help(uint64_t number)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (busy_ || queue_.empty() || queue_.front().number != number) return;
        make_next(lock);
        if (!queue_.empty()) changed_.notify_all();
    }
    // A call that the caller's thread makes in its turn: true if nothing is before it, and then leave() ends it.
    bool enter()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (busy_ || !queue_.empty()) return false;
        return busy_ = true;
    }
    void leave()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        busy_ = false;
        if (queue_.empty())
            idle_.notify_all();
        else
            changed_.notify_all();
    }
    bool idle()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return !busy_ && queue_.empty();
    }
    void drain()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        idle_.wait(lock, [this] { return !busy_ && queue_.empty(); });
    }

  private:
    struct Job {
        Call call;
        Then then;
        uint64_t number;
    };
    void start() // signals are the program's
    {
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        thread_ = std::thread([this] { loop(); });
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
    }
    void loop()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return !busy_ && (stop_ || !queue_.empty()); });
            if (queue_.empty()) return;
            make_next(lock);
        }
    }
    void make_next(std::unique_lock<std::mutex> &lock)
    {
        Job job = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        kolo_status_t status = job.call();
        job.then(status, status == KOLO_OK ? "" : kolo_get_last_error(nullptr));
        job = Job();
        lock.lock();
        busy_ = false;
        if (queue_.empty()) idle_.notify_all();
    }
    std::mutex mutex_;
    std::condition_variable changed_, idle_;
    std::deque<Job> queue_;
    uint64_t numbers_ = 0;
    bool busy_ = false, stop_ = false;
    std::thread thread_;
};

} // namespace kolocomm
