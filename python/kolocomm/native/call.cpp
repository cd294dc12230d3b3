// SPDX-License-Identifier: Apache-2.0
//
// Calls of the library: without the interpreter's lock, with signals, and what becomes of a failure.
#include "native.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <mutex>
#include <pthread.h>

namespace kolocomm
{
namespace
{

thread_local PyThreadState *saved; // while this thread is without the lock
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

void in_child()
{
    generation.fetch_add(1);
    inside.store(0);
}

} // namespace

Unlocked::Unlocked()
{
    if (leaving.load(std::memory_order_relaxed))
        refuse(KOLO_ERR_INVALID_USAGE, "the interpreter is ending: no call of Kolo can begin any more");
    inside.fetch_add(1, std::memory_order_relaxed);
    saved = PyEval_SaveThread();
}

Unlocked::~Unlocked()
{
    PyThreadState *mine = saved;
    saved = nullptr;
    PyEval_RestoreThread(mine);
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
    if (PyErr_Occurred()) throw nb::python_error(); // of a signal handler: KeyboardInterrupt
    std::string message = text ? text : kolo_get_last_error(nullptr);
    if (message.empty() && comm) message = kolo_get_last_error(comm);
    std::vector<int> lost;
    int count = 0;
    if (comm && !text && kolo_comm_lost(comm, nullptr, &count) == KOLO_OK && count > 0) {
        lost.resize(count);
        if (kolo_comm_lost(comm, lost.data(), &count) != KOLO_OK) lost.clear();
    }
    nb::list ranks;
    for (int rank : lost) ranks.append(rank);
    int me = -1;
    if (comm && !text) kolo_comm_user_rank(comm, &me);
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
