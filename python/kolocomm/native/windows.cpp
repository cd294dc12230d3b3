// SPDX-License-Identifier: Apache-2.0
//
// Windows: memory that other ranks write to without a call of its owner.
#include "launch.hpp"

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct Window {
    ~Window() // that was not deregistered: others may write there until the communicator ends, so its array stays
    {
        if (handle) new Buffer(std::move(buffer));
    }
    nb::object comm;
    Buffer buffer;
    kolo_window_t handle = nullptr;
};

kolo_window_t get(const Window &w)
{
    if (!w.handle) refuse("the window has ended");
    return w.handle;
}

nb::object window_register(nb::handle self, nb::handle buf, size_t bytes)
{
    Comm &c = *nb::inst_ptr<Comm>(self);
    kolo_comm_t handle = c.get("window_register");
    auto w = std::make_unique<Window>();
    w->comm = nb::borrow(self), w->buffer = Buffer::maybe(buf, "buf", true);
    if (w->buffer) bytes = w->buffer.bytes();
    Turn turn(c, "window_register");
    run(handle, [&] { return kolo_window_register(handle, w->buffer.data, bytes, &w->handle); });
    return nb::cast(w.release(), nb::rv_policy::take_ownership);
}

void deregister(Window &w)
{
    if (!w.handle) return;
    Comm &c = *nb::inst_ptr<Comm>(w.comm);
    kolo_comm_t handle = c.get("deregister");
    kolo_window_t window = w.handle;
    Turn turn(c, "deregister");
    run(handle, [&] { return kolo_window_deregister(handle, window); });
    w.handle = nullptr, w.buffer = Buffer();
}

nb::object memory(Window &w)
{
    void *at = nullptr;
    size_t bytes = 0;
    kolo_comm_t handle = nb::inst_ptr<Comm>(w.comm)->get("memory");
    check(kolo_window_memory(handle, get(w), &at, &bytes), handle);
    static char none;
    return nb::steal(PyMemoryView_FromMemory(at ? (char *)at : &none, (Py_ssize_t)bytes, PyBUF_WRITE));
}

nb::object put(Comm &c, nb::handle src, int peer, Window &w, size_t offset, nb::handle signal, nb::handle stream,
               bool wait)
{
    Buffer s(src, "src", false);
    int number = signal.is_none() ? -1 : nb::cast<int>(signal);
    return launch(
        c, "put", stream, wait,
        [at = s.data, n = s.count, t = s.type, peer, to = get(w), offset, number](kolo_comm_t h, void *q) {
            return number < 0 ? kolo_put(at, n, t, peer, to, offset, h, q)
                              : kolo_put_signal(at, n, t, peer, to, offset, number, h, q);
        },
        s);
}

nb::object signal(Comm &c, int peer, int number, nb::handle stream, bool wait)
{
    return launch(c, "signal", stream, wait,
                  [peer, number](kolo_comm_t h, void *q) { return kolo_signal(peer, number, h, q); });
}

nb::object wait_signal(Comm &c, const std::vector<nb::tuple> &waits, nb::handle stream, bool wait)
{
    std::vector<kolo_signal_wait_t> all;
    for (const nb::tuple &w : waits) {
        if (w.size() != 2 && w.size() != 3)
            refuse("wait_signal: waits is a list of (peer, signal) or (peer, signal, count)");
        all.push_back({nb::cast<int>(w[0]), nb::cast<int>(w[1]), w.size() == 3 ? nb::cast<uint32_t>(w[2]) : 1});
    }
    return launch(c, "wait_signal", stream, wait,
                  [all](kolo_comm_t h, void *q) { return kolo_wait_signal(all.data(), (int)all.size(), h, q); });
}

} // namespace

void bind_windows(nb::module_ &m, nb::class_<Comm> &c)
{
    nb::class_<Window>(m, "Window", "Memory of each rank that the others write to with Comm.put().")
        .def("memory", memory, nb::keep_alive<0, 1>(),
             "This rank's part, as a memoryview of bytes; valid until deregister().")
        .def("deregister", deregister,
             "Ends the window. Collective. Afterwards all earlier puts into it are in place.");
    c.def(
        "window_register",
        [](nb::handle self, nb::handle buf, size_t bytes) { return window_register(self, buf, bytes); },
        "buf"_a = nb::none(), "bytes"_a = 0,
        "Makes an array writable for the other ranks. Collective; sizes may differ. buf None: Kolo allocates so "
        "many bytes, zeroed.");
    c.def("put", put, "src"_a.none(), "peer"_a, "window"_a, "offset"_a = 0, "signal"_a = nb::none(),
          "stream"_a = nb::none(), "wait"_a = true,
          "Copies src into the window of a rank, offset bytes behind its beginning. signal: a number (0 to 15) "
          "that is counted there when all data is in place.");
    c.def("signal", signal, "peer"_a, "signal"_a = 0, "stream"_a = nb::none(), "wait"_a = true,
          "Adds one to this rank's counter of this number at a rank.");
    c.def("wait_signal", wait_signal, "waits"_a, "stream"_a = nb::none(), "wait"_a = true,
          "Waits until all listed signals have come: a list of (peer, signal) or (peer, signal, count).");
}

} // namespace kolocomm
