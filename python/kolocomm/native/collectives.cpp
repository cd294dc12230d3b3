// SPDX-License-Identifier: Apache-2.0
//
// The collectives. Counts and types come from the arrays; what does not fit together is refused before anything is
// sent.
#include "launch.hpp"

using namespace nb::literals;

namespace kolocomm
{
namespace
{

using Counts = std::vector<size_t>;

void same_type(const char *what, const Buffer &src, const Buffer &dst)
{
    if (src.type != dst.type)
        refuse(words("%s: src has elements of %s and dst of %s: both must have the same type", what,
                     type_name(src.type), type_name(dst.type)));
}

void has(const char *what, const char *name, const Buffer &b, size_t want, const char *why)
{
    if (b.count != want)
        refuse(words("%s: %s has %zu elements, needed are %zu (%s)", what, name, b.count, want, why));
}

void on_device(const char *what, const Comm &c, const Buffer &b)
{
    if (!b || (b.device >= 0) == (c.device >= 0)) return;
    if (b.device >= 0)
        refuse(words("%s: an array is in memory of a GPU, and this communicator is for memory of the host: make "
                     "one with device=%d, or "
                     "pass a copy (x.cpu(), cupy.asnumpy(x))",
                     what, b.device));
    refuse(words("%s: an array is in memory of the host, and this communicator is for GPU %d: pass one of that GPU",
                 what, c.device));
}

int root_of(const char *what, const Comm &c, int root)
{
    if (root < 0 || root >= c.size) refuse(words("%s: root %d; ranks are 0 to %d", what, root, c.size - 1));
    return root;
}

using Numbers = nb::typed<nb::sequence, int>; // counts and displacements as they are given

Counts counts_of(const char *what, const char *name, nb::handle given)
{
    Counts counts;
    for (nb::handle one : given) {
        nb::object number = nb::steal(PyNumber_Index(one.ptr()));
        if (!number.is_valid()) throw nb::python_error();
        int overflow = 0;
        long long n = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
        if (n < 0 || overflow)
            refuse(words("%s: %s has %s at place %zu: these are numbers of elements, 0 or more", what, name,
                         nb::cast<std::string>(nb::str(number)).c_str(), counts.size()));
        counts.push_back((size_t)n);
    }
    return counts;
}

size_t total(const char *what, const char *name, const Comm &c, const Counts &counts)
{
    size_t sum = 0;
    if ((int)counts.size() != c.size)
        refuse(words("%s: %s has %zu numbers, and there are %d ranks", what, name, counts.size(), c.size));
    for (size_t n : counts)
        if (__builtin_add_overflow(sum, n, &sum))
            refuse(words("%s: the numbers of %s are more elements than memory can hold", what, name));
    return sum;
}

// Where parts begin that lie one behind the other, unless the caller says where.
Counts displs_of(const char *what, const char *name, const Comm &c, const Counts &counts, const nb::object &given,
                 const Buffer &b)
{
    Counts displs(counts.size());
    if (given.is_none()) {
        for (size_t i = 1; i < displs.size(); i++) displs[i] = displs[i - 1] + counts[i - 1];
    } else {
        displs = counts_of(what, name, given);
        total(what, name, c, displs);
    }
    for (size_t i = 0; b && i < displs.size(); i++)
        if (displs[i] > b.count || counts[i] > b.count - displs[i])
            refuse(words("%s: part %zu (%zu elements from %zu on) is not inside the array of %zu elements", what, i,
                         counts[i], displs[i], b.count));
    return displs;
}

nb::object all_reduce(Comm &c, nb::handle src, nb::handle dst, nb::handle op, nb::handle stream, bool wait)
{
    bool in_place = dst.is_none() || dst.is(src);
    Buffer s(src, "src", in_place), d;
    kolo_op_t o = op_of(op, &c);
    on_device("all_reduce", c, s);
    if (!in_place) {
        d = Buffer(dst, "dst", true);
        on_device("all_reduce", c, d);
        same_type("all_reduce", s, d);
        has("all_reduce", "dst", d, s.count, "as many as src");
    }
    return launch(
        c, "all_reduce", stream, wait,
        [from = s.data, to = in_place ? s.data : d.data, n = s.count, t = s.type, o](kolo_comm_t h, void *q) {
            return kolo_all_reduce(from, to, n, t, o, h, q);
        },
        s, d);
}

nb::object reduce(Comm &c, nb::handle src, nb::handle dst, nb::handle op, int root, nb::handle stream, bool wait)
{
    root_of("reduce", c, root);
    bool here = c.rank == root, in_place = here && (dst.is_none() || dst.is(src));
    Buffer s(src, "src", in_place), d;
    kolo_op_t o = op_of(op, &c);
    on_device("reduce", c, s);
    if (here && !in_place) {
        d = Buffer(dst, "dst", true);
        on_device("reduce", c, d);
        same_type("reduce", s, d);
        has("reduce", "dst", d, s.count, "as many as src");
    }
    return launch(
        c, "reduce", stream, wait,
        [from = s.data, to = in_place ? s.data : d.data, n = s.count, t = s.type, o, root](kolo_comm_t h, void *q) {
            return kolo_reduce(from, to, n, t, o, root, h, q);
        },
        s, d);
}

nb::object broadcast(Comm &c, nb::handle buf, nb::handle dst, int root, nb::handle stream, bool wait)
{
    root_of("broadcast", c, root);
    bool here = c.rank == root;
    Buffer s = here || dst.is_none() ? Buffer(buf, "buf", !here) : Buffer(), d = Buffer::maybe(dst, "dst", true);
    on_device("broadcast", c, s);
    on_device("broadcast", c, d);
    if (d && c.rank == root) {
        same_type("broadcast", s, d);
        has("broadcast", "dst", d, s.count, "as many as src");
    }
    const Buffer &out = d ? d : s;
    return launch(
        c, "broadcast", stream, wait,
        [from = s.data, to = out.data, n = out.count, t = out.type, root](kolo_comm_t h, void *q) {
            return kolo_broadcast(from, to, n, t, root, h, q);
        },
        s, d);
}

nb::object all_gather(Comm &c, nb::handle src, nb::handle dst, nb::handle stream, bool wait)
{
    Buffer s(src, "src", false), d(dst, "dst", true);
    on_device("all_gather", c, s);
    on_device("all_gather", c, d);
    same_type("all_gather", s, d);
    has("all_gather", "dst", d, s.count * (size_t)c.size, "src times ranks");
    return launch(
        c, "all_gather", stream, wait,
        [from = s.data, to = d.data, n = s.count, t = s.type](kolo_comm_t h, void *q) {
            return kolo_all_gather(from, to, n, t, h, q);
        },
        s, d);
}

nb::object all_gatherv(Comm &c, nb::handle src, nb::handle dst, const Numbers &numbers, nb::object displs,
                       nb::handle stream, bool wait)
{
    Counts counts = counts_of("all_gatherv", "counts", numbers);
    Buffer s(src, "src", false), d(dst, "dst", true);
    on_device("all_gatherv", c, s);
    on_device("all_gatherv", c, d);
    same_type("all_gatherv", s, d);
    total("all_gatherv", "counts", c, counts);
    has("all_gatherv", "src", s, counts[(size_t)c.rank], "counts[rank]");
    Counts at = displs_of("all_gatherv", "displs", c, counts, displs, d);
    return launch(
        c, "all_gatherv", stream, wait,
        [from = s.data, to = d.data, counts, at, t = s.type](kolo_comm_t h, void *q) {
            return kolo_all_gatherv(from, to, counts.data(), at.data(), t, h, q);
        },
        s, d);
}

nb::object reduce_scatter(Comm &c, nb::handle src, nb::handle dst, nb::handle op, nb::handle stream, bool wait)
{
    Buffer s(src, "src", false), d(dst, "dst", true);
    kolo_op_t o = op_of(op, &c);
    on_device("reduce_scatter", c, s);
    on_device("reduce_scatter", c, d);
    same_type("reduce_scatter", s, d);
    has("reduce_scatter", "src", s, d.count * (size_t)c.size, "dst times ranks");
    return launch(
        c, "reduce_scatter", stream, wait,
        [from = s.data, to = d.data, n = d.count, t = s.type, o](kolo_comm_t h, void *q) {
            return kolo_reduce_scatter(from, to, n, t, o, h, q);
        },
        s, d);
}

nb::object reduce_scatterv(Comm &c, nb::handle src, nb::handle dst, const Numbers &numbers, nb::handle op,
                           nb::object displs, nb::handle stream, bool wait)
{
    Counts counts = counts_of("reduce_scatterv", "counts", numbers);
    Buffer s(src, "src", false), d(dst, "dst", true);
    kolo_op_t o = op_of(op, &c);
    on_device("reduce_scatterv", c, s);
    on_device("reduce_scatterv", c, d);
    same_type("reduce_scatterv", s, d);
    size_t all = total("reduce_scatterv", "counts", c, counts);
    if (displs.is_none()) has("reduce_scatterv", "src", s, all, "the sum of counts");
    Counts at = displs_of("reduce_scatterv", "displs", c, counts, displs, s);
    has("reduce_scatterv", "dst", d, counts[(size_t)c.rank], "counts[rank]");
    return launch(
        c, "reduce_scatterv", stream, wait,
        [from = s.data, to = d.data, counts, at, t = s.type, o](kolo_comm_t h, void *q) {
            return kolo_reduce_scatterv(from, to, counts.data(), at.data(), t, o, h, q);
        },
        s, d);
}

nb::object all_to_all(Comm &c, nb::handle src, nb::handle dst, nb::handle stream, bool wait)
{
    Buffer s(src, "src", false), d(dst, "dst", true);
    on_device("all_to_all", c, s);
    on_device("all_to_all", c, d);
    same_type("all_to_all", s, d);
    has("all_to_all", "dst", d, s.count, "as many as src");
    if (s.count % (size_t)c.size)
        refuse(words("all_to_all: src has %zu elements, which %d ranks cannot share equally: use all_to_allv",
                     s.count, c.size));
    return launch(
        c, "all_to_all", stream, wait,
        [from = s.data, to = d.data, n = s.count / (size_t)c.size, t = s.type](kolo_comm_t h, void *q) {
            return kolo_all_to_all(from, to, n, t, h, q);
        },
        s, d);
}

nb::object all_to_allv(Comm &c, nb::handle src, const Numbers &sends, nb::handle dst, const Numbers &recvs,
                       nb::object send_displs, nb::object recv_displs, nb::handle stream, bool wait)
{
    Counts send_counts = counts_of("all_to_allv", "send_counts", sends);
    Counts recv_counts = counts_of("all_to_allv", "recv_counts", recvs);
    Buffer s(src, "src", false), d(dst, "dst", true);
    on_device("all_to_allv", c, s);
    on_device("all_to_allv", c, d);
    same_type("all_to_allv", s, d);
    total("all_to_allv", "send_counts", c, send_counts);
    total("all_to_allv", "recv_counts", c, recv_counts);
    Counts sd = displs_of("all_to_allv", "send_displs", c, send_counts, send_displs, s);
    Counts rd = displs_of("all_to_allv", "recv_displs", c, recv_counts, recv_displs, d);
    return launch(
        c, "all_to_allv", stream, wait,
        [from = s.data, to = d.data, send_counts, recv_counts, sd, rd, t = s.type](kolo_comm_t h, void *q) {
            return kolo_all_to_allv(from, send_counts.data(), sd.data(), to, recv_counts.data(), rd.data(), t, h,
                                    q);
        },
        s, d);
}

nb::object gather(Comm &c, nb::handle src, nb::handle dst, int root, nb::handle stream, bool wait)
{
    root_of("gather", c, root);
    Buffer s(src, "src", false), d;
    on_device("gather", c, s);
    if (c.rank == root) {
        d = Buffer(dst, "dst", true);
        on_device("gather", c, d);
        same_type("gather", s, d);
        has("gather", "dst", d, s.count * (size_t)c.size, "src times ranks");
    }
    return launch(
        c, "gather", stream, wait,
        [from = s.data, to = d.data, n = s.count, t = s.type, root](kolo_comm_t h, void *q) {
            return kolo_gather(from, to, n, t, root, h, q);
        },
        s, d);
}

nb::object scatter(Comm &c, nb::handle src, nb::handle dst, int root, nb::handle stream, bool wait)
{
    root_of("scatter", c, root);
    Buffer s, d(dst, "dst", true);
    on_device("scatter", c, d);
    if (c.rank == root) {
        s = Buffer(src, "src", false);
        on_device("scatter", c, s);
        same_type("scatter", s, d);
        has("scatter", "src", s, d.count * (size_t)c.size, "dst times ranks");
    }
    return launch(
        c, "scatter", stream, wait,
        [from = s.data, to = d.data, n = d.count, t = d.type, root](kolo_comm_t h, void *q) {
            return kolo_scatter(from, to, n, t, root, h, q);
        },
        s, d);
}

nb::object gatherv(Comm &c, nb::handle src, nb::handle dst, const Numbers &numbers, int root, nb::object displs,
                   nb::handle stream, bool wait)
{
    Counts counts = counts_of("gatherv", "counts", numbers);
    root_of("gatherv", c, root);
    Buffer s(src, "src", false), d;
    on_device("gatherv", c, s);
    total("gatherv", "counts", c, counts);
    has("gatherv", "src", s, counts[(size_t)c.rank], "counts[rank]");
    if (c.rank == root) {
        d = Buffer(dst, "dst", true);
        on_device("gatherv", c, d);
        same_type("gatherv", s, d);
    }
    Counts at = displs_of("gatherv", "displs", c, counts, displs, d);
    return launch(
        c, "gatherv", stream, wait,
        [from = s.data, to = d.data, counts, at, t = s.type, root](kolo_comm_t h, void *q) {
            return kolo_gatherv(from, to, counts.data(), at.data(), t, root, h, q);
        },
        s, d);
}

nb::object scatterv(Comm &c, nb::handle src, const Numbers &numbers, nb::handle dst, int root, nb::object displs,
                    nb::handle stream, bool wait)
{
    Counts counts = counts_of("scatterv", "counts", numbers);
    root_of("scatterv", c, root);
    Buffer s, d(dst, "dst", true);
    on_device("scatterv", c, d);
    total("scatterv", "counts", c, counts);
    has("scatterv", "dst", d, counts[(size_t)c.rank], "counts[rank]");
    if (c.rank == root) {
        s = Buffer(src, "src", false);
        on_device("scatterv", c, s);
        same_type("scatterv", s, d);
    }
    Counts at = displs_of("scatterv", "displs", c, counts, displs, s);
    return launch(
        c, "scatterv", stream, wait,
        [from = s.data, to = d.data, counts, at, t = d.type, root](kolo_comm_t h, void *q) {
            return kolo_scatterv(from, counts.data(), at.data(), to, t, root, h, q);
        },
        s, d);
}

nb::object barrier(Comm &c, nb::handle stream, bool wait)
{
    return launch(c, "barrier", stream, wait, [](kolo_comm_t h, void *q) { return kolo_barrier(h, q); });
}

} // namespace

#define ENDS "stream"_a = nb::none(), "wait"_a = true

void bind_collectives(nb::class_<Comm> &c)
{
    c.def("all_reduce", all_reduce, "src"_a.none(), "dst"_a = nb::none(), "op"_a = "sum", ENDS,
          "Every rank gets the reduction of all ranks' src.\n\nsrc, dst: arrays with equally many elements of one "
          "type, the same number on all ranks. "
          "dst None: in place.\nop: \"sum\", \"prod\", \"min\", \"max\", \"avg\", \"band\", \"bor\", \"bxor\", "
          "\"land\", \"lor\", \"lxor\", or an Op.");
    c.def("reduce", reduce, "src"_a.none(), "dst"_a = nb::none(), "op"_a = "sum", "root"_a = 0, ENDS,
          "The root gets the reduction of all ranks' src. dst: used on the root only, as many elements as src; "
          "None: in place.");
    c.def("broadcast", broadcast, "buf"_a.none(), "dst"_a = nb::none(), "root"_a = 0, ENDS,
          "Every rank gets the root's buf. dst None: in buf; else there, and buf is used on the root only "
          "(elsewhere it may be None).");
    c.def("all_gather", all_gather, "src"_a.none(), "dst"_a.none(), ENDS,
          "Every rank gets every rank's src, in rank order. dst: size times the elements of src.");
    c.def("all_gatherv", all_gatherv, "src"_a.none(), "dst"_a.none(), "counts"_a, "displs"_a = nb::none(), ENDS,
          "Every rank gets every rank's src, of different lengths. counts[i]: elements from rank i; displs[i]: "
          "where in dst they go, in elements; "
          "None: one behind the other. The same on all ranks.");
    c.def("reduce_scatter", reduce_scatter, "src"_a.none(), "dst"_a.none(), "op"_a = "sum", ENDS,
          "Rank i gets the reduction of part i of all ranks' src. src: size times the elements of dst.");
    c.def("reduce_scatterv", reduce_scatterv, "src"_a.none(), "dst"_a.none(), "counts"_a, "op"_a = "sum",
          "displs"_a = nb::none(), ENDS,
          "Rank i gets the reduction of part i, of counts[i] elements at displs[i] of src (None: back to back). "
          "counts is the same on all ranks.");
    c.def("all_to_all", all_to_all, "src"_a.none(), "dst"_a.none(), ENDS,
          "Part i of src goes to part rank of rank i's dst. Both have size parts of equal length.");
    c.def("all_to_allv", all_to_allv, "src"_a.none(), "send_counts"_a, "dst"_a.none(), "recv_counts"_a,
          "send_displs"_a = nb::none(), "recv_displs"_a = nb::none(), ENDS,
          "send_counts[i] elements of src go to rank i, recv_counts[i] elements of rank i to dst; displacements in "
          "elements, None: one behind the other.");
    c.def("gather", gather, "src"_a.none(), "dst"_a = nb::none(), "root"_a = 0, ENDS,
          "The root gets every rank's src, in rank order. dst: used on the root only, size times src.");
    c.def("scatter", scatter, "src"_a.none(), "dst"_a.none(), "root"_a = 0, ENDS,
          "Rank i gets part i of the root's src, which has size times the elements of dst; elsewhere src may be "
          "None.");
    c.def("gatherv", gatherv, "src"_a.none(), "dst"_a.none(), "counts"_a, "root"_a = 0, "displs"_a = nb::none(),
          ENDS,
          "The root gets every rank's src, of different lengths. counts[i]: elements from rank i, the same on all "
          "ranks; displs: where in dst, in elements.");
    c.def("scatterv", scatterv, "src"_a.none(), "counts"_a, "dst"_a.none(), "root"_a = 0, "displs"_a = nb::none(),
          ENDS,
          "Rank i gets counts[i] elements of the root's src, from displs[i] on. counts is the same on all ranks.");
    c.def("barrier", barrier, ENDS, "Waits for all ranks: completes on no rank before all have called it.");
}

} // namespace kolocomm
