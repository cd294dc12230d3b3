// SPDX-License-Identifier: Apache-2.0
//
// The engine: operations on named tensors, submitted in any order.
#include "launch.hpp"

#include <kolo/engine.h>

#include <cstring>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct Engine {
    Engine() = default;
    Engine(const Engine &) = delete;
    ~Engine();
    kolo_tensor_engine_t handle = nullptr;
    kolo_engine_place_t place = {};
    int born = forks();
};

// A tensor that was submitted, with its arrays, until it is complete and was waited for.
struct Submission {
    nb::object engine, output_array;
    nb::object self; // until it is complete: the engine uses the arrays
    Buffer input, output;
    std::vector<int64_t> shape;
    void *allocated = nullptr;
    int64_t handle = -1;
    bool waited = false;
    ~Submission()
    {
        free(allocated);
    }
};

kolo_tensor_engine_t get(Engine &e)
{
    if (!e.handle) refuse(KOLO_ERR_INVALID_USAGE, "the engine has ended");
    if (e.born != forks())
        refuse(KOLO_ERR_INVALID_USAGE,
               "the engine belongs to the process that called fork(): make one after the fork");
    return e.handle;
}

void end(Engine &e, bool abort)
{
    kolo_tensor_engine_t handle = e.handle;
    if (!handle) return;
    e.handle = nullptr;
    run(nullptr, [&] { return abort ? kolo_engine_abort(handle) : kolo_engine_shutdown(handle); });
}

Engine::~Engine()
{
    if (!handle || born != forks()) return;
    PyThreadState *state = PyEval_SaveThread();
    kolo_engine_abort(handle);
    PyEval_RestoreThread(state);
}

void init(Engine *self, nb::handle comm, const nb::kwargs &given)
{
    struct Option {
        const char *name;
        int64_t kolo_engine_config_t::*field;
    };
    static const Option options[] = {{"fusion_threshold", &kolo_engine_config_t::fusion_threshold},
                                     {"fusion_tensor_max", &kolo_engine_config_t::fusion_tensor_max},
                                     {"cache_capacity", &kolo_engine_config_t::cache_capacity},
                                     {"cycle_time_us", &kolo_engine_config_t::cycle_time_us},
                                     {"stall_warn_ms", &kolo_engine_config_t::stall_warn_ms},
                                     {"stall_limit_ms", &kolo_engine_config_t::stall_limit_ms}};
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    std::string backends;
    for (auto [key, value] : given) {
        std::string name = nb::cast<std::string>(key);
        bool found = name == "backends" || name == "autotune" || name == "group_fusion";
        if (name == "backends") backends = want<std::string>(value, "backends"), config.backends = backends.c_str();
        if (name == "autotune") config.autotune = want<bool>(value, "autotune");
        if (name == "group_fusion") config.group_fusion = want<bool>(value, "group_fusion");
        for (const Option &o : options)
            if (name == o.name) config.*o.field = want<int64_t>(value, o.name), found = true;
        if (!found) refuse(words("there is no option %s of an engine", name.c_str()));
    }
    kolo_comm_t over = comm.is_none() ? nullptr : nb::inst_ptr<Comm>(comm)->get("Engine");
    new (self) Engine;
    try {
        run(over, [&] { return kolo_engine_init(&self->handle, over, &config); });
        check(kolo_engine_get_place(self->handle, &self->place));
    } catch (...) {
        self->~Engine();
        throw;
    }
}

void *allocate(void *arg, int, size_t bytes, int, const int64_t *)
{
    Submission *s = (Submission *)arg;
    return s->allocated = malloc(bytes ? bytes : 1);
}

// On the engine's thread.
void complete(void *arg, const kolo_completion_t *)
{
    Locked here;
    if (!here) return;
    nb::object last = std::move(((Submission *)arg)->self);
}

std::vector<int64_t> shape_of(nb::handle array)
{
    std::vector<int64_t> shape;
    nb::object from =
        nb::hasattr(array, "shape") ? nb::borrow(array) : nb::steal(PyMemoryView_FromObject(array.ptr()));
    if (!from.is_valid()) throw nb::python_error();
    for (nb::handle n : from.attr("shape")) shape.push_back(nb::cast<int64_t>(n));
    return shape;
}

using Submit =
    std::function<kolo_status_t(kolo_tensor_engine_t, const kolo_tensor_t *, const kolo_submission_t *, int64_t *)>;

// output None: in place for operations whose result has the input's shape, else memory of the size that comes.
nb::object submit(nb::handle self, const std::string &name, nb::handle tensor, nb::handle output, bool in_place,
                  int set, const Submit &call)
{
    kolo_tensor_engine_t engine = get(*nb::inst_ptr<Engine>(self));
    auto s = std::make_unique<Submission>();
    bool here = in_place && output.is_none();
    s->engine = nb::borrow(self), s->input = Buffer(tensor, "tensor", here), s->shape = shape_of(tensor);
    if (here) s->output_array = nb::borrow(tensor);
    if (!output.is_none()) s->output = Buffer(output, "output", true), s->output_array = nb::borrow(output);
    if (s->output && s->output.type != s->input.type) refuse("output has another type of elements than tensor");
    kolo_tensor_t t = {name.c_str(),    s->input.type, (int)s->shape.size(),
                       s->shape.data(), s->input.data, here ? s->input.data : s->output.data};
    kolo_submission_t how = {};
    how.done = complete, how.allocate = allocate, how.arg = s.get(), how.set = set;
    Submission &mine = *s;
    mine.self = nb::cast(s.release(), nb::rv_policy::take_ownership);
    nb::object out = mine.self;
    kolo_status_t status = call(engine, &t, &how, &mine.handle);
    if (status != KOLO_OK) mine.self.reset();
    check(status);
    return out;
}

// Tensors that are submitted together. Each holds itself until the engine has ended it; the last one frees this.
struct Group {
    std::vector<Submission *> members;
    size_t left = 0;
};

void *allocate_member(void *arg, int index, size_t bytes, int, const int64_t *)
{
    Submission *s = ((Group *)arg)->members[(size_t)index];
    return s->allocated = malloc(bytes ? bytes : 1);
}

// On the engine's thread.
void complete_member(void *arg, const kolo_completion_t *c)
{
    Locked here;
    if (!here) return;
    Group *group = (Group *)arg;
    nb::object last = std::move(group->members[(size_t)c->index]->self);
    if (--group->left == 0) delete group;
}

using SubmitAll = std::function<kolo_status_t(kolo_tensor_engine_t, const kolo_tensor_t *, int,
                                              const kolo_submission_t *, int64_t *)>;

// The k-th of a list that may be None.
nb::object nth(const nb::object &list, size_t k)
{
    return list.is_none() ? nb::none() : nb::borrow(list[k]);
}

// As submit(), for all of them or none. Returns their submissions.
nb::list submit_all(nb::handle self, const std::vector<std::string> &names, const nb::object &tensors,
                    const nb::object &outputs, bool in_place, int set, const SubmitAll &call)
{
    kolo_tensor_engine_t engine = get(*nb::inst_ptr<Engine>(self));
    size_t n = names.size();
    if (nb::len(tensors) != n || (!outputs.is_none() && nb::len(outputs) != n))
        refuse(words("there are %zu names, and as many tensors and outputs are wanted", n));
    auto group = std::make_unique<Group>();
    std::vector<kolo_tensor_t> all;
    std::vector<int64_t> handles(n);
    nb::list out;
    for (size_t k = 0; k < n; k++) {
        nb::object tensor = nth(tensors, k), output = nth(outputs, k);
        auto s = std::make_unique<Submission>();
        bool here = in_place && output.is_none();
        s->engine = nb::borrow(self), s->input = Buffer(tensor, "tensor", here), s->shape = shape_of(tensor);
        if (here) s->output_array = tensor;
        if (!output.is_none()) s->output = Buffer(output, "output", true), s->output_array = output;
        if (s->output && s->output.type != s->input.type) refuse("output has another type of elements than tensor");
        all.push_back({names[k].c_str(), s->input.type, (int)s->shape.size(), s->shape.data(), s->input.data,
                       here ? s->input.data : s->output.data});
        group->members.push_back(s.get());
        out.append(nb::cast(s.release(), nb::rv_policy::take_ownership));
    }
    for (size_t k = 0; k < n; k++) group->members[k]->self = nb::borrow(out[k]);
    group->left = n;
    kolo_submission_t how = {};
    how.done = complete_member, how.allocate = allocate_member, how.arg = group.get(), how.set = set;
    kolo_status_t status = call(engine, all.data(), (int)n, &how, handles.data());
    for (size_t k = 0; k < n; k++) {
        Submission &s = *nb::inst_ptr<Submission>(out[k]);
        s.handle = handles[k];
        if (status != KOLO_OK) s.self.reset();
    }
    if (status == KOLO_OK && n > 0) group.release();
    check(status);
    return out;
}

// In slices, so that Ctrl-C is seen; the tensor goes on then.
nb::object wait(nb::handle self, nb::handle timeout)
{
    Submission &s = *nb::inst_ptr<Submission>(self);
    if (s.waited) refuse(KOLO_ERR_INVALID_USAGE, "this tensor was waited for");
    double left = limit_of(timeout);
    kolo_completion_t done = {};
    for (;;) {
        int slice = left < 50 ? (left < 1 ? 1 : (int)left) : 50;
        kolo_tensor_engine_t engine = get(*nb::inst_ptr<Engine>(s.engine));
        int complete = 0;
        check(kolo_engine_poll(engine, s.handle, &complete));
        kolo_status_t status =
            unlocked([&] { return kolo_engine_wait(engine, s.handle, complete ? 0 : slice, &done); });
        if (complete || status != KOLO_ERR_TIMEOUT) {
            s.waited = true;
            check(status);
            break;
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        left -= slice;
        if (left <= 0)
            refuse(KOLO_ERR_TIMEOUT,
                   words("the tensor is not complete after %g s; it goes on", nb::cast<double>(timeout)));
    }
    if (!s.allocated) return s.output_array;
    nb::list shape;
    size_t bytes = kolo_type_size(s.input.type);
    for (int i = 0; i < done.ndims; i++) shape.append(done.shape[i]), bytes *= (size_t)done.shape[i];
    nb::object memory = nb::steal(PyByteArray_FromStringAndSize((const char *)s.allocated, (Py_ssize_t)bytes));
    return nb::make_tuple(memory, type_name(s.input.type), nb::tuple(shape));
}

bool done(Submission &s)
{
    int complete = 0;
    if (s.waited) return true;
    check(kolo_engine_poll(get(*nb::inst_ptr<Engine>(s.engine)), s.handle, &complete));
    return complete != 0;
}

kolo_op_t engine_op(nb::handle op)
{
    return nb::isinstance<nb::str>(op) && nb::cast<std::string>(op) == "adasum" ? KOLO_ADASUM : op_of(op);
}

nb::object no_tensor(nb::handle self, const Submit &call)
{
    auto s = std::make_unique<Submission>();
    kolo_tensor_engine_t engine = get(*nb::inst_ptr<Engine>(self));
    kolo_submission_t how = {};
    s->engine = nb::borrow(self), s->output_array = nb::none();
    check(call(engine, nullptr, &how, &s->handle)); // nothing of it is used
    return nb::cast(s.release(), nb::rv_policy::take_ownership);
}

std::vector<int> set_ids(Engine &g)
{
    int count = 0;
    check(kolo_engine_get_set_ids(get(g), nullptr, 0, &count));
    std::vector<int> ids((size_t)count);
    check(kolo_engine_get_set_ids(get(g), ids.data(), count, &count));
    ids.resize(std::min(ids.size(), (size_t)count));
    return ids;
}

std::vector<int> set_ranks(Engine &g, int set)
{
    kolo_set_info_t info;
    check(kolo_engine_get_set(get(g), set, &info));
    std::vector<int> ranks((size_t)info.size);
    check(kolo_engine_get_set_ranks(get(g), set, ranks.data(), info.size));
    return ranks;
}

nb::dict counters(Engine &g)
{
    kolo_engine_counters_t c;
    nb::dict d;
    check(kolo_engine_get_counters(get(g), &c));
    d["cycles"] = c.cycles, d["slow_cycles"] = c.slow_cycles, d["sleeps"] = c.sleeps, d["tensors"] = c.tensors;
    d["operations"] = c.operations, d["hits"] = c.hits, d["misses"] = c.misses, d["invalid"] = c.invalid;
    d["reduced_bytes"] = c.reduced_bytes, d["packed_bytes"] = c.packed_bytes, d["negotiate_ns"] = c.negotiate_ns;
    d["pack_ns"] = c.pack_ns, d["operate_ns"] = c.operate_ns, d["complete_ns"] = c.complete_ns;
    return d;
}

nb::list backends(Engine &g)
{
    nb::list all;
    kolo_backend_info_t b;
    for (int i = 0; kolo_engine_get_backend(get(g), i, &b) == KOLO_OK; i++) {
        nb::dict d;
        d["name"] = b.name, d["available"] = b.available != 0, d["why"] = b.why, d["operations"] = b.operations;
        d["bytes"] = b.bytes;
        all.append(d);
    }
    return all;
}

void bind_submissions(nb::class_<Engine> &e)
{
    e.def(
        "all_reduce",
        [](nb::handle self, const std::string &name, nb::handle tensor, nb::handle output, nb::handle op,
           double pre, double post, int set) {
            kolo_op_t o = engine_op(op);
            return submit(self, name, tensor, output, true, set, [=](auto g, auto t, auto how, auto h) {
                return kolo_engine_all_reduce(g, t, o, pre, post, how, h);
            });
        },
        "name"_a, "tensor"_a, "output"_a = nb::none(), "op"_a = "avg", "prescale"_a = 1.0, "postscale"_a = 1.0,
        "set"_a = 0,
        "Every rank gets the reduction of all ranks' tensors of this name (op: sum, avg, min, max, prod, adasum). "
        "output None: in place.");
    e.def(
        "broadcast",
        [](nb::handle self, const std::string &name, nb::handle tensor, nb::handle output, int root, int set) {
            return submit(self, name, tensor, output, true, set, [=](auto g, auto t, auto how, auto h) {
                return kolo_engine_broadcast(g, t, root, how, h);
            });
        },
        "name"_a, "tensor"_a, "output"_a = nb::none(), "root"_a = 0, "set"_a = 0,
        "Every rank gets the root's tensor. output None: in place.");
    e.def(
        "all_gather",
        [](nb::handle self, const std::string &name, nb::handle tensor, nb::handle output, int set) {
            return submit(self, name, tensor, output, false, set,
                          [](auto g, auto t, auto how, auto h) { return kolo_engine_all_gather(g, t, how, h); });
        },
        "name"_a, "tensor"_a, "output"_a = nb::none(), "set"_a = 0,
        "Every rank gets the rows of all ranks, in rank order; the number of rows may differ.");
    e.def(
        "all_to_all",
        [](nb::handle self, const std::string &name, nb::handle tensor, nb::object splits, nb::handle output,
           int set) {
            std::vector<int64_t> rows;
            if (!splits.is_none()) rows = nb::cast<std::vector<int64_t>>(splits);
            int size = nb::inst_ptr<Engine>(self)->place.size;
            if (!rows.empty() && set == 0 && (int)rows.size() != size)
                refuse(words("splits has %zu numbers, and there are %d ranks", rows.size(), size));
            return submit(self, name, tensor, output, false, set, [=](auto g, auto t, auto how, auto h) {
                return kolo_engine_all_to_all(g, t, rows.empty() ? nullptr : rows.data(), how, h);
            });
        },
        "name"_a, "tensor"_a, "splits"_a = nb::none(), "output"_a = nb::none(), "set"_a = 0,
        "splits[i] rows go to rank i; None: equal parts.");
    e.def(
        "reduce_scatter",
        [](nb::handle self, const std::string &name, nb::handle tensor, nb::handle output, nb::handle op,
           double pre, double post, int set) {
            kolo_op_t o = op_of(op);
            return submit(self, name, tensor, output, false, set, [=](auto g, auto t, auto how, auto h) {
                return kolo_engine_reduce_scatter(g, t, o, pre, post, how, h);
            });
        },
        "name"_a, "tensor"_a, "output"_a = nb::none(), "op"_a = "avg", "prescale"_a = 1.0, "postscale"_a = 1.0,
        "set"_a = 0, "Rank i gets part i of the rows of the reduction.");
    e.def(
        "barrier",
        [](nb::handle self) {
            return no_tensor(self, [](auto g, auto, auto how, auto h) { return kolo_engine_barrier(g, how, h); });
        },
        "Complete when all ranks have submitted one.");
    e.def(
        "join",
        [](nb::handle self) {
            return no_tensor(self, [](auto g, auto, auto how, auto h) { return kolo_engine_join(g, how, h); });
        },
        "This rank has no more input; complete when all have joined.");
}

using Names = std::vector<std::string>;

void bind_groups(nb::class_<Engine> &e)
{
#define TOGETHER "Submits tensors together: they run once all ranks have submitted all of them. Returns a list."
    e.def(
        "all_reduce_group",
        [](nb::handle self, const Names &names, nb::object tensors, nb::object outputs, nb::handle op, double pre,
           double post, int set) {
            kolo_op_t o = engine_op(op);
            return submit_all(self, names, tensors, outputs, true, set,
                              [=](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_all_reduce_group(g, t, n, o, pre, post, how, h);
                              });
        },
        "names"_a, "tensors"_a, "outputs"_a = nb::none(), "op"_a = "avg", "prescale"_a = 1.0, "postscale"_a = 1.0,
        "set"_a = 0, TOGETHER " Each as all_reduce() does it.");
    e.def(
        "broadcast_group",
        [](nb::handle self, const Names &names, nb::object tensors, nb::object outputs, int root, int set) {
            return submit_all(self, names, tensors, outputs, true, set,
                              [=](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_broadcast_group(g, t, n, root, how, h);
                              });
        },
        "names"_a, "tensors"_a, "outputs"_a = nb::none(), "root"_a = 0, "set"_a = 0,
        TOGETHER " Each as broadcast() does it.");
    e.def(
        "all_gather_group",
        [](nb::handle self, const Names &names, nb::object tensors, nb::object outputs, int set) {
            return submit_all(self, names, tensors, outputs, false, set,
                              [](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_all_gather_group(g, t, n, how, h);
                              });
        },
        "names"_a, "tensors"_a, "outputs"_a = nb::none(), "set"_a = 0, TOGETHER " Each as all_gather() does it.");
    e.def(
        "all_to_all_group",
        [](nb::handle self, const Names &names, nb::object tensors, nb::object splits, nb::object outputs,
           int set) {
            std::vector<std::vector<int64_t>> rows(names.size());
            std::vector<const int64_t *> tables(names.size(), nullptr);
            size_t size = (size_t)nb::inst_ptr<Engine>(self)->place.size;
            if (!splits.is_none() && nb::len(splits) != names.size())
                refuse(words("splits has %zu lists, and there are %zu names", nb::len(splits), names.size()));
            for (size_t k = 0; k < names.size(); k++) {
                nb::object one = nth(splits, k);
                if (one.is_none()) continue;
                rows[k] = nb::cast<std::vector<int64_t>>(one), tables[k] = rows[k].data();
                if (set == 0 && rows[k].size() != size)
                    refuse(words("splits has %zu numbers, and there are %zu ranks", rows[k].size(), size));
            }
            return submit_all(self, names, tensors, outputs, false, set,
                              [&](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_all_to_all_group(g, t, n, tables.data(), how, h);
                              });
        },
        "names"_a, "tensors"_a, "splits"_a = nb::none(), "outputs"_a = nb::none(), "set"_a = 0,
        TOGETHER " Each as all_to_all() does it; splits: a list of rows, or None, for each.");
    e.def(
        "reduce_scatter_group",
        [](nb::handle self, const Names &names, nb::object tensors, nb::object outputs, nb::handle op, double pre,
           double post, int set) {
            kolo_op_t o = op_of(op);
            return submit_all(self, names, tensors, outputs, false, set,
                              [=](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_reduce_scatter_group(g, t, n, o, pre, post, how, h);
                              });
        },
        "names"_a, "tensors"_a, "outputs"_a = nb::none(), "op"_a = "avg", "prescale"_a = 1.0, "postscale"_a = 1.0,
        "set"_a = 0, TOGETHER " Each as reduce_scatter() does it.");
#undef TOGETHER
}

} // namespace

void bind_engine(nb::module_ &m)
{
    nb::class_<Submission>(m, "Submission", "A tensor that was submitted to an engine.")
        .def(
            "_wait", [](nb::handle self, nb::handle timeout) { return wait(self, timeout); }, "timeout"_a.none())
        .def("done", done, "True if the tensor is complete, successfully or not. Never waits.");
    nb::class_<Engine> e(
        m, "Engine",
        "Operations on named tensors, which each rank submits in the order in which they become ready.");
    e.def("__init__", init, "comm"_a = nb::none(), "options"_a,
          "comm None: all ranks of the job. Options: fusion_threshold, fusion_tensor_max (bytes), cache_capacity, "
          "cycle_time_us, stall_warn_ms, "
          "stall_limit_ms, backends, autotune, group_fusion.");
    e.def_prop_ro("rank", [](Engine &g) { return g.place.rank; });
    e.def_prop_ro("size", [](Engine &g) { return g.place.size; });
    e.def_prop_ro("local_rank", [](Engine &g) { return g.place.local_rank; });
    e.def_prop_ro("local_size", [](Engine &g) { return g.place.local_size; });
    e.def(
        "shutdown", [](Engine &g) { end(g, false); }, "Ends the engine for all ranks; raises its first failure.");
    e.def(
        "abort", [](Engine &g) { end(g, true); }, "Ends the engine on this rank, without waiting for others.");
    e.def(
        "add_set",
        [](Engine &g, const std::vector<int> &ranks) {
            int set = 0;
            kolo_tensor_engine_t handle = get(g);
            run(nullptr, [&] { return kolo_engine_add_set(handle, ranks.data(), (int)ranks.size(), &set); });
            return set;
        },
        "ranks"_a, "Makes a process set and returns its id. Collective over all ranks.");
    e.def(
        "remove_set",
        [](Engine &g, int set) {
            kolo_tensor_engine_t handle = get(g);
            run(nullptr, [&] { return kolo_engine_remove_set(handle, set); });
        },
        "set"_a, "Removes a process set. Collective over all ranks.");
    e.def_prop_ro("sets", set_ids, "The ids of the process sets, ascending; 0 is all ranks.");
    e.def("set_ranks", set_ranks, "set"_a, "The ranks of a process set, ascending.");
    e.def(
        "set_info",
        [](Engine &g, int set) {
            kolo_set_info_t i;
            check(kolo_engine_get_set(get(g), set, &i));
            nb::dict d;
            d["id"] = i.id, d["size"] = i.size, d["included"] = i.included != 0, d["rank"] = i.rank;
            return d;
        },
        "set"_a, "id, size, included (this rank is in it) and rank (its number there, or -1) as a dictionary.");
    e.def_prop_ro("counters", counters, "What the engine has done so far on this rank, as a dictionary.");
    e.def_prop_ro("backends", backends,
                  "The backends that may move data: dictionaries of name, available, why (if not), operations, "
                  "bytes.");
    e.def(
        "timeline_start",
        [](Engine &g, const std::string &path, bool cycles) {
            check(kolo_engine_timeline_start(get(g), path.c_str(), cycles));
        },
        "path"_a, "mark_cycles"_a = false,
        "Writes a timeline for chrome://tracing; %r in the path becomes the rank.");
    e.def("timeline_stop", [](Engine &g) { check(kolo_engine_timeline_stop(get(g))); });
    bind_submissions(e);
    bind_groups(e);
}

} // namespace kolocomm
