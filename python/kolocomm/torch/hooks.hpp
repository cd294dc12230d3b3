// SPDX-License-Identifier: Apache-2.0
//
// What a group tells of its operations: torch's hooks for what has completed and what has failed, and the limits
// that are longer until an operation is complete.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/python_headers.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace kolotorch
{

using Clock = std::chrono::steady_clock;

#ifdef C10D_BACKEND_HAS_HOOKS
using AbortHook = c10d::AbortHook;
using CompletionHook = c10d::CompletionHook;
#else // older torch has none: nothing is ever registered
struct Completion {
    uint64_t completionKey;
    std::optional<float> duration_ms;
};
using AbortHook = std::function<void()>;
using CompletionHook = std::function<void(const Completion &)>;
#endif

// What ends groups waits. Their callbacks and hooks may need the interpreter's lock, so a thread that has it gives
// it back meanwhile.
class Unlocked
{
  public:
    Unlocked() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr)
    {
    }
    ~Unlocked()
    {
        if (saved_) PyEval_RestoreThread(saved_);
    }

  private:
    PyThreadState *saved_;
};

// An operation that is complete.
struct Ended {
    uint64_t key; // that of its Work, never used again
    c10d::OpType op;
    uint64_t seq;
    Clock::time_point called, begun, ended;
    std::optional<float> milliseconds; // how long it ran, where that is known
};

inline float milliseconds_between(Clock::time_point a, Clock::time_point b)
{
    return std::chrono::duration<float, std::milli>(b - a).count();
}

// Threads that run abort hooks. The interpreter's end waits for them: a hook may need the interpreter.
class Tellers
{
  public:
    static Tellers &all()
    {
        static auto *tellers = new Tellers; // outlives the threads
        return *tellers;
    }
    void run(std::function<void()> call)
    {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            running_++;
        }
        std::thread([this, call = std::move(call)] {
            call();
            std::lock_guard<std::mutex> lock(mutex_);
            running_--;
            changed_.notify_all();
        }).detach();
    }
    void wait()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(20), [this] { return running_ == 0; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int running_ = 0;
};

// The hooks of a group. They are called with no lock held, on the thread that learns of the operation's end.
class Hooks : public std::enable_shared_from_this<Hooks>
{
  public:
    using OnCompletion = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

    bool wanted() const // somebody wants to hear of what completes
    {
        return wanted_.load(std::memory_order_relaxed);
    }
    void set_completion(int64_t id, CompletionHook hook)
    {
        change([&](Table &t) {
            t.completion.erase(id);
            if (hook) t.completion.emplace(id, std::move(hook));
        });
    }
    void set_abort(int64_t id, AbortHook hook)
    {
        change([&](Table &t) {
            t.abort.erase(id);
            if (hook) t.abort.emplace(id, std::move(hook));
        });
    }
    void set_on_completion(OnCompletion hook)
    {
        change([&](Table &t) { t.on_completion = std::move(hook); });
    }
    void completed(const Ended &e)
    {
        if (longer_.load(std::memory_order_relaxed)) end_longer(e.key);
        if (!wanted()) return;
        auto t = table();
        for (auto &[id, hook] : t->completion)
            guarded("completion", [&, &hook = hook] { hook({e.key, e.milliseconds}); });
        if (!t->on_completion) return;
        auto took = std::chrono::duration<float>(e.milliseconds.value_or(0) / 1000);
        auto info = std::make_shared<c10d::WorkInfo>(e.op, e.seq, e.called, e.ended, took);
        guarded("on-completion", [&] { t->on_completion(info); });
    }
    // An operation has failed.
    void failed(uint64_t key, bool whole)
    {
        if (longer_.load(std::memory_order_relaxed)) end_longer(key);
        if (whole) ending();
    }
    // The group has failed, or is aborted: the abort hooks run once, on a thread of their own, since a trace takes
    // long to write, and neither exception nor abort is to be late.
    void ending()
    {
        if (table()->abort.empty() || told_.exchange(true)) return;
        Tellers::all().run([self = shared_from_this()] { self->tell_abort(); });
    }
    void begin_again()
    {
        told_ = false;
    }

    // ---- limits that are longer until the first operation called afterwards is complete ------------------------

    void add_longer(std::chrono::milliseconds more)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        extra_.push_back({more, 0});
        longer_ = true;
    }
    std::chrono::milliseconds longer(uint64_t key) // for the operation of that key, which is called now
    {
        std::chrono::milliseconds sum(0);
        if (!longer_.load(std::memory_order_relaxed)) return sum;
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto &e : extra_) {
            sum += e.more;
            if (!e.until) e.until = key;
        }
        return sum;
    }

  private:
    struct Table {
        std::map<int64_t, CompletionHook> completion;
        std::map<int64_t, AbortHook> abort;
        OnCompletion on_completion;
    };
    struct Extra {
        std::chrono::milliseconds more;
        uint64_t until; // key of an operation; 0: none was called yet
    };
    std::shared_ptr<const Table> table()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return table_;
    }
    template <class Change> void change(Change how)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        auto t = std::make_shared<Table>(*table_);
        how(*t);
        wanted_ = !t->completion.empty() || t->on_completion;
        table_ = std::move(t);
    }
    void end_longer(uint64_t key)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        extra_.erase(std::remove_if(extra_.begin(), extra_.end(), [&](auto &e) { return e.until == key; }),
                     extra_.end());
        longer_ = !extra_.empty();
    }
    void tell_abort()
    {
        auto t = table();
        for (auto &[id, hook] : t->abort) guarded("abort", hook);
    }
    template <class Hook> static void guarded(const char *kind, const Hook &hook)
    {
        try {
            hook();
        } catch (const std::exception &e) {
            TORCH_WARN("kolo: a group's ", kind, " hook has failed: ", e.what());
        }
    }
    std::mutex mutex_;
    std::shared_ptr<const Table> table_ = std::make_shared<Table>();
    std::vector<Extra> extra_;
    std::atomic<bool> wanted_{false}, longer_{false}, told_{false};
};

} // namespace kolotorch
