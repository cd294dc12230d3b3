// SPDX-License-Identifier: Apache-2.0
//
// Messages with tags. Any thread may call these at any time, so they take no turn on the communicator.
#include "launch.hpp"

#include <kolo/message.h>

using namespace nb::literals;

namespace kolocomm
{
namespace
{

struct TaggedMessage {
    TaggedMessage() = default;
    TaggedMessage(const TaggedMessage &) = delete;
    ~TaggedMessage();
    kolo_request_t request = nullptr;
    kolo_comm_t comm = nullptr;
    int born = forks();
    bool sends = false;
    Buffer buffer;
};

// Sends that the program has let go of, with their arrays, until they are complete. Under the interpreter's lock.
struct Dropped {
    kolo_request_t request;
    int born;
    Buffer buffer;
    bool over() const
    {
        int complete = 0;
        return born == forks() && (kolo_request_test(request, &complete) != KOLO_OK || complete);
    }
};
std::vector<Dropped> &dropped()
{
    static auto *all = new std::vector<Dropped>; // used until the very end of the process
    return *all;
}

void sweep()
{
    std::vector<Dropped> ended;
    std::vector<Dropped> &all = dropped();
    for (size_t i = all.size(); i-- > 0;)
        if (all[i].over()) {
            ended.push_back(std::move(all[i]));
            if (i + 1 < all.size()) all[i] = std::move(all.back());
            all.pop_back();
        }
    for (Dropped &d : ended) kolo_request_free(d.request);
}

// A send that is under way goes on, as its receiver counts on it; a receive is cancelled: then nobody writes to its
// array.
TaggedMessage::~TaggedMessage()
{
    int complete = 0;
    if (!request || born != forks()) return;
    if (sends && kolo_request_test(request, &complete) == KOLO_OK && !complete)
        dropped().push_back({request, born, std::move(buffer)});
    else
        kolo_request_free(request);
}

nb::object seconds_of(nb::handle timeout)
{
    nb::object number = nb::steal(PyNumber_Float(PyNumber_Check(timeout.ptr()) ? timeout.ptr() : Py_None));
    if (number.is_valid()) return number;
    PyErr_Clear();
    refuse(words("timeout is %.80s; seconds are needed, 0 (none) or more", nb::repr(timeout).c_str()));
}

kolo_call_opts_t options_of(nb::handle timeout)
{
    kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
    if (timeout.is_none()) return opts;
    double ms = nb::cast<double>(seconds_of(timeout)) * 1000;
    if (!(ms >= 0 && ms < 2e9)) refuse("timeout is in seconds, 0 (none) or more");
    opts.timeout_ms = ms > 0 && ms < 1 ? 1 : (int)ms;
    return opts;
}

int rank_of(nb::handle peer)
{
    return peer.is_none() ? KOLO_ANY_SOURCE : want<int>(peer, "source");
}

uint64_t tag_of(nb::handle tag)
{
    uint64_t number = 0;
    if (nb::try_cast(tag, number)) return number;
    refuse(words("tag is %.80s; a whole number from 0 to 2**64 - 1 is needed (a receive takes one tag, and no "
                 "wildcard)",
                 nb::repr(tag).c_str()));
}

nb::object start(Comm &c, const char *what, bool sends, nb::handle buf, nb::handle peer, nb::handle number,
                 nb::handle timeout)
{
    kolo_comm_t handle = c.get(what);
    uint64_t tag = tag_of(number);
    sweep();
    kolo_call_opts_t opts = options_of(timeout);
    if (sends && peer.is_none()) refuse(words("%s: peer is None", what));
    int rank = rank_of(peer);
    nb::object self = nb::cast(new TaggedMessage, nb::rv_policy::take_ownership);
    TaggedMessage &m = *nb::inst_ptr<TaggedMessage>(self);
    m.buffer = Buffer(buf, "buf", !sends), m.comm = handle, m.sends = sends;
    const Buffer &b = m.buffer;
    check(sends ? kolo_isend_tag(b.data, b.count, b.type, rank, tag, handle, &opts, &m.request)
                : kolo_irecv_tag(b.data, b.count, b.type, rank, tag, handle, &opts, &m.request),
          handle);
    return self;
}

// In slices, so that Ctrl-C is seen: the message goes on then. False: not in this time.
template <class F> bool in_slices(nb::handle timeout, F &&wait)
{
    double left = limit_of(timeout);
    for (;; left -= 50) {
        kolo_status_t status;
        {
            Unlocked here;
            status = wait(left < 50 ? (left > 0 ? (int)left : 0) : 50);
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (status != KOLO_IN_PROGRESS) {
            check(status);
            return true;
        }
        if (left <= 50) return false;
    }
}

bool wait_tagged(TaggedMessage &m, nb::handle timeout)
{
    bool done = in_slices(timeout, [&m](int ms) { return kolo_request_wait(m.request, ms); });
    if (!done) refuse(KOLO_ERR_TIMEOUT, "wait: the message is not complete yet; it goes on");
    return true;
}

bool is_done(const TaggedMessage &m)
{
    int complete = 0;
    check(kolo_request_test(m.request, &complete));
    return complete != 0;
}

kolo_received_t received(const TaggedMessage &m)
{
    kolo_received_t got;
    check(kolo_request_get_received(m.request, &got));
    return got;
}

// The position of the first that is complete; None: none in this time.
nb::object wait_any(nb::sequence messages, nb::handle timeout)
{
    std::vector<kolo_request_t> requests;
    std::vector<nb::object> kept;
    for (nb::handle m : messages) {
        requests.push_back(
            m.is_none() ? nullptr : want_object<TaggedMessage>(m, "messages", "a TaggedMessage or None").request);
        kept.push_back(nb::borrow(m));
    }
    int index = -1;
    bool found = in_slices(
        timeout, [&](int ms) { return kolo_request_wait_any(requests.data(), (int)requests.size(), ms, &index); });
    return found && index >= 0 ? nb::cast(index) : nb::none();
}

} // namespace

void bind_tagged(nb::module_ &m, nb::class_<Comm> &c)
{
    nb::class_<TaggedMessage>(m, "TaggedMessage",
                              "A message with a tag that is sent or received in the background.")
        .def("wait", wait_tagged, "timeout"_a = nb::none(),
             "Waits until it is complete and raises its error, if any. timeout: seconds; then Timeout is raised, "
             "and the message goes on.")
        .def("done", is_done, "True if it is complete, successfully or not. Never waits.")
        .def(
            "cancel", [](TaggedMessage &t) { check(kolo_request_cancel(t.request)); },
            "Ends it if it is not complete: wait() then raises Aborted.")
        .def_prop_ro(
            "source", [](const TaggedMessage &t) { return received(t).source; }, "The rank it came from.")
        .def_prop_ro(
            "nbytes", [](const TaggedMessage &t) { return received(t).bytes; },
            "How many bytes came, which may be fewer than there was room for.");
    m.def("wait_any", wait_any, "messages"_a, "timeout"_a = nb::none(),
          "Waits until one of a list of TaggedMessages is complete and returns its position. None in the list is "
          "passed over. Returns None if none is within timeout seconds, or the list has none.");
    c.def(
        "isend_tag",
        [](Comm &self, nb::handle buf, int peer, nb::handle tag, nb::handle timeout) {
            return start(self, "isend_tag", true, buf, nb::int_(peer), tag, timeout);
        },
        "buf"_a.none(), "peer"_a, "tag"_a = 0, "timeout"_a = nb::none(),
        "Starts to send a message and returns a TaggedMessage. Does not wait for the peer. timeout: seconds, after "
        "which it ends with Timeout; all else goes on. A send whose TaggedMessage is let go of goes on. Any "
        "thread.");
    c.def(
        "irecv_tag",
        [](Comm &self, nb::handle buf, nb::handle source, nb::handle tag, nb::handle timeout) {
            return start(self, "irecv_tag", false, buf, source, tag, timeout);
        },
        "buf"_a.none(), "source"_a = nb::none(), "tag"_a = 0, "timeout"_a = nb::none(),
        "Starts to receive a message of at most buf's length from a rank, or from any (None), and returns a "
        "TaggedMessage, which is cancelled when it is let go of before it is complete. Any thread.");
    c.def(
        "send_tag",
        [](Comm &self, nb::handle buf, int peer, nb::handle tag, nb::handle timeout) {
            nb::object message = start(self, "send_tag", true, buf, nb::int_(peer), tag, timeout);
            wait_tagged(*nb::inst_ptr<TaggedMessage>(message), nb::none());
        },
        "buf"_a.none(), "peer"_a, "tag"_a = 0, "timeout"_a = nb::none(),
        "Sends a message, and returns when buf may be used again. Any thread.");
    c.def(
        "recv_tag",
        [](Comm &self, nb::handle buf, nb::handle source, nb::handle tag, nb::handle timeout) {
            nb::object message = start(self, "recv_tag", false, buf, source, tag, timeout);
            wait_tagged(*nb::inst_ptr<TaggedMessage>(message), nb::none());
            return received(*nb::inst_ptr<TaggedMessage>(message)).source;
        },
        "buf"_a.none(), "source"_a = nb::none(), "tag"_a = 0, "timeout"_a = nb::none(),
        "Receives a message into buf and returns the rank that sent it. Any thread.");
}

} // namespace kolocomm
