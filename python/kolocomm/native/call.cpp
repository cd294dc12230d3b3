// SPDX-License-Identifier: Apache-2.0
//
// Calls of the library: without the interpreter's lock, with signals, and what becomes of a failure.
#include "native.hpp"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <mutex>
#include <pthread.h>
#include <semaphore.h>
#include <thread>
#include <unistd.h>

namespace kolocomm
{
namespace
{

std::atomic<int> inside{0}, generation{0};
std::atomic<bool> leaving{false}, gone{false};
thread_local PyObject *raised;
std::mutex mutex;
std::condition_variable left;
nb::object *make_error; // kolocomm.errors.make; lives as long as the process

void leave_inside()
{
    if (inside.fetch_sub(1) == 1 && leaving.load()) {
        std::lock_guard<std::mutex> lock(mutex);
        left.notify_all();
    }
}

// Ctrl-C: Python's own handler notes it, and is seen when the main thread is back. So that it comes back, a thread
// that the handler wakes aborts the communicator that the main thread waits in: in the very wait that the signal
// met, since that thread may come late, when the program has seen its Ctrl-C and is in another call. A program with
// a handler of its own for SIGINT has the signal when the call is complete, as in other extensions.
std::atomic<kolo_comm_t> waited_in{nullptr};
std::atomic<uint64_t> wait_number{0}, interrupted{0}; // 0: the main thread is in no wait, or was in none
thread_local bool is_main;
struct sigaction python_handler;
sem_t interrupts;
bool watching;

extern "C" void on_interrupt(int number)
{
    if (python_handler.sa_handler && python_handler.sa_handler != SIG_IGN) python_handler.sa_handler(number);
    interrupted.store(wait_number.load());
    sem_post(&interrupts);
}

void abort_interrupted()
{
    for (;;) {
        while (sem_wait(&interrupts) != 0) {
        }
        kolo_comm_t comm = waited_in.load();
        uint64_t number = interrupted.load();
        if (comm && number && number == wait_number.load()) kolo_comm_abort(comm);
    }
}

} // namespace

void start_watching()
{
    nb::object signals = nb::module_::import_("signal");
    sigset_t all, old;
    struct sigaction mine = {};
    if (watching || !signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"))) return;
    watching = true;
    sem_init(&interrupts, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    std::thread(abort_interrupted).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    mine.sa_handler = on_interrupt, mine.sa_flags = SA_ONSTACK;
    sigaction(SIGINT, nullptr, &python_handler);
    if (!(python_handler.sa_flags & SA_SIGINFO)) sigaction(SIGINT, &mine, nullptr);
}

namespace
{

void in_child()
{
    watching = false; // the next communicator starts a thread of this process
    if (python_handler.sa_handler) sigaction(SIGINT, &python_handler, nullptr);
    generation.fetch_add(1);
    inside.store(0);
}

} // namespace

Unlocked::Unlocked()
{
    if (leaving.load(std::memory_order_relaxed))
        refuse(KOLO_ERR_INVALID_USAGE, "the interpreter is ending: no call of Kolo can begin any more");
    inside.fetch_add(1, std::memory_order_relaxed);
    state_ = PyEval_SaveThread();
}

Unlocked::~Unlocked()
{
    PyEval_RestoreThread(state_);
    leave_inside();
}

Locked::Locked()
{
    inside.fetch_add(1);
    locked_ = !gone.load();
    if (locked_)
        state_ = PyGILState_Ensure();
    else
        leave_inside();
}

Locked::~Locked()
{
    if (!locked_) return;
    PyGILState_Release(state_);
    leave_inside();
}

void remember_raised()
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace) PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XDECREF(raised);
    raised = value;
}

bool take_raised(std::string *text)
{
    if (!raised) return false;
    nb::object error = nb::steal(raised);
    raised = nullptr;
    *text = "a function of the program raised " + nb::cast<std::string>(nb::repr(error));
    return true;
}

void raise_remembered()
{
    if (!raised) return;
    nb::object error = nb::steal(raised);
    raised = nullptr;
    PyErr_SetObject((PyObject *)Py_TYPE(error.ptr()), error.ptr());
    throw nb::python_error();
}

void watch(kolo_comm_t comm)
{
    static uint64_t count;
    if (!is_main) return;
    waited_in.store(comm, std::memory_order_relaxed);
    wait_number.store(++count, std::memory_order_release);
}

void unwatch()
{
    if (!is_main) return;
    wait_number.store(0, std::memory_order_relaxed);
    waited_in.store(nullptr, std::memory_order_relaxed);
}

std::string words(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return text;
}

void refuse(kolo_status_t status, const std::string &text)
{
    fail(status, nullptr, text.c_str());
}

void fail(kolo_status_t status, kolo_comm_t comm, const char *text)
{
    if (is_main && PyErr_CheckSignals() != 0) throw nb::python_error(); // Ctrl-C has ended the call
    std::string message = text ? text : kolo_get_last_error(nullptr);
    if (message.empty() && comm) message = kolo_get_last_error(comm);
    std::vector<int> lost;
    int count = 0;
    if (comm && kolo_comm_lost(comm, nullptr, &count) == KOLO_OK && count > 0) {
        lost.resize(count);
        if (kolo_comm_lost(comm, lost.data(), &count) != KOLO_OK) lost.clear();
    }
    nb::list ranks;
    for (int rank : lost) ranks.append(rank);
    int me = -1;
    if (comm) kolo_comm_user_rank(comm, &me);
    nb::object error = (*make_error)((int)status, message, nb::tuple(ranks), me);
    PyErr_SetObject((PyObject *)Py_TYPE(error.ptr()), error.ptr());
    throw nb::python_error();
}

int forks()
{
    return generation.load(std::memory_order_relaxed);
}

void bind_calls(nb::module_ &m)
{
    pthread_atfork(nullptr, nullptr, in_child);
    is_main = gettid() == getpid();
    m.def("_set_make_error", [](nb::object fn) { make_error = new nb::object(fn); });
    // At exit: no call begins any more, and those under way have so long to come back. False: some have not.
    m.def("_leave", [](double seconds) {
        leaving.store(true);
        nb::gil_scoped_release release;
        std::unique_lock<std::mutex> lock(mutex);
        auto none = [] { return inside.load() == 0; };
        bool all = left.wait_for(lock, std::chrono::duration<double>(seconds), none);
        gone.store(true); // who comes now goes on without the interpreter
        return all && left.wait_for(lock, std::chrono::duration<double>(seconds), none);
    });
    m.def("_inside", [] { return inside.load(); });
    m.def("_forks", [] { return forks(); });
    m.def("get_version", [] {
        int version = 0;
        check(kolo_get_version(&version));
        return version;
    });
    m.def("status_string", [](int status) { return kolo_status_string((kolo_status_t)status); });
    m.def("type_size", [](int type) { return kolo_type_size((kolo_type_t)type); });
    m.def("op_takes", [](nb::handle op, int type) { return kolo_op_takes(op_of(op), (kolo_type_t)type) != 0; });
}

} // namespace kolocomm
