// SPDX-License-Identifier: Apache-2.0
//
// What the files of this extension share: calls of the library without the interpreter's lock, buffers, handles.
#pragma once

#include <kolo/kolo.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace nb = nanobind;

namespace kolocomm
{

// ---- calls (call.cpp) ----------------------------------------------------------------------------------------

// Threads inside a call of the library, without the interpreter's lock. They are counted, so that the interpreter
// does not end under them; a call that waits runs signal handlers, so that Ctrl-C ends it.
class Unlocked
{
  public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked &) = delete;

  private:
    PyThreadState *state_; // of a function of the program that the library calls, too: they nest
};

// A thread of the library, or of a Lane, with the interpreter's lock. False where the interpreter has ended.
class Locked
{
  public:
    Locked();
    ~Locked();
    Locked(const Locked &) = delete;
    explicit operator bool() const
    {
        return locked_;
    }

  private:
    bool locked_;
    PyGILState_STATE state_;
};

// What a function of the program raised inside the library, on this thread: raised again when the call is back.
void remember_raised();
bool take_raised(std::string *text); // as words, for a thread of the library

// Runs f() without the lock. Whoever needs the message of a failure asks before the next call.
template <class F> auto unlocked(F &&f)
{
    Unlocked here;
    return f();
}

// Raises the exception of a status that is not KOLO_OK, with the library's words; or the one of a signal handler.
[[noreturn]] void fail(kolo_status_t status, kolo_comm_t comm, const char *text = nullptr);
inline void check(kolo_status_t status, kolo_comm_t comm = nullptr)
{
    if (status != KOLO_OK) fail(status, comm);
}
void raise_remembered();
// What the main thread is in: Ctrl-C ends it, and then the communicator (call.cpp).
void watch(kolo_comm_t comm);
void unwatch();
void start_watching();
template <class F> void run(kolo_comm_t comm, F &&f)
{
    watch(comm);
    kolo_status_t status = unlocked(f);
    unwatch();
    raise_remembered();
    check(status, comm);
}

[[noreturn]] void refuse(kolo_status_t status, const std::string &text);
[[noreturn]] inline void refuse(const std::string &text)
{
    refuse(KOLO_ERR_INVALID_ARGUMENT, text);
}
std::string words(const char *format, ...) __attribute__((format(printf, 1, 2)));
// A limit in seconds as milliseconds; None: a very long one. What is no limit is refused.
double limit_of(nb::handle timeout);

// An argument whose type is not in the signature, as a number or a text; raises InvalidArgument if it is something
// else.
template <typename T> T want(nb::handle value, const char *what)
{
    T wanted;
    if (nb::try_cast<T>(value, wanted)) return wanted;
    const char *kind = std::is_same_v<T, std::string> ? "a str"
                       : std::is_same_v<T, bool>      ? "True or False"
                       : std::is_arithmetic_v<T>      ? "a whole number"
                                                      : "a list of whole numbers";
    refuse(words("%s is %.80s; %s is needed, in its range", what, nb::repr(value).c_str(), kind));
}

// An argument that is one of this extension's classes; raises InvalidArgument if it is something else.
template <typename T> T &want_object(nb::handle value, const char *what, const char *kind)
{
    if (!nb::isinstance<T>(value)) refuse(words("%s is %.80s; %s is needed", what, nb::repr(value).c_str(), kind));
    return *nb::inst_ptr<T>(value);
}

// Numbers of processes since fork(): a handle of the parent is refused in the child.
int forks();
void bind_calls(nb::module_ &m);

// ---- buffers (buffer.cpp) ------------------------------------------------------------------------------------

// The memory of an array: of the buffer protocol (numpy), DLPack (torch, JAX, CuPy), or __cuda_array_interface__.
// It is held as long as this lives.
class Buffer
{
  public:
    Buffer() = default;                                                     // no memory
    static Buffer maybe(nb::handle array, const char *what, bool writable); // None: no memory
    Buffer(nb::handle array, const char *what, bool writable);
    Buffer(Buffer &&other) noexcept;
    Buffer &operator=(Buffer &&other) noexcept;
    ~Buffer();
    explicit operator bool() const
    {
        return there_;
    }
    void *data = nullptr;
    size_t count = 0; // elements
    kolo_type_t type = KOLO_UINT8;
    int device = -1;
    size_t bytes() const
    {
        return count * kolo_type_size(type);
    }

  private:
    bool from_protocol(nb::handle array, const char *what, bool writable);
    bool from_dlpack(nb::handle array, const char *what, bool writable);
    bool from_cuda(nb::handle array, const char *what);
    void release();
    bool there_ = false;
    Py_buffer view_ = {};
    bool has_view_ = false;
    nb::object owner_;
};

const char *type_name(kolo_type_t type);
struct Comm;
kolo_op_t op_of(nb::handle op, const Comm *comm = nullptr); // comm: an Op must be of this one

// ---- handles -------------------------------------------------------------------------------------------------

class Lane; // lane.hpp: a queue of calls with a thread
struct Stream;

struct Comm {
    kolo_comm_t handle = nullptr;
    int rank = -1, size = 0, device = -1;
    int born = forks();
    bool borrowed = false;         // the handle belongs to a State
    std::atomic<bool> busy{false}; // a thread is inside a call
    std::unique_ptr<Lane> lane;    // of operations in the background
    Comm();
    ~Comm();
    std::string why;                         // why the handle is no more
    kolo_comm_t get(const char *what) const; // or raises: it has ended, or belongs to the parent of a fork()
};

Comm *adopt(kolo_comm_t handle); // a new object of a communicator that is ready
kolo_config_t config_of(const nb::kwargs &options, std::string *name);
void bind_comm(nb::module_ &m, nb::class_<Comm> &c);
void bind_ops(nb::module_ &m, nb::class_<Comm> &c);
void bind_collectives(nb::class_<Comm> &c);
void bind_messages(nb::module_ &m, nb::class_<Comm> &c);
void bind_tagged(nb::module_ &m, nb::class_<Comm> &c);
void bind_windows(nb::module_ &m, nb::class_<Comm> &c);
void bind_launch(nb::module_ &m);
void bind_engine(nb::module_ &m);
void bind_keyed(nb::module_ &m);
void bind_state(nb::module_ &m);

} // namespace kolocomm
