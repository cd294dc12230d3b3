// SPDX-License-Identifier: Apache-2.0
//
// Messages between two ranks, operators of the program, registered memory.
#include "launch.hpp"

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct Name {
    const char *name;
    kolo_op_t op;
};
const Name names[] = {{"sum", KOLO_SUM},   {"prod", KOLO_PROD}, {"min", KOLO_MIN},  {"max", KOLO_MAX},
                      {"avg", KOLO_AVG},   {"band", KOLO_BAND}, {"bor", KOLO_BOR},  {"bxor", KOLO_BXOR},
                      {"land", KOLO_LAND}, {"lor", KOLO_LOR},   {"lxor", KOLO_LXOR}};

struct Op {
    Op() = default;
    Op(const Op &) = delete;
    kolo_op_t op = KOLO_SUM;
    nb::object comm;
    nb::object *fn =
        nullptr; // until destroy(): a call in the background may use it longer than the program has this object
    kolo_type_t type = KOLO_FLOAT32;
    bool there = false;
};

const char *format_of(kolo_type_t type)
{
    static const char *const formats[] = {"b", "B", "i", "I", "q", "Q", "e", "H",
                                          "f", "d", "B", "B", "h", "H", "?"};
    return formats[type];
}

// Memory of the library's that a function of the program has during a call.
struct Lent {
    void *data;
    size_t bytes;
    bool writable;
};

int give_lent(PyObject *self, Py_buffer *view, int flags)
{
    Lent &l = *nb::inst_ptr<Lent>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, l.data, (Py_ssize_t)l.bytes, !l.writable, flags);
}

nb::object view_of(nb::handle lent, kolo_type_t type)
{
    nb::object view = nb::steal(PyMemoryView_FromObject(lent.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    return format_of(type)[0] == 'B' ? view : view.attr("cast")(format_of(type));
}

void lend(nb::object &fn, const void *in, void *inout, size_t bytes, kolo_type_t type)
{
    nb::object from = nb::cast(new Lent{(void *)in, bytes, false}, nb::rv_policy::take_ownership);
    nb::object to = nb::cast(new Lent{inout, bytes, true}, nb::rv_policy::take_ownership);
    {
        nb::object a = view_of(from, type), b = view_of(to, type);
        fn(a, b);
        a.attr("release")(); // a view that was kept says so when it is used
        b.attr("release")();
    }
    if (Py_REFCNT(from.ptr()) == 1 && Py_REFCNT(to.ptr()) == 1) return;
    PyErr_SetString(PyExc_BufferError,
                    "the operator's function has kept an array on its arguments, whose memory is "
                    "valid during the call only: keep a copy");
    throw nb::python_error();
}

// On the thread that runs the collective.
void call_fn(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    Locked here;
    if (!here) return;
    try {
        lend(*(nb::object *)arg, in, inout, count * kolo_type_size(type), type);
    } catch (nb::python_error &e) {
        e.restore();
        remember_raised();
    }
}

nb::object create_callback(nb::handle comm, nb::object fn, nb::handle like)
{
    Comm &c = *nb::inst_ptr<Comm>(comm);
    kolo_comm_t handle = c.get("create_callback");
    if (!PyCallable_Check(fn.ptr()))
        refuse(words("fn is %.80s; a function fn(a, inout) is needed", nb::repr(fn).c_str()));
    nb::object self = nb::cast(new Op, nb::rv_policy::take_ownership);
    Op &op = *nb::inst_ptr<Op>(self);
    op.comm = nb::borrow(comm), op.fn = new nb::object(fn), op.type = Buffer(like, "like", false).type;
    check(kolo_op_create_callback(&op.op, call_fn, op.fn, op.type, handle), handle);
    op.there = true;
    return self;
}

nb::object create_premul_sum(nb::handle comm, nb::handle scalar)
{
    Comm &c = *nb::inst_ptr<Comm>(comm);
    kolo_comm_t handle = c.get("create_premul_sum");
    Buffer value(scalar, "scalar", false);
    if (value.count != 1) refuse(words("scalar has %zu elements: pass one, as numpy.float32(0.5)", value.count));
    nb::object self = nb::cast(new Op, nb::rv_policy::take_ownership);
    Op &op = *nb::inst_ptr<Op>(self);
    op.comm = nb::borrow(comm), op.type = value.type;
    check(kolo_op_create_premul_sum(&op.op, value.data, value.type, handle), handle);
    op.there = true;
    return self;
}

void destroy_op(Op &op)
{
    Comm *c = op.comm.is_valid() && !op.comm.is_none() ? nb::inst_ptr<Comm>(op.comm) : nullptr;
    if (op.there && c && c->handle && c->born == forks()) {
        if (c->busy.load() || (c->lane && !c->lane->idle()))
            refuse(KOLO_ERR_INVALID_USAGE,
                   "destroy: a call that may use the operator is not complete: wait for it first");
        kolo_op_destroy(op.op, c->handle);
    }
    op.there = false;
    delete op.fn;
    op.fn = nullptr;
}

// ---- messages ------------------------------------------------------------------------------------------------

struct Message {
    ~Message() // that nobody waited for: it may still be under way, so its array stays
    {
        if (pending && !done) new Buffer(std::move(buffer));
    }
    kolo_pending_t pending = nullptr;
    kolo_comm_t comm = nullptr;
    nb::object owner;
    Buffer buffer;
    bool done = false;
};

int peer_of(const char *what, const Comm &c, int peer)
{
    if (peer < 0 || peer >= c.size) refuse(words("%s: rank %d; ranks are 0 to %d", what, peer, c.size - 1));
    return peer;
}

nb::object send(Comm &c, nb::handle buf, int peer, nb::handle stream, bool wait)
{
    Buffer b(buf, "buf", false);
    peer_of("send", c, peer);
    return launch(
        c, "send", stream, wait,
        [at = b.data, n = b.count, t = b.type, peer](kolo_comm_t h, void *q) {
            return kolo_send(at, n, t, peer, h, q);
        },
        b);
}

nb::object recv(Comm &c, nb::handle buf, int peer, nb::handle stream, bool wait)
{
    Buffer b(buf, "buf", true);
    peer_of("recv", c, peer);
    return launch(
        c, "recv", stream, wait,
        [at = b.data, n = b.count, t = b.type, peer](kolo_comm_t h, void *q) {
            return kolo_recv(at, n, t, peer, h, q);
        },
        b);
}

template <class F>
nb::object put_aside(nb::handle comm, const char *what, nb::handle buf, bool writable, int peer, F &&call)
{
    Comm &c = *nb::inst_ptr<Comm>(comm);
    kolo_comm_t handle = c.get(what);
    peer_of(what, c, peer);
    nb::object self = nb::cast(new Message, nb::rv_policy::take_ownership);
    Message &m = *nb::inst_ptr<Message>(self);
    m.buffer = Buffer(buf, "buf", writable), m.comm = handle, m.owner = nb::borrow(comm);
    Turn turn(c, what);
    check(call(m.buffer.data, m.buffer.count, m.buffer.type, peer, handle, &m.pending), handle);
    return self;
}

void wait_message(Message &m)
{
    if (m.done) return;
    Comm &c = *nb::inst_ptr<Comm>(m.owner);
    kolo_comm_t handle = c.get("wait");
    Turn turn(c, "wait");
    m.done = true;
    kolo_pending_t pending = m.pending;
    run(handle, [pending] { return kolo_pending_wait(pending); });
    m.buffer = Buffer();
}

bool test_message(Message &m)
{
    int complete = 0;
    if (m.done) return true;
    Comm &c = *nb::inst_ptr<Comm>(m.owner);
    kolo_comm_t handle = c.get("done");
    Turn turn(c, "done");
    run(handle, [&] { return kolo_pending_test(m.pending, &complete); });
    return complete != 0;
}

struct Registration {
    ~Registration()
    {
        Comm *c = comm.is_valid() ? nb::inst_ptr<Comm>(comm) : nullptr;
        if (handle && c && c->handle && c->born == forks()) kolo_comm_deregister(c->handle, handle);
    }
    nb::object comm;
    Buffer buffer;
    kolo_registration_t handle = nullptr;
};

} // namespace

kolo_op_t op_of(nb::handle op, const Comm *comm)
{
    if (nb::isinstance<nb::str>(op)) {
        std::string text = nb::cast<std::string>(op);
        for (const Name &n : names)
            if (text == n.name) return n.op;
        refuse(words(
            "there is no operator \"%s\": there are sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor",
            text.c_str()));
    }
    if (nb::isinstance<Op>(op)) {
        const Op &own = *nb::inst_ptr<Op>(op);
        if (!own.there) refuse("the operator was destroyed");
        if (comm && nb::inst_ptr<Comm>(own.comm) != comm)
            refuse("the operator was made for another communicator: call create_callback() or create_premul_sum() "
                   "of this one");
        return own.op;
    }
    if (nb::isinstance<nb::int_>(op)) return (kolo_op_t)want<int>(op, "op");
    refuse(words("op is %.80s; a name like \"sum\" or \"max\" is needed, or an Op", nb::repr(op).c_str()));
}

void bind_ops(nb::module_ &m, nb::class_<Comm> &c)
{
    static PyType_Slot slots[] = {{Py_bf_getbuffer, (void *)give_lent}, {0, nullptr}};
    nb::class_<Lent>(m, "_Lent", nb::type_slots(slots));
    nb::class_<Op>(m, "Op", "An operator of the program, for one communicator and one type of elements.")
        .def("destroy", destroy_op, "Frees it, when the last call that uses it has returned.");
    c.def(
        "create_callback",
        [](nb::handle_t<Comm> self, nb::object fn, nb::handle like) { return create_callback(self, fn, like); },
        "fn"_a, "like"_a.none(),
        "An operator fn(a, inout), which writes f(a[i], inout[i]) to inout[i]; both are memoryviews "
        "(numpy.asarray() takes them without a copy). "
        "Associative and commutative, the same on all ranks. like: an array with the type of the elements.");
    c.def(
        "create_premul_sum",
        [](nb::handle_t<Comm> self, nb::handle scalar) { return create_premul_sum(self, scalar); },
        "scalar"_a.none(),
        "The sum in which this rank's input is first multiplied with scalar, an array of one element.");
}

void bind_messages(nb::module_ &m, nb::class_<Comm> &c)
{
    nb::class_<Message>(
        m, "Message",
        "A message that was put aside: it runs with the next call on its communicator, or when it is waited for.")
        .def("wait", wait_message, "Waits until the message is complete; raises its error.")
        .def("done", test_message,
             "True if the message is complete. Starts it if it has not started. Never waits.");
    c.def("send", send, "buf"_a.none(), "peer"_a, "stream"_a = nb::none(), "wait"_a = true,
          "Sends a message, which may wait until the peer receives. Two ranks that exchange messages call in a "
          "group(), or use isend() and irecv().");
    c.def("recv", recv, "buf"_a.none(), "peer"_a, "stream"_a = nb::none(), "wait"_a = true,
          "Receives the next message of a peer into buf, which has exactly as many bytes as the message.");
    c.def(
        "isend",
        [](nb::handle_t<Comm> self, nb::handle buf, int peer) {
            return put_aside(self, "isend", buf, false, peer, kolo_isend);
        },
        "buf"_a.none(), "peer"_a, "Puts a message aside and returns a Message to wait for.");
    c.def(
        "irecv",
        [](nb::handle_t<Comm> self, nb::handle buf, int peer) {
            return put_aside(self, "irecv", buf, true, peer, kolo_irecv);
        },
        "buf"_a.none(), "peer"_a, "The same for a message to receive.");
    nb::class_<Registration>(m, "Registration", "Memory that network cards read and write in place.")
        .def("deregister", [](Registration &r) {
            kolo_registration_t handle = r.handle;
            r.handle = nullptr;
            if (handle) check(kolo_comm_deregister(nb::inst_ptr<Comm>(r.comm)->get("deregister"), handle));
            r.buffer = Buffer();
        });
    c.def(
        "register",
        [](nb::handle_t<Comm> self, nb::handle buf) {
            kolo_comm_t handle = nb::inst_ptr<Comm>(self)->get("register");
            auto r = std::make_unique<Registration>();
            r->buffer = Buffer(buf, "buf", true), r->comm = nb::borrow(self);
            check(kolo_comm_register(handle, r->buffer.data, r->buffer.bytes(), &r->handle), handle);
            return nb::cast(r.release(), nb::rv_policy::take_ownership);
        },
        "buf"_a.none(), "Registers an array that will be used often, for network cards. Optional, local.");
}

} // namespace kolocomm
