// SPDX-License-Identifier: Apache-2.0
//
// Groups, streams, events, and operations in the background.
#include "launch.hpp"

#include <chrono>

namespace kolocomm
{
namespace
{

thread_local int depth;
// Not freed at the end of a thread: that may be without the interpreter's lock.
thread_local std::vector<Buffer> *group_keeps;

void end_group()
{
    if (depth == 0) refuse(KOLO_ERR_INVALID_USAGE, "group_end() without group_start()");
    if (--depth > 0) {
        check(kolo_group_end());
        return;
    }
    std::unique_ptr<std::vector<Buffer>> kept(group_keeps);
    group_keeps = nullptr;
    check(unlocked([] { return kolo_group_end(); }));
}

void finish(const std::shared_ptr<Request> &r, kolo_status_t status, std::string &&text)
{
    Locked here;
    if (!here) {
        new std::shared_ptr<Request>(r); // its objects cannot be freed any more
        return;
    }
    if (take_raised(&text)) status = KOLO_ERR_INVALID_USAGE;
    std::vector<nb::object> callbacks;
    {
        std::lock_guard<std::mutex> lock(r->mutex);
        r->status = status, r->text = std::move(text), r->done = true;
        callbacks.swap(r->callbacks);
    }
    r->ended.notify_all();
    r->kept.clear();
    for (nb::object &fn : callbacks) {
        PyObject *out = PyObject_CallFunctionObjArgs(fn.ptr(), r->self.ptr(), nullptr);
        if (!out) PyErr_WriteUnraisable(fn.ptr());
        Py_XDECREF(out);
    }
    r->self.reset();
}

bool wait_for(Request &r, double seconds)
{
    std::unique_lock<std::mutex> lock(r.mutex);
    auto until = [&r] { return r.done; };
    if (seconds < 0) {
        r.ended.wait(lock, until);
        return true;
    }
    return r.ended.wait_for(lock, std::chrono::duration<double>(seconds), until);
}

// In slices, so that Ctrl-C is seen: the operation goes on then.
void wait_request(Request &r, nb::handle timeout)
{
    double left = limit_of(timeout) / 1000;
    bool done = false;
    if (r.born != forks())
        refuse(KOLO_ERR_INVALID_USAGE, "wait: the operation belongs to the process that this one was forked from");
    for (; !done; left -= 0.05) {
        {
            Unlocked here;
            done = wait_for(r, left < 0.05 ? (left > 0 ? left : 0) : 0.05);
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (!done && left <= 0.05)
            refuse(KOLO_ERR_TIMEOUT,
                   words("the operation is not complete after %g s; it goes on", nb::cast<double>(timeout)));
    }
    if (r.status != KOLO_OK) fail(r.status, r.comm, r.text.c_str());
}

Stream &stream_of(nb::handle stream)
{
    Stream &s = want_object<Stream>(stream, "stream", "a kolocomm.Stream");
    if (!s.handle) refuse("the stream has ended");
    if (s.born != forks())
        refuse(KOLO_ERR_INVALID_USAGE, "the stream was made before fork(): its thread is not in this process");
    return s;
}

struct Event {
    Event() = default;
    Event(const Event &) = delete;
    kolo_event_t handle = nullptr;
    ~Event()
    {
        if (handle) kolo_event_destroy(handle);
    }
};

void end_stream(Stream &s)
{
    kolo_stream_t handle = s.handle;
    s.handle = nullptr;
    if (handle && s.born == forks()) unlocked([handle] { return kolo_stream_destroy(handle); });
    s.kept.clear();
}

void synchronize(nb::handle self)
{
    Stream &s = stream_of(self);
    kolo_stream_t handle = s.handle;
    kolo_status_t status = unlocked([handle] { return kolo_stream_synchronize(handle); });
    s.kept.clear();
    check(status);
}

bool query(nb::handle self)
{
    Stream &s = stream_of(self);
    kolo_status_t status = kolo_stream_query(s.handle);
    if (status == KOLO_IN_PROGRESS) return false;
    s.kept.clear();
    check(status);
    return true;
}

} // namespace

Stream::~Stream()
{
    if (!handle) return;
    if (born == forks() && kolo_stream_query(handle) != KOLO_IN_PROGRESS)
        kolo_stream_destroy(handle);
    else
        new std::vector<Buffer>(std::move(kept));
}

bool in_group()
{
    return depth > 0;
}

void keep(std::vector<Buffer> &&buffers)
{
    if (!group_keeps) group_keeps = new std::vector<Buffer>;
    for (Buffer &b : buffers) group_keeps->push_back(std::move(b));
}

Turn::Turn(Comm &comm, const char *what) : comm_(comm)
{
    if (comm.busy.exchange(true, std::memory_order_acquire))
        refuse(KOLO_ERR_INVALID_USAGE,
               words("%s: another thread is inside a call of this communicator: one thread at a time, or one "
                     "communicator for each (dup())",
                     what));
    if (comm.lane && !comm.lane->idle()) {
        Unlocked here;
        comm.lane->drain();
    }
}

Turn::~Turn()
{
    comm_.busy.store(false, std::memory_order_release);
}

nb::object begin(Comm &comm, const char *what, Operation &&call, std::vector<Buffer> &&buffers)
{
    if (in_group()) refuse(KOLO_ERR_INVALID_USAGE, words("%s: wait=False is not possible in a group", what));
    auto r = std::make_shared<Request>();
    r->comm = comm.handle, r->kept = std::move(buffers);
    r->self = nb::cast(r);
    if (!comm.lane) comm.lane = std::make_unique<Lane>();
    nb::object out = r->self;
    comm.lane->submit([call, handle = comm.handle] { return call(handle, nullptr); },
                      [r](kolo_status_t status, std::string text) mutable {
                          finish(r, status, std::move(text));
                          r.reset();
                      });
    return out;
}

void queue(Comm &comm, nb::handle stream, const Operation &call, std::vector<Buffer> &&buffers)
{
    if (nb::isinstance<nb::int_>(stream)) { // a CUstream: who has it keeps the memory
        void *native = (void *)want<uintptr_t>(stream, "stream");
        run(comm.handle, [&] { return call(comm.handle, native); });
        return;
    }
    if (!nb::isinstance<Stream>(stream))
        refuse("stream is neither a kolocomm.Stream nor the number of a CUDA stream (torch: stream.cuda_stream)");
    Stream &s = stream_of(stream);
    run(comm.handle, [&] { return call(comm.handle, s.handle); });
    for (Buffer &b : buffers) s.kept.push_back(std::move(b));
}

void bind_launch(nb::module_ &m)
{
    m.def(
        "group_start",
        [] {
            check(kolo_group_start());
            depth++;
        },
        "Collects the calls that follow on this thread, until group_end() runs them together.");
    m.def(
        "group_drop",
        [] {
            std::unique_ptr<std::vector<Buffer>> kept(group_keeps);
            group_keeps = nullptr, depth = 0;
            check(kolo_group_drop());
        },
        "Ends the group, however deep; nothing of it runs.");
    m.def("group_end", end_group, "Runs the calls since group_start(); raises the first error of one of them.");

    nb::class_<Request>(m, "Request", "An operation in the background (wait=False). Can be awaited.",
                        nb::is_weak_referenceable())
        .def(
            "done",
            [](Request &r) {
                std::lock_guard<std::mutex> lock(r.mutex);
                return r.done;
            },
            "True if it is complete, successfully or not. Never waits.")
        .def("wait", wait_request, nb::arg("timeout") = nb::none(),
             "Waits until it is complete and raises its error, if any. timeout: seconds; then Timeout is raised, "
             "and the operation goes on.")
        .def("_add_done_callback", [](nb::handle_t<Request> self, nb::object fn) {
            Request &r = *nb::inst_ptr<Request>(self);
            {
                std::lock_guard<std::mutex> lock(r.mutex);
                if (!r.done) {
                    r.callbacks.push_back(fn);
                    return;
                }
            }
            fn(self);
        });

    nb::class_<Stream>(m, "Stream",
                       "An ordered queue of operations with a thread of its own. Collectives take one as stream=; "
                       "they then return "
                       "when they are queued. Arrays are held until synchronize(), or query() that is True.")
        .def("__init__",
             [](Stream *s) {
                 new (s) Stream;
                 check(kolo_stream_create(&s->handle));
             })
        .def("synchronize", synchronize, "Waits until the queue is empty; raises its first error.")
        .def("query", query, "True if the queue is empty. Raises its first error. Never waits.")
        .def(
            "wait_event",
            [](nb::handle self, Event &e) { check(kolo_stream_wait_event(stream_of(self).handle, e.handle)); },
            nb::arg("event"), "What is queued from now on waits for the event.")
        .def("destroy", end_stream, "Waits for the queue and frees it.")
        .def("__enter__", [](nb::object self) { return self; })
        .def("__exit__", [](Stream &s, nb::args) { end_stream(s); });

    nb::class_<Event>(m, "Event", "A mark in the queue of a stream.")
        .def("__init__",
             [](Event *e) {
                 new (e) Event;
                 check(kolo_event_create(&e->handle));
             })
        .def(
            "record",
            [](Event &e, nb::handle stream) { check(kolo_event_record(e.handle, stream_of(stream).handle)); },
            nb::arg("stream"), "Sets the mark behind what is in the stream now.")
        .def(
            "query",
            [](Event &e) {
                kolo_status_t status = kolo_event_query(e.handle);
                if (status != KOLO_IN_PROGRESS) check(status);
                return status == KOLO_OK;
            },
            "True if the stream has passed the mark.")
        .def(
            "synchronize", [](Event &e) { check(unlocked([&e] { return kolo_event_synchronize(e.handle); })); },
            "Waits until the stream has passed the mark.");
}

} // namespace kolocomm
