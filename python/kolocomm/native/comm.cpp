// SPDX-License-Identifier: Apache-2.0
//
// Communicators: how they begin, change and end.
#include "launch.hpp"

#include <kolo/job.h>

#include <cstring>
#include <set>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct Option {
    const char *name;
    int kolo_config_t::*field;
};
const Option options[] = {
    {"init_timeout_ms", &kolo_config_t::init_timeout_ms}, {"op_timeout_ms", &kolo_config_t::op_timeout_ms},
    {"split_share", &kolo_config_t::split_share},         {"device", &kolo_config_t::device},
    {"gpu_profile", &kolo_config_t::gpu_profile},
};

kolo_unique_id_t id_of(nb::handle given)
{
    kolo_unique_id_t id;
    if (!nb::isinstance<nb::bytes>(given))
        refuse("id is no bytes: it is what get_unique_id() or unique_id_load() returned");
    nb::bytes bytes = nb::borrow<nb::bytes>(given);
    if (bytes.size() != sizeof id.bytes)
        refuse(words("id has %zu bytes and not %zu: it is what get_unique_id() returned", bytes.size(),
                     sizeof id.bytes));
    memcpy(id.bytes, bytes.c_str(), sizeof id.bytes);
    return id;
}

nb::bytes bytes_of(const kolo_unique_id_t &id)
{
    return nb::bytes(id.bytes, sizeof id.bytes);
}

void fill(Comm &c, kolo_comm_t handle)
{
    c.handle = handle;
    check(kolo_comm_user_rank(handle, &c.rank), handle);
    check(kolo_comm_count(handle, &c.size), handle);
    check(kolo_comm_device(handle, &c.device), handle);
}

void init(Comm *self, nb::handle id, int rank, int size, const nb::kwargs &given)
{
    std::string name;
    kolo_config_t config = config_of(given, &name);
    std::vector<kolo_unique_id_t> ids;
    if (nb::isinstance<nb::list>(id) || nb::isinstance<nb::tuple>(id))
        for (nb::handle one : id) ids.push_back(id_of(one));
    else
        ids.push_back(id_of(id));
    new (self) Comm;
    kolo_comm_t handle;
    try {
        run(nullptr, [&] {
            return kolo_comm_init_rank_scalable(&handle, size, rank, (int)ids.size(), ids.data(), &config);
        });
        fill(*self, handle);
    } catch (...) {
        self->~Comm();
        throw;
    }
}

Comm *connect(nb::object ranks, const nb::kwargs &given)
{
    std::string name;
    kolo_config_t config = config_of(given, &name);
    kolo_comm_t handle;
    if (ranks.is_none()) {
        run(nullptr, [&] { return kolo_job_connect(&handle, &config); });
    } else {
        std::vector<int> list = want<std::vector<int>>(ranks, "ranks");
        int none = 0; // an empty list has its own message
        const int *at = list.empty() ? &none : list.data();
        run(nullptr, [&] { return kolo_job_connect_ranks(&handle, at, (int)list.size(), &config); });
    }
    return adopt(handle);
}

nb::list init_all(int size, const nb::kwargs &given)
{
    std::string name;
    kolo_config_t config = config_of(given, &name);
    if (size < 1) refuse(words("init_all: %d ranks; at least 1 is needed", size));
    std::vector<kolo_comm_t> handles((size_t)size);
    run(nullptr, [&] { return kolo_comm_init_all(handles.data(), size, &config); });
    nb::list all;
    for (kolo_comm_t handle : handles) all.append(nb::cast(adopt(handle), nb::rv_policy::take_ownership));
    return all;
}

// A communicator made from another one.
template <class F> Comm *derive(Comm &c, const char *what, const nb::kwargs &given, F &&make)
{
    std::string name;
    kolo_comm_t parent = c.get(what), child = nullptr;
    kolo_config_t config = config_of(given, &name);
    Turn turn(c, what);
    run(parent, [&] { return make(parent, &child, given.size() ? &config : nullptr); });
    return child ? adopt(child) : nullptr;
}

Comm *shrink(Comm &c, const std::vector<int> &excluded, bool abort, const nb::kwargs &given)
{
    // In abort mode it ends what other threads wait for.
    std::string name;
    kolo_comm_t parent = c.get("shrink"), child = nullptr;
    kolo_config_t config = config_of(given, &name);
    std::unique_ptr<Turn> turn(abort ? nullptr : new Turn(c, "shrink"));
    run(parent, [&] {
        return kolo_comm_shrink(parent, excluded.data(), (int)excluded.size(),
                                abort ? KOLO_SHRINK_ABORT : KOLO_SHRINK_DEFAULT, &child,
                                given.size() ? &config : nullptr);
    });
    return adopt(child);
}

Comm *grow(Comm &c, int size, nb::handle id, const nb::kwargs &given)
{
    kolo_unique_id_t made;
    bool mine = !id.is_none();
    if (mine) made = id_of(id);
    return derive(c, "grow", given, [&](kolo_comm_t parent, kolo_comm_t *child, const kolo_config_t *config) {
        return kolo_comm_grow(parent, size, mine ? &made : nullptr, -1, child, config);
    });
}

Comm *join(nb::handle id, int rank, int size, const nb::kwargs &given)
{
    std::string name;
    kolo_unique_id_t made = id_of(id);
    kolo_config_t config = config_of(given, &name);
    kolo_comm_t handle;
    run(nullptr,
        [&] { return kolo_comm_grow(nullptr, size, &made, rank, &handle, given.size() ? &config : nullptr); });
    return adopt(handle);
}

void destroy(Comm &c)
{
    if (!c.handle) return;
    kolo_comm_t handle = c.get("destroy");
    Turn turn(c, "destroy");
    if (c.borrowed) {
        c.lane.reset();
        c.handle = nullptr, c.why = "it belongs to the state, and this object was destroyed";
        return;
    }
    c.handle = nullptr, c.why = "it was destroyed";
    run(nullptr, [&] { return kolo_comm_destroy(handle); });
    c.lane.reset();
}

void abort(Comm &c, const std::string &why)
{
    kolo_comm_t handle = c.handle;
    if (!handle || c.born != forks()) return;
    c.handle = nullptr, c.why = why;
    kolo_status_t status = unlocked([&] { return kolo_comm_abort(handle); });
    if (status != KOLO_ERR_INVALID_ARGUMENT) check(status); // that is one which Ctrl-C has ended
    if (!c.lane) return;
    Unlocked here;
    c.lane->drain();
}

// Those that were not destroyed; under the interpreter's lock.
std::set<Comm *> &live()
{
    static std::set<Comm *> *all = new std::set<Comm *>; // used until the very end of the process
    return *all;
}

// At the interpreter's end: what other threads wait for is ended, the rest is freed.
void end_all()
{
    for (Comm *c : std::vector<Comm *>(live().begin(), live().end())) {
        if (!c->handle || c->born != forks()) continue;
        if (c->busy.load() || (c->lane && !c->lane->idle()))
            abort(*c, "the interpreter is ending");
        else
            destroy(*c);
    }
}

nb::tuple lost(const Comm &c)
{
    int count = 0;
    kolo_comm_t handle = c.get("lost");
    check(kolo_comm_lost(handle, nullptr, &count), handle);
    std::vector<int> ranks((size_t)count);
    int room = count;
    if (count) check(kolo_comm_lost(handle, ranks.data(), &room), handle);
    nb::list all;
    for (int i = 0; i < count && i < room; i++) all.append(ranks[(size_t)i]);
    return nb::tuple(all);
}

void bind_life(nb::class_<Comm> &c)
{
    c.def("__init__", init, "id"_a, "rank"_a, "size"_a, "options"_a,
          "Joins the communicator of size ranks that id names, as rank. Collective. id: bytes of get_unique_id() "
          "(a list of them: several roots).\n"
          "Options: name, op_timeout_ms (limit of one operation in milliseconds, 0: none), init_timeout_ms, device "
          "(-1: memory of the host, "
          "else the number of a GPU), gpu_profile, split_share.");
    c.def(
        "split",
        [](Comm &c, nb::object color, nb::object key, const nb::kwargs &o) {
            int of = color.is_none() ? KOLO_SPLIT_NOCOLOR : want<int>(color, "color"),
                by = key.is_none() ? c.rank : want<int>(key, "key");
            return derive(c, "split", o, [of, by](kolo_comm_t p, kolo_comm_t *n, const kolo_config_t *g) {
                return kolo_comm_split(p, of, by, n, g);
            });
        },
        "color"_a.none(), "key"_a = nb::none(), "options"_a, nb::rv_policy::take_ownership,
        "Ranks of equal color (0 and up) form a new communicator, ordered by key, then by rank. Collective. color "
        "None: takes part and gets None.");
    c.def(
        "dup",
        [](Comm &c, const nb::kwargs &o) {
            return derive(c, "dup", o, [](kolo_comm_t p, kolo_comm_t *n, const kolo_config_t *g) {
                return kolo_comm_dup(p, n, g);
            });
        },
        "options"_a, nb::rv_policy::take_ownership,
        "Another communicator of the same ranks, whose calls have no order with those of this one. Collective.");
    c.def("shrink", shrink, "excluded"_a = std::vector<int>(), "abort"_a = false, "options"_a,
          nb::rv_policy::take_ownership,
          "A communicator of the ranks that are left, in their old order: without the lost ones and those in "
          "excluded. Collective over these. "
          "abort: ends this rank's operations first.");
    c.def(
        "get_grow_id",
        [](Comm &c) {
            kolo_unique_id_t id;
            kolo_comm_t handle = c.get("get_grow_id");
            run(handle, [&] { return kolo_comm_get_grow_id(handle, &id); });
            return bytes_of(id);
        },
        "An id (bytes, a secret) with which new processes join, for one grow(). One rank calls it and passes it to "
        "its own grow().");
    c.def("grow", grow, "size"_a, "id"_a = nb::none(), "options"_a, nb::rv_policy::take_ownership,
          "A communicator of all ranks and new ones, which call join(); size counts both. Collective over all. id: "
          "on the rank that made it.");
    c.def(
        "revoke",
        [](Comm &c) {
            kolo_comm_t handle = c.get("revoke");
            run(handle, [&] { return kolo_comm_revoke(handle); });
        },
        "Makes the communicator unusable on all ranks: operations end with Revoked. Not collective, any thread.");
    c.def("lost", lost, "The ranks that this rank knows to be lost, ascending.");
    c.def(
        "finalize",
        [](Comm &c) {
            kolo_comm_t handle = c.get("finalize");
            if (c.borrowed)
                refuse(KOLO_ERR_INVALID_USAGE, "finalize: the communicator belongs to its state, which ends it");
            Turn turn(c, "finalize");
            run(handle, [&] { return kolo_comm_finalize(handle); });
        },
        "Waits until this rank's operations are complete and says goodbye to the others. Collective.");
    c.def(
        "leave",
        [](Comm &c) {
            kolo_comm_t handle = c.get("leave");
            if (c.borrowed)
                refuse(KOLO_ERR_INVALID_USAGE, "leave: the communicator belongs to its state, which ends it");
            Turn turn(c, "leave");
            run(handle, [&] { return kolo_comm_leave(handle); });
        },
        "Waits until this rank's operations are complete and tells the others that it leaves, without meeting "
        "them; destroy() follows.");
    c.def("destroy", destroy,
          "Frees the communicator, without waiting for other ranks. A second call does nothing.");
    c.def(
        "abort", [](Comm &c) { abort(c, "it was aborted"); },
        "Ends every wait of this communicator on this rank, from any thread, and frees it.");
    c.def("_abort", abort);
    c.def_prop_ro("_borrowed", [](Comm &c) { return c.borrowed; });
}

void bind_waiting(nb::class_<Comm> &c)
{
    c.def(
        "set_op_timeout",
        [](Comm &c, int timeout_ms) {
            int before = 0;
            kolo_comm_t handle = c.get("set_op_timeout");
            check(kolo_comm_set_op_timeout(handle, timeout_ms, &before), handle);
            return before;
        },
        "timeout_ms"_a,
        "Sets the limit of one operation in milliseconds (0: none) for those that begin from now on; returns the "
        "former one. time_limit() sets it for a block.");
    c.def(
        "synchronize",
        [](Comm &c) {
            kolo_comm_t handle = c.get("synchronize");
            if (c.lane && !c.lane->idle()) {
                Unlocked here;
                c.lane->drain();
            }
            run(handle, [&] { return kolo_comm_synchronize(handle); });
        },
        "Waits until this rank's operations are complete, on whatever stream; raises the error of one that has "
        "failed.");
}

} // namespace

Comm::Comm()
{
    start_watching();
    live().insert(this);
}

Comm::~Comm()
{
    live().erase(this);
    if (!handle || born != forks()) {
        if (born != forks()) (void)lane.release(); // its thread is not in this process
        return;
    }
    kolo_comm_t mine = handle;
    handle = nullptr;
    if (borrowed) return;
    PyErr_WarnEx(PyExc_ResourceWarning,
                 "a kolocomm.Comm was freed without destroy(): use `with`, or call finalize() and destroy()", 1);
    PyErr_Clear();
    bool waits = lane && !lane->idle();
    PyThreadState *state = PyEval_SaveThread();
    if (waits)
        kolo_comm_abort(mine);
    else
        kolo_comm_destroy(mine);
    lane.reset();
    PyEval_RestoreThread(state);
}

kolo_comm_t Comm::get(const char *what) const
{
    if (!handle)
        refuse(KOLO_ERR_INVALID_USAGE,
               words("%s: the communicator has ended: %s", what, why.empty() ? "it never began" : why.c_str()));
    if (born != forks())
        refuse(KOLO_ERR_INVALID_USAGE,
               words("%s: the communicator belongs to the process that called fork(), and its threads are not in "
                     "this one: "
                     "make communicators after the fork, or start processes with multiprocessing's \"spawn\"",
                     what));
    return handle;
}

Comm *adopt(kolo_comm_t handle)
{
    auto c = std::make_unique<Comm>();
    fill(*c, handle);
    return c.release();
}

kolo_config_t config_of(const nb::kwargs &given, std::string *name)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    for (auto [key, value] : given) {
        std::string option = nb::cast<std::string>(key);
        bool found = option == "name";
        if (value.is_none()) continue;
        if (found) *name = want<std::string>(value, "name"), config.name = name->c_str();
        for (const Option &o : options)
            if (option == o.name) config.*o.field = want<int>(value, o.name), found = true;
        if (!found)
            refuse(words("there is no option %s: there are name, op_timeout_ms, init_timeout_ms, device, "
                         "gpu_profile and split_share",
                         option.c_str()));
    }
    return config;
}

void bind_comm(nb::module_ &m, nb::class_<Comm> &c)
{
    bind_life(c);
    bind_waiting(c);
    c.def_ro("rank", &Comm::rank, "Which rank this process is, from 0.");
    c.def_ro("size", &Comm::size, "The number of ranks.");
    c.def_ro("device", &Comm::device, "The GPU of this rank's buffers, -1 for memory of the host.");
    c.def_prop_ro(
        "ended", [](Comm &c) { return c.handle == nullptr; }, "True after destroy() and abort().");
    c.def(
        "get_async_error",
        [](Comm &c) {
            kolo_status_t status = KOLO_OK;
            kolo_comm_t handle = c.get("get_async_error");
            check(kolo_comm_get_async_error(handle, &status), handle);
            return (int)status;
        },
        "The status of the first error that made the communicator unusable, 0: none. Never waits, any thread.");
    c.def(
        "memory",
        [](Comm &c) {
            size_t bytes = 0;
            kolo_comm_t handle = c.get("memory");
            run(handle, [&] { return kolo_comm_memory(handle, &bytes); });
            return bytes;
        },
        "How many bytes this communicator holds on this rank.");
    c.def(
        "suspend",
        [](Comm &c) {
            size_t bytes = 0;
            kolo_comm_t handle = c.get("suspend");
            run(handle, [&] { return kolo_comm_suspend(handle, &bytes); });
            return bytes;
        },
        "Frees the device memory of a GPU communicator until resume(); returns how many bytes. Collective.");
    c.def(
        "resume",
        [](Comm &c) {
            kolo_comm_t handle = c.get("resume");
            run(handle, [&] { return kolo_comm_resume(handle); });
        },
        "Makes the device memory again. Collective.");

    m.def("_end_all", end_all);
    m.def("connect", connect, "ranks"_a = nb::none(), "options"_a, nb::rv_policy::take_ownership,
          "Makes a communicator of all ranks of the job, which the launcher's variables name (kolorun, torchrun, "
          "mpirun, srun); one rank without a "
          "launcher. ranks: of these alone, in this order; only they call it. Collective. Options as for Comm.");
    m.def("init_all", init_all, "size"_a, "options"_a,
          "All ranks of a communicator in this process: a list of them.");
    m.def("join", join, "id"_a, "rank"_a, "size"_a, "options"_a, nb::rv_policy::take_ownership,
          "Joins a communicator that grows (Comm.grow), as a new rank; size counts old and new ranks.");
    m.def(
        "get_unique_id",
        [] {
            kolo_unique_id_t id;
            run(nullptr, [&] { return kolo_get_unique_id(&id); });
            return bytes_of(id);
        },
        "Makes the id of one job: 128 bytes with its secret. Send it only over channels you trust.");
    m.def(
        "unique_id_save",
        [](nb::handle given, const std::string &path) {
            kolo_unique_id_t id = id_of(given);
            run(nullptr, [&] { return kolo_unique_id_save(&id, path.c_str()); });
        },
        "id"_a, "path"_a, "Writes the id to a file of mode 0600.");
    m.def(
        "unique_id_load",
        [](const std::string &path, int timeout_ms) {
            kolo_unique_id_t id;
            run(nullptr, [&] { return kolo_unique_id_load(&id, path.c_str(), timeout_ms); });
            return bytes_of(id);
        },
        "path"_a, "timeout_ms"_a = 120000,
        "Reads an id from a file, for which it waits at most so many milliseconds.");
    m.def("_job_place", [] {
        kolo_job_place_t p;
        check(kolo_job_get_place(&p));
        return nb::make_tuple(p.rank, p.nranks, p.local_rank, p.local_size, p.launcher);
    });
}

} // namespace kolocomm
