// SPDX-License-Identifier: Apache-2.0
//
// Submissions: a tensor alone or several together, and waiting for them.
#include "engine.hpp"

#include <cstring>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

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

// What is submitted for a tensor. output None: in place for operations whose result has the input's shape, else
// memory of the size that comes. The tensor's name is the caller's.
std::pair<std::unique_ptr<Submission>, kolo_tensor_t> prepare(nb::handle self, const std::string &name,
                                                              nb::handle tensor, nb::handle output, bool in_place)
{
    auto s = std::make_unique<Submission>();
    bool here = in_place && output.is_none();
    s->engine = nb::borrow(self), s->input = Buffer(tensor, "tensor", here), s->shape = shape_of(tensor);
    if (here) s->output_array = nb::borrow(tensor);
    if (!output.is_none()) s->output = Buffer(output, "output", true), s->output_array = nb::borrow(output);
    if (s->output && s->output.type != s->input.type) refuse("output has another type of elements than tensor");
    kolo_tensor_t t = {name.c_str(),    s->input.type, (int)s->shape.size(),
                       s->shape.data(), s->input.data, here ? s->input.data : s->output.data};
    return {std::move(s), t};
}

using Submit =
    std::function<kolo_status_t(kolo_tensor_engine_t, const kolo_tensor_t *, const kolo_submission_t *, int64_t *)>;

nb::object submit(nb::handle self, const std::string &name, nb::handle tensor, nb::handle output, bool in_place,
                  int set, const Submit &call)
{
    kolo_tensor_engine_t engine = get(*nb::inst_ptr<Engine>(self));
    auto [s, t] = prepare(self, name, tensor, output, in_place);
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
        auto [s, t] = prepare(self, names[k], nth(tensors, k), nth(outputs, k), in_place);
        all.push_back(t);
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

void bind_single(nb::class_<Engine> &e)
{
    e.def(
        "all_reduce",
        [](nb::handle_t<Engine> self, const std::string &name, nb::handle tensor, nb::handle output, nb::handle op,
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
        [](nb::handle_t<Engine> self, const std::string &name, nb::handle tensor, nb::handle output, int root,
           int set) {
            return submit(self, name, tensor, output, true, set, [=](auto g, auto t, auto how, auto h) {
                return kolo_engine_broadcast(g, t, root, how, h);
            });
        },
        "name"_a, "tensor"_a, "output"_a = nb::none(), "root"_a = 0, "set"_a = 0,
        "Every rank gets the root's tensor. output None: in place.");
    e.def(
        "all_gather",
        [](nb::handle_t<Engine> self, const std::string &name, nb::handle tensor, nb::handle output, int set) {
            return submit(self, name, tensor, output, false, set,
                          [](auto g, auto t, auto how, auto h) { return kolo_engine_all_gather(g, t, how, h); });
        },
        "name"_a, "tensor"_a, "output"_a = nb::none(), "set"_a = 0,
        "Every rank gets the rows of all ranks, in rank order; the number of rows may differ.");
    e.def(
        "all_to_all",
        [](nb::handle_t<Engine> self, const std::string &name, nb::handle tensor, nb::object splits,
           nb::handle output, int set) {
            std::vector<int64_t> rows;
            if (!splits.is_none()) rows = want<std::vector<int64_t>>(splits, "splits");
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
        [](nb::handle_t<Engine> self, const std::string &name, nb::handle tensor, nb::handle output, nb::handle op,
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
        [](nb::handle_t<Engine> self) {
            return no_tensor(self, [](auto g, auto, auto how, auto h) { return kolo_engine_barrier(g, how, h); });
        },
        "Complete when all ranks have submitted one.");
    e.def(
        "join",
        [](nb::handle_t<Engine> self) {
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
        [](nb::handle_t<Engine> self, const Names &names, nb::object tensors, nb::object outputs, nb::handle op,
           double pre, double post, int set) {
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
        [](nb::handle_t<Engine> self, const Names &names, nb::object tensors, nb::object outputs, int root,
           int set) {
            return submit_all(self, names, tensors, outputs, true, set,
                              [=](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_broadcast_group(g, t, n, root, how, h);
                              });
        },
        "names"_a, "tensors"_a, "outputs"_a = nb::none(), "root"_a = 0, "set"_a = 0,
        TOGETHER " Each as broadcast() does it.");
    e.def(
        "all_gather_group",
        [](nb::handle_t<Engine> self, const Names &names, nb::object tensors, nb::object outputs, int set) {
            return submit_all(self, names, tensors, outputs, false, set,
                              [](auto g, auto t, int n, auto how, auto h) {
                                  return kolo_engine_all_gather_group(g, t, n, how, h);
                              });
        },
        "names"_a, "tensors"_a, "outputs"_a = nb::none(), "set"_a = 0, TOGETHER " Each as all_gather() does it.");
    e.def(
        "all_to_all_group",
        [](nb::handle_t<Engine> self, const Names &names, nb::object tensors, nb::object splits, nb::object outputs,
           int set) {
            std::vector<std::vector<int64_t>> rows(names.size());
            std::vector<const int64_t *> tables(names.size(), nullptr);
            size_t size = (size_t)nb::inst_ptr<Engine>(self)->place.size;
            if (!splits.is_none() && nb::len(splits) != names.size())
                refuse(words("splits has %zu lists, and there are %zu names", nb::len(splits), names.size()));
            for (size_t k = 0; k < names.size(); k++) {
                nb::object one = nth(splits, k);
                if (one.is_none()) continue;
                rows[k] = want<std::vector<int64_t>>(one, "splits"), tables[k] = rows[k].data();
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
        [](nb::handle_t<Engine> self, const Names &names, nb::object tensors, nb::object outputs, nb::handle op,
           double pre, double post, int set) {
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

void bind_submissions(nb::module_ &m, nb::class_<Engine> &e)
{
    nb::class_<Submission>(m, "Submission", "A tensor that was submitted to an engine.")
        .def(
            "_wait", [](nb::handle_t<Submission> self, nb::handle timeout) { return wait(self, timeout); },
            "timeout"_a.none())
        .def("done", done, "True if the tensor is complete, successfully or not. Never waits.");
    bind_single(e);
    bind_groups(e);
}

} // namespace kolocomm
