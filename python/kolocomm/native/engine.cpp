// SPDX-License-Identifier: Apache-2.0
//
// The engine: how it begins and ends, its process sets, and what it tells of itself.
#include "engine.hpp"

using namespace nb::literals;

namespace kolocomm
{

kolo_tensor_engine_t get(Engine &e)
{
    if (!e.handle) refuse(KOLO_ERR_INVALID_USAGE, "the engine has ended");
    if (e.born != forks())
        refuse(KOLO_ERR_INVALID_USAGE,
               "the engine belongs to the process that called fork(): make one after the fork");
    return e.handle;
}

Engine::~Engine()
{
    if (!handle || born != forks()) return;
    PyThreadState *state = PyEval_SaveThread();
    kolo_engine_abort(handle);
    PyEval_RestoreThread(state);
}

namespace
{

void end(Engine &e, bool abort)
{
    kolo_tensor_engine_t handle = e.handle;
    if (!handle) return;
    e.handle = nullptr;
    run(nullptr, [&] { return abort ? kolo_engine_abort(handle) : kolo_engine_shutdown(handle); });
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
    kolo_comm_t over =
        comm.is_none() ? nullptr
                       : want_object<Comm>(comm, "comm", "a Comm (or None: all ranks of the job)").get("Engine");
    new (self) Engine;
    try {
        run(over, [&] { return kolo_engine_init(&self->handle, over, &config); });
        check(kolo_engine_get_place(self->handle, &self->place));
    } catch (...) {
        self->~Engine();
        throw;
    }
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

} // namespace

void bind_engine(nb::module_ &m)
{
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
    bind_submissions(m, e);
}

} // namespace kolocomm
