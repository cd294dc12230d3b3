// SPDX-License-Identifier: Apache-2.0
//
// Tensors by key between tasks: servers, the rendezvous of a step, values.
#include "launch.hpp"

#include <kolo/rendezvous.h>
#include <nanobind/ndarray.h>

#include <cstring>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct Server {
    Server() = default;
    Server(const Server &) = delete;
    ~Server();
    kolo_server_t handle = nullptr;
    int born = forks();
    std::string task;
};

struct Rendezvous {
    Rendezvous() = default;
    Rendezvous(const Rendezvous &) = delete;
    kolo_rendezvous_t handle = nullptr;
    nb::object server;
};

kolo_server_t get(Server &s)
{
    if (!s.handle) refuse(KOLO_ERR_INVALID_USAGE, "the server has ended");
    if (s.born != forks())
        refuse(KOLO_ERR_INVALID_USAGE,
               "the server belongs to the process that called fork(): make one after the fork");
    return s.handle;
}

kolo_rendezvous_t get(Rendezvous &r)
{
    if (!r.handle) refuse(KOLO_ERR_INVALID_USAGE, "the rendezvous was closed");
    return r.handle;
}

Server::~Server()
{
    if (!handle || born != forks()) return;
    PyThreadState *state = PyEval_SaveThread();
    kolo_server_destroy(handle);
    PyEval_RestoreThread(state);
}

void init(Server *self, const std::string &cluster, const std::string &task, nb::object protocol, nb::object secret,
          int connect_timeout_ms)
{
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    std::string wires = protocol.is_none() ? "" : want<std::string>(protocol, "protocol");
    config.cluster = cluster.c_str(), config.task = task.c_str(), config.connect_timeout_ms = connect_timeout_ms;
    if (!protocol.is_none()) config.protocol = wires.c_str();
    if (!secret.is_none()) {
        nb::bytes bytes = nb::cast<nb::bytes>(secret);
        config.secret = bytes.c_str(), config.secret_bytes = bytes.size();
    }
    new (self) Server;
    self->task = task;
    try {
        run(nullptr, [&] { return kolo_server_create(&self->handle, &config); });
    } catch (...) {
        self->~Server();
        throw;
    }
}

// ---- values --------------------------------------------------------------------------------------------------

// Some thread of the library is done with what was sent.
void release(void *arg)
{
    Locked here;
    if (here) delete (Buffer *)arg;
}

struct Element {
    int element;
    nb::dlpack::dtype type;
};

nb::dlpack::dtype dtype_of(int element)
{
    using nb::dlpack::dtype_code;
    auto make = [](dtype_code code, int bits) { return nb::dlpack::dtype{(uint8_t)code, (uint8_t)bits, 1}; };
    switch (element) {
    case KOLO_INT8:
        return make(dtype_code::Int, 8);
    case KOLO_UINT8:
        return make(dtype_code::UInt, 8);
    case KOLO_INT32:
        return make(dtype_code::Int, 32);
    case KOLO_UINT32:
        return make(dtype_code::UInt, 32);
    case KOLO_INT64:
        return make(dtype_code::Int, 64);
    case KOLO_UINT64:
        return make(dtype_code::UInt, 64);
    case KOLO_FLOAT16:
        return make(dtype_code::Float, 16);
    case KOLO_BFLOAT16:
        return make(dtype_code::UInt, 16);
    case KOLO_FLOAT32:
        return make(dtype_code::Float, 32);
    case KOLO_FLOAT64:
        return make(dtype_code::Float, 64);
    case KOLO_INT16:
    case KOLO_ELEMENT_INT16:
        return make(dtype_code::Int, 16);
    case KOLO_UINT16:
    case KOLO_ELEMENT_UINT16:
        return make(dtype_code::UInt, 16);
    case KOLO_BOOL:
    case KOLO_ELEMENT_BOOL:
        return make(dtype_code::Bool, 8);
    default:
        return make(dtype_code::UInt, 8);
    }
}

// The received memory as a memoryview, which frees it at its own end. None: a dead value.
nb::object array_of(kolo_value_t &value, nb::handle into)
{
    if (value.dead) {
        kolo_value_release(&value);
        return nb::none();
    }
    if (!into.is_none()) return nb::borrow(into);
    auto *mine = new kolo_value_t(value);
    nb::capsule owner(mine, [](void *p) noexcept {
        kolo_value_release((kolo_value_t *)p);
        delete (kolo_value_t *)p;
    });
    size_t shape[KOLO_VALUE_DIMS_MAX];
    for (int i = 0; i < value.ndims; i++) shape[i] = (size_t)value.dims[i];
    static char nothing[16];
    void *data = value.data ? value.data : nothing;
    return nb::cast(
        nb::ndarray<nb::memview>(data, (size_t)value.ndims, shape, owner, nullptr, dtype_of(value.element)));
}

void send(Rendezvous &r, const std::string &key, nb::handle array, bool dead)
{
    kolo_value_t value = {};
    std::unique_ptr<Buffer> buffer;
    value.dead = dead;
    if (!dead) {
        buffer.reset(new Buffer(array, "array", false));
        nb::object shaped =
            nb::hasattr(array, "shape") ? nb::borrow(array) : nb::steal(PyMemoryView_FromObject(array.ptr()));
        for (nb::handle n : shaped.attr("shape")) {
            if (value.ndims == KOLO_VALUE_DIMS_MAX)
                refuse(words("array has more than %d dimensions", KOLO_VALUE_DIMS_MAX));
            value.dims[value.ndims++] = nb::cast<int64_t>(n);
        }
        value.element = buffer->type, value.data = buffer->data, value.bytes = buffer->bytes();
        value.element = buffer->type == KOLO_BOOL     ? (int)KOLO_ELEMENT_BOOL
                        : buffer->type == KOLO_INT16  ? (int)KOLO_ELEMENT_INT16
                        : buffer->type == KOLO_UINT16 ? (int)KOLO_ELEMENT_UINT16
                                                      : (int)buffer->type;
        value.release = release, value.arg = buffer.get();
    }
    kolo_rendezvous_t handle = get(r);
    run(nullptr, [&] { return kolo_rendezvous_send(handle, key.c_str(), &value, nullptr); });
    (void)buffer.release();
}

// In slices, so that Ctrl-C is seen.
nb::object receive(Rendezvous &r, const std::string &key, nb::object into, nb::object timeout)
{
    Buffer room = Buffer::maybe(into, "into", true);
    kolo_transfer_args_t args = {};
    kolo_rendezvous_t handle = get(r);
    kolo_value_t value;
    if (room) args.into = room.data, args.into_bytes = room.bytes();
    double left = limit_of(timeout);
    kolo_receive_t waits;
    run(nullptr, [&] { return kolo_rendezvous_receive_begin(handle, key.c_str(), &args, &waits); });
    for (;;) {
        int slice = left < 50 ? (left < 1 ? 1 : (int)left) : 50, ended = 0;
        check(kolo_receive_poll(waits, &ended));
        kolo_status_t status = unlocked([&] { return kolo_receive_wait(waits, ended ? 0 : slice, &value); });
        if (ended || status != KOLO_ERR_TIMEOUT) {
            check(status);
            return array_of(value, into);
        }
        left -= slice;
        bool signalled = PyErr_CheckSignals() != 0;
        if (!signalled && left > 0) continue;
        unlocked([&] { return kolo_receive_discard(waits); });
        if (signalled) throw nb::python_error();
        refuse(KOLO_ERR_TIMEOUT,
               words("nothing came under the key %s in %g s; a value that comes later stays for the next receive",
                     key.c_str(), nb::cast<double>(timeout)));
    }
}

// A receive that goes on while the program does something else.
struct Reception {
    Reception() = default;
    Reception(const Reception &) = delete;
    ~Reception();
    kolo_receive_t handle = nullptr;
    Buffer room;
    nb::object into, rendezvous;
};

Reception::~Reception()
{
    if (!handle) return;
    PyThreadState *state = PyEval_SaveThread();
    kolo_receive_discard(handle);
    PyEval_RestoreThread(state);
}

nb::object receive_begin(nb::handle self, const std::string &key, nb::object into)
{
    kolo_rendezvous_t handle = get(*nb::inst_ptr<Rendezvous>(self));
    auto r = std::make_unique<Reception>();
    kolo_transfer_args_t args = {};
    r->room = Buffer::maybe(into, "into", true), r->into = into, r->rendezvous = nb::borrow(self);
    if (r->room) args.into = r->room.data, args.into_bytes = r->room.bytes();
    run(nullptr, [&] { return kolo_rendezvous_receive_begin(handle, key.c_str(), &args, &r->handle); });
    return nb::cast(r.release(), nb::rv_policy::take_ownership);
}

bool reception_done(Reception &r)
{
    int ended = 0;
    if (!r.handle) return true;
    check(kolo_receive_poll(r.handle, &ended));
    return ended != 0;
}

// In slices, so that Ctrl-C is seen: the receive goes on then.
nb::object reception_wait(Reception &r, nb::object timeout)
{
    if (!r.handle) refuse(KOLO_ERR_INVALID_USAGE, "this receive was waited for, or discarded");
    double left = limit_of(timeout);
    kolo_value_t value;
    for (;;) {
        int slice = left < 50 ? (left < 1 ? 1 : (int)left) : 50;
        bool ended = reception_done(r);
        kolo_status_t status = unlocked([&] { return kolo_receive_wait(r.handle, ended ? 0 : slice, &value); });
        if (ended || status != KOLO_ERR_TIMEOUT) {
            r.handle = nullptr;
            check(status);
            return array_of(value, r.into);
        }
        left -= slice;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (left <= 0)
            refuse(KOLO_ERR_TIMEOUT,
                   words("nothing has come after %g s; the receive goes on", nb::cast<double>(timeout)));
    }
}

void reception_discard(Reception &r)
{
    kolo_receive_t handle = r.handle;
    r.handle = nullptr;
    if (handle) run(nullptr, [&] { return kolo_receive_discard(handle); });
}

// All of them, or an error and none.
nb::object receive_set(Rendezvous &r, const std::vector<std::string> &keys, double timeout)
{
    kolo_rendezvous_t handle = get(r);
    std::vector<const char *> texts;
    std::vector<kolo_value_t> values(keys.size());
    for (const std::string &key : keys) texts.push_back(key.c_str());
    run(nullptr, [&] {
        return kolo_rendezvous_receive_set(handle, texts.data(), values.data(), (int)keys.size(),
                                           timeout > 0 ? std::max(1, (int)(timeout * 1000)) : 0);
    });
    nb::list all;
    for (kolo_value_t &value : values) all.append(array_of(value, nb::none()));
    return all;
}

nb::object open(nb::handle self, uint64_t step)
{
    Server &s = *nb::inst_ptr<Server>(self);
    kolo_rendezvous_manager_t manager;
    check(kolo_server_manager(get(s), &manager));
    auto r = std::make_unique<Rendezvous>();
    check(kolo_rendezvous_open(manager, step, &r->handle));
    r->server = nb::borrow(self);
    return nb::cast(r.release(), nb::rv_policy::take_ownership);
}

std::string make_key(const std::string &src, uint64_t incarnation, const std::string &dst, const std::string &edge,
                     uint64_t frame, uint64_t iteration)
{
    kolo_tensor_key_t key = {};
    char text[KOLO_TENSOR_KEY_MAX + 1];
    if (src.size() > KOLO_DEVICE_NAME_MAX || dst.size() > KOLO_DEVICE_NAME_MAX || edge.size() > KOLO_EDGE_NAME_MAX)
        refuse(words("a part of the key is too long: devices have at most %d bytes, names of edges %d",
                     KOLO_DEVICE_NAME_MAX, KOLO_EDGE_NAME_MAX));
    memcpy(key.src_device, src.c_str(), src.size() + 1);
    memcpy(key.dst_device, dst.c_str(), dst.size() + 1);
    memcpy(key.edge_name, edge.c_str(), edge.size() + 1);
    key.src_incarnation = incarnation, key.frame = frame, key.iteration = iteration;
    check(kolo_tensor_key_make(&key, text, sizeof text));
    return text;
}

void bind_keys(nb::module_ &m)
{
    m.def("tensor_key", make_key, "src_device"_a, "src_incarnation"_a, "dst_device"_a, "edge_name"_a, "frame"_a = 0,
          "iteration"_a = 0,
          "The key of a tensor. A device is /job:NAME/task:N/device:cpu:0; the incarnation is that of the source's "
          "task (Server.incarnation).");
    m.def(
        "tensor_key_parse",
        [](const std::string &text) {
            kolo_tensor_key_t key;
            check(kolo_tensor_key_parse(text.c_str(), &key));
            nb::dict d;
            d["src_device"] = key.src_device, d["src_incarnation"] = key.src_incarnation;
            d["dst_device"] = key.dst_device, d["edge_name"] = key.edge_name;
            d["frame"] = key.frame, d["iteration"] = key.iteration;
            return d;
        },
        "text"_a, "The parts of a key, as a dictionary of tensor_key()'s arguments.");
    m.def(
        "register_protocol",
        [](const std::string &name, const std::string &wires, bool buffered) {
            check(kolo_server_register_protocol(name.c_str(), wires.c_str(), buffered));
        },
        "name"_a, "wires"_a, "buffered"_a = false,
        "Registers a protocol for servers: wires are shm, verbs and tcp, with commas.");
}

void bind_rendezvous(nb::module_ &m)
{
    nb::class_<Rendezvous>(m, "Rendezvous",
                           "Where the values of a step meet: sent under a key, received once under the same key.")
        .def("send", send, "key"_a, "array"_a.none(), "dead"_a = false,
             "Sends an array, which stays with this task until it is received: do not write to it any more. Never "
             "waits. dead: no value, None arrives.")
        .def("_receive", receive, "key"_a, "into"_a.none(), "timeout"_a.none())
        .def(
            "receive_begin",
            [](nb::handle_t<Rendezvous> self, const std::string &key, nb::object into) {
                return receive_begin(self, key, into);
            },
            "key"_a, "into"_a = nb::none(),
            "Starts to receive the next value of a key, and returns a Reception. into: the array where it goes.")
        .def("_receive_set", receive_set, "keys"_a, "timeout"_a)
        .def(
            "abort",
            [](Rendezvous &r, const std::string &why) {
                kolo_rendezvous_t handle = get(r);
                run(nullptr, [&] { return kolo_rendezvous_abort(handle, KOLO_ERR_ABORTED, why.c_str()); });
            },
            "why"_a, "Ends the step: waiting and later calls raise Aborted with this text.")
        .def("close", [](Rendezvous &r) {
            kolo_rendezvous_t handle = r.handle;
            r.handle = nullptr;
            if (handle) run(nullptr, [&] { return kolo_rendezvous_close(handle); });
        });
    nb::class_<Reception>(m, "Reception",
                          "A receive that goes on. Can be awaited. Freed without wait(): discarded.")
        .def("done", reception_done, "True if it has ended, with a value or without. Never waits.")
        .def("_wait", reception_wait, "timeout"_a.none())
        .def("discard", reception_discard, "Ends it; a value that has come is released.");
}

void bind_server(nb::module_ &m)
{
    nb::class_<Server>(m, "Server", "One task of a cluster, which exchanges tensors by key with the others.")
        .def("__init__", init, "cluster"_a, "task"_a, "protocol"_a = nb::none(), "secret"_a = nb::none(),
             "connect_timeout_ms"_a = 30000,
             "cluster: all tasks, the same text on all: \"ps=host:port;worker=host:port,host:port\". task: this "
             "one, \"/job:ps/task:0\". secret: at least 16 bytes "
             "that all tasks know and nobody else; None: the content of the file KOLO_COMM_SECRET_FILE names.")
        .def_prop_ro("task", [](Server &s) { return s.task; })
        .def(
            "start",
            [](Server &s) {
                kolo_server_t handle = get(s);
                run(nullptr, [&] { return kolo_server_start(handle); });
            },
            "Starts to accept connections. Tasks may start in any order.")
        .def(
            "open", [](nb::handle_t<Server> self, uint64_t step) { return open(self, step); }, "step"_a,
            "The Rendezvous of a step. close() it, and cleanup() the step at its end.")
        .def(
            "cleanup",
            [](Server &s, uint64_t step) {
                kolo_rendezvous_manager_t manager;
                check(kolo_server_manager(get(s), &manager));
                run(nullptr, [&] { return kolo_rendezvous_manager_cleanup(manager, step); });
            },
            "step"_a, "Ends a step on this task.")
        .def(
            "cleanup_all",
            [](Server &s) {
                kolo_rendezvous_manager_t manager;
                check(kolo_server_manager(get(s), &manager));
                run(nullptr, [&] { return kolo_rendezvous_manager_cleanup_all(manager); });
            },
            "Ends all steps on this task.")
        .def_prop_ro(
            "steps",
            [](Server &s) {
                kolo_rendezvous_manager_t manager;
                size_t steps = 0;
                check(kolo_server_manager(get(s), &manager));
                check(kolo_rendezvous_manager_count(manager, &steps));
                return steps;
            },
            "The number of steps on this task.")
        .def(
            "join",
            [](Server &s, int timeout_ms) {
                kolo_server_t handle = get(s);
                run(nullptr, [&] { return kolo_server_join(handle, timeout_ms); });
            },
            "timeout_ms"_a = 0,
            "Waits until the server is stopped; after timeout_ms (0: no limit) Timeout is raised.")
        .def(
            "incarnation",
            [](Server &s, const std::string &task, int timeout_ms) {
                uint64_t number = 0;
                kolo_server_t handle = get(s);
                run(nullptr, [&] { return kolo_server_incarnation(handle, task.c_str(), timeout_ms, &number); });
                return number;
            },
            "task"_a, "timeout_ms"_a = 0, "The incarnation of a task, for keys with it as source.")
        .def(
            "stop",
            [](Server &s) {
                kolo_server_t handle = get(s);
                run(nullptr, [&] { return kolo_server_stop(handle); });
            },
            "Ends all steps and connections.")
        .def(
            "destroy",
            [](Server &s) {
                kolo_server_t handle = s.handle;
                if (!handle) return;
                get(s);
                s.handle = nullptr;
                run(nullptr, [&] { return kolo_server_destroy(handle); });
            },
            "Stops the server and frees it. Close all its rendezvous before.");
}

} // namespace

void bind_keyed(nb::module_ &m)
{
    bind_keys(m);
    bind_rendezvous(m);
    bind_server(m);
}

} // namespace kolocomm
