// SPDX-License-Identifier: Apache-2.0
//
// State that survives losses and newcomers: the training function is called again after each change of the ranks.
#include "launch.hpp"

#include <kolo/state.h>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct State {
    State() = default;
    State(const State &) = delete;
    ~State()
    {
        if (handle) kolo_state_destroy(handle);
    }
    kolo_state_t handle = nullptr;
    std::vector<Buffer> buffers;
    nb::object fn, self, changed; // changed: the exception that a commit raises when the ranks change
    bool running = false;
    kolo_status_t result = KOLO_OK; // of enter(), until next() has it
    bool entered = false;
};

kolo_state_t get(State &s)
{
    if (!s.handle) refuse(KOLO_ERR_INVALID_USAGE, "the state was destroyed");
    return s.handle;
}

// What the function raised, as the status that kolo_state_run() goes by.
kolo_status_t status_of(State &s, nb::python_error &e)
{
    if (e.matches(s.changed)) return KOLO_IN_PROGRESS;
    nb::object value = nb::borrow(e.value());
    int code = nb::hasattr(value, "code") && nb::hasattr(value, "ranks") ? nb::cast<int>(value.attr("code")) : 0;
    if (code == KOLO_ERR_REMOTE || code == KOLO_ERR_ABORTED || code == KOLO_ERR_REVOKED) return (kolo_status_t)code;
    e.restore();
    remember_raised();
    return KOLO_ERR_INVALID_USAGE;
}

kolo_status_t call_fn(kolo_state_t, void *arg)
{
    State &s = *(State *)arg;
    Locked here;
    if (!here) return KOLO_ERR_INVALID_USAGE;
    try {
        s.fn(s.self);
        return KOLO_OK;
    } catch (nb::python_error &e) {
        return status_of(s, e);
    }
}

// True: all is done; false: the launcher removed this process, and the job goes on without it.
bool run_state(nb::handle self, nb::object fn)
{
    State &s = *nb::inst_ptr<State>(self);
    kolo_state_t handle = get(s);
    if (s.running) refuse(KOLO_ERR_INVALID_USAGE, "run() is not called from inside its function");
    s.fn = fn, s.self = nb::borrow(self), s.running = true;
    kolo_status_t status = unlocked([&] { return kolo_state_run(handle, call_fn, &s); });
    s.fn.reset(), s.self.reset(), s.running = false;
    raise_remembered();
    if (status != KOLO_IN_PROGRESS) check(status);
    return status == KOLO_OK;
}

// In a loop: gets in. What fails is told by the first next().
void enter(State &s)
{
    kolo_state_t handle = get(s);
    s.result = unlocked([&] { return kolo_state_enter(handle); });
    s.entered = true;
    raise_remembered();
}

// True: another round; False: all is done; None: the launcher removed this process.
nb::object next(State &s, nb::object error)
{
    kolo_state_t handle = get(s);
    int again = 0;
    kolo_status_t status = s.entered ? s.result : KOLO_OK;
    s.entered = false;
    bool own = false; // of the program: it is raised again when the others have been told
    if (!error.is_none()) {
        int code =
            nb::hasattr(error, "code") && nb::hasattr(error, "ranks") ? nb::cast<int>(error.attr("code")) : 0;
        bool loss = code == KOLO_ERR_REMOTE || code == KOLO_ERR_ABORTED || code == KOLO_ERR_REVOKED;
        own = !loss && !nb::isinstance(error, s.changed);
        status = loss ? (kolo_status_t)code : own ? KOLO_ERR_INVALID_USAGE : KOLO_IN_PROGRESS;
    }
    status = unlocked([&] { return kolo_state_next(handle, status, &again); });
    if (own) {
        PyErr_SetObject((PyObject *)Py_TYPE(error.ptr()), error.ptr());
        throw nb::python_error();
    }
    raise_remembered();
    if (status == KOLO_IN_PROGRESS) return nb::none();
    check(status);
    return nb::bool_(again != 0);
}

void commit(State &s)
{
    kolo_state_t handle = get(s);
    kolo_status_t status = unlocked([&] { return kolo_state_commit(handle); });
    if (status == KOLO_IN_PROGRESS) {
        PyErr_SetString(s.changed.ptr(),
                        "the commit has succeeded, and ranks are added or removed: leave the function");
        throw nb::python_error();
    }
    check(status);
}

Comm *comm(State &s)
{
    kolo_comm_t handle;
    check(kolo_state_comm(get(s), &handle));
    Comm *c = adopt(handle);
    c->borrowed = true;
    return c;
}

} // namespace

void bind_state(nb::module_ &m)
{
    nb::class_<State>(
        m, "State",
        "Buffers that are committed after each step, so that a job goes on when ranks are lost, added or removed.")
        .def(
            "__init__",
            [](State *s, nb::object min_ranks, nb::object change_timeout_ms) {
                kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
                if (!min_ranks.is_none()) config.min_ranks = want<int>(min_ranks, "min_ranks");
                if (!change_timeout_ms.is_none())
                    config.change_timeout_ms = want<int>(change_timeout_ms, "change_timeout_ms");
                new (s) State;
                s->changed = nb::module_::import_("kolocomm.errors").attr("RanksChange");
                check(kolo_state_create(&s->handle, &config));
            },
            "min_ranks"_a = nb::none(), "change_timeout_ms"_a = nb::none())
        .def(
            "register",
            [](State &s, const std::string &name, nb::handle array) {
                Buffer b(array, "array", true);
                check(kolo_state_register(get(s), name.c_str(), b.data, b.bytes()));
                s.buffers.push_back(std::move(b));
            },
            "name"_a, "array"_a,
            "Adds an array to the state, before run(): the same names and sizes in the same order on all ranks.")
        .def(
            "run", [](nb::handle_t<State> self, nb::object fn) { return run_state(self, fn); }, "fn"_a,
            "Calls fn(state), and calls it again after each change of the ranks, until it returns on all of them. "
            "Remote, Aborted, Revoked and RanksChange that "
            "leave fn are such changes; any other exception ends the job on this rank and is raised here. False: "
            "the launcher removed this process.")
        .def("enter", enter,
             "Instead of run(): waits for the other ranks, or for a place among them. What fails is raised by the "
             "first next(). rounds() calls both.")
        .def("next", next, "error"_a = nb::none(),
             "After enter(), and after each round with the exception that ended it: does what is due before the "
             "next "
             "round. True: another round; False: all is done; None: the launcher removed this process. Exceptions "
             "that "
             "are no change of the ranks end the job on this rank and are raised again.")
        .def(
            "put",
            [](State &s, const std::string &name, nb::handle data) {
                if (data.is_none()) return check(kolo_state_put(get(s), name.c_str(), nullptr, 0));
                Py_buffer view;
                if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
                kolo_status_t status = kolo_state_put(get(s), name.c_str(), view.buf, (size_t)view.len);
                PyBuffer_Release(&view);
                check(status);
            },
            "name"_a, "data"_a.none(),
            "Makes a copy of data (bytes, or anything with a buffer) the value of this name, of any size: part of "
            "the "
            "next commit. For the first time before run(), on all ranks in the same order among all names.")
        .def(
            "get",
            [](State &s, const std::string &name) {
                const void *data;
                size_t bytes;
                check(kolo_state_get(get(s), name.c_str(), &data, &bytes));
                return nb::bytes(data ? data : "", bytes);
            },
            "name"_a, "The value of this name as bytes: what was put last, or what the last restore brought back.")
        .def("commit", commit,
             "Saves the arrays as the newest commit. Collective, inside run(). Raises RanksChange, which fn lets "
             "pass, when ranks are to change.")
        .def(
            "restore", [](State &s) { check(kolo_state_restore(get(s))); }, "Copies the last commit back. Local.")
        .def(
            "sync",
            [](State &s) {
                kolo_state_t handle = get(s);
                run(nullptr, [&] { return kolo_state_sync(handle); });
            },
            "Copies the newest commit of any rank into the arrays of all ranks. Collective.")
        .def_prop_ro("comm", comm, nb::rv_policy::take_ownership,
                     "The present communicator; the state owns it, and it ends with the next change.")
        .def_prop_ro(
            "info",
            [](State &s) {
                kolo_state_info_t i;
                check(kolo_state_get_info(get(s), &i));
                nb::dict d;
                d["rank"] = i.rank, d["size"] = i.nranks, d["commits"] = i.commits, d["changes"] = i.changes,
                d["losses"] = i.losses, d["synced"] = i.synced;
                return d;
            },
            "rank, size, commits, changes, losses, synced (bytes) as a dictionary.")
        .def(
            "destroy",
            [](State &s) {
                kolo_state_t handle = s.handle;
                if (s.running) refuse(KOLO_ERR_INVALID_USAGE, "destroy() is not called from inside run()");
                s.handle = nullptr;
                if (handle) run(nullptr, [&] { return kolo_state_destroy(handle); });
                s.buffers.clear();
            },
            "Frees the state and its communicator, without waiting for any rank.");
}

} // namespace kolocomm
