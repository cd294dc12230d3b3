// SPDX-License-Identifier: Apache-2.0
//
// Windows: memory that other ranks write to without a call of its owner.
#include "launch.hpp"

#include <sys/mman.h>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct Window {
    ~Window() // that was not deregistered: others may write there until the communicator ends, so its array stays
    {
        if (handle) new std::shared_ptr<Buffer>(std::move(buffer));
    }
    nb::object comm;
    std::shared_ptr<Buffer> buffer = std::make_shared<Buffer>();
    kolo_window_t handle = nullptr;
};

// What a memoryview of a window holds, so that it can be read for as long as somebody has it, whatever becomes of
// the window: the program's array, or pages of the window's, mapped once more.
struct WindowMemory {
    WindowMemory() = default;
    WindowMemory(const WindowMemory &) = delete;
    ~WindowMemory()
    {
        if (mapped) munmap(at, bytes);
    }
    void *at = nullptr;
    size_t bytes = 0;
    bool mapped = false;
    std::shared_ptr<Buffer> array;
};

int give_memory(PyObject *self, Py_buffer *view, int flags)
{
    static char none;
    WindowMemory &m = *nb::inst_ptr<WindowMemory>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, m.at ? m.at : &none, (Py_ssize_t)m.bytes, 0, flags);
}

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
    w->comm = nb::borrow(self), *w->buffer = Buffer::maybe(buf, "buf", true);
    if (*w->buffer) bytes = w->buffer->bytes();
    Turn turn(c, "window_register");
    run(handle, [&] { return kolo_window_register(handle, w->buffer->data, bytes, &w->handle); });
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
    w.handle = nullptr, w.buffer = std::make_shared<Buffer>();
}

nb::object memory(Window &w)
{
    void *at = nullptr;
    size_t bytes = 0;
    Comm &c = *nb::inst_ptr<Comm>(w.comm);
    kolo_comm_t handle = c.get("memory");
    check(kolo_window_memory(handle, get(w), &at, &bytes), handle);
    if (c.device >= 0) refuse("memory: the window is in the memory of a GPU: use the array that it was made of");
    nb::object self = nb::cast(new WindowMemory, nb::rv_policy::take_ownership);
    WindowMemory &m = *nb::inst_ptr<WindowMemory>(self);
    m.bytes = bytes, m.array = w.buffer;
    if (*w.buffer || bytes == 0) {
        m.at = at;
    } else { // of length 0: the same shared pages at another place
        void *again = mremap(at, 0, bytes, MREMAP_MAYMOVE);
        // Memory that no other process may map (KOLO_SHM_DISABLE) cannot be had twice: it ends with the window.
        m.mapped = again != MAP_FAILED, m.at = m.mapped ? again : at;
    }
    nb::object view = nb::steal(PyMemoryView_FromObject(self.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    return view;
}

nb::object put(Comm &c, nb::handle src, int peer, Window &w, size_t offset, nb::handle signal, nb::handle stream,
               bool wait)
{
    Buffer s(src, "src", false);
    int number = signal.is_none() ? -1 : want<int>(signal, "signal");
    if (!signal.is_none() && number < 0) refuse(words("signal is %d; numbers go from 0 to 15", number));
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
        all.push_back({want<int>(w[0], "peer"), want<int>(w[1], "signal"),
                       w.size() == 3 ? want<uint32_t>(w[2], "count") : 1});
    }
    return launch(c, "wait_signal", stream, wait,
                  [all](kolo_comm_t h, void *q) { return kolo_wait_signal(all.data(), (int)all.size(), h, q); });
}

} // namespace

void bind_windows(nb::module_ &m, nb::class_<Comm> &c)
{
    static PyType_Slot slots[] = {{Py_bf_getbuffer, (void *)give_memory}, {0, nullptr}};
    nb::class_<WindowMemory>(m, "_WindowMemory", nb::type_slots(slots));
    nb::class_<Window>(m, "Window", "Memory of each rank that the others write to with Comm.put().")
        .def("memory", memory,
             "This rank's part, as a memoryview of bytes. It can be read afterwards, too, but nobody writes there "
             "when the window has ended.")
        .def("deregister", deregister,
             "Ends the window. Collective. Afterwards all earlier puts into it are in place.");
    c.def(
        "window_register",
        [](nb::handle_t<Comm> self, nb::handle buf, size_t bytes) { return window_register(self, buf, bytes); },
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
