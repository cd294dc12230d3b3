// SPDX-License-Identifier: Apache-2.0
//
// How an operation of a communicator is begun and ended: at once, in a group, on a stream, or in the background.
#pragma once

#include "lane.hpp"
#include "native.hpp"

namespace kolocomm
{

// An operation in the background. Complete: `status` and `text` say how it ended.
struct Request {
    std::mutex mutex;
    std::condition_variable ended;
    bool done = false;
    kolo_status_t status = KOLO_OK;
    std::string text;
    kolo_comm_t comm = nullptr;
    int born = forks();
    std::vector<Buffer> kept;          // until it is complete
    std::vector<nb::object> callbacks; // called with the request
    nb::object self;                   // while it runs
};

// Arrays that a group or a stream still uses.
void keep(std::vector<Buffer> &&buffers);
bool in_group();

struct Stream {
    Stream() = default;
    Stream(const Stream &) = delete;
    ~Stream(); // what is still queued, and its arrays, stay for good
    kolo_stream_t handle = nullptr;
    int born = forks();
    std::vector<Buffer> kept;
};

// One thread at a time: a second one is told so.
class Turn
{
  public:
    Turn(Comm &comm, const char *what);
    ~Turn();
    Turn(const Turn &) = delete;

  private:
    Comm &comm_;
};

using Operation = std::function<kolo_status_t(kolo_comm_t comm, void *stream)>;
nb::object begin(Comm &comm, const char *what, Operation &&call,
                 std::vector<Buffer> &&buffers); // in the background
void queue(Comm &comm, nb::handle stream, const Operation &call, std::vector<Buffer> &&buffers);

template <class... B> std::vector<Buffer> list(B &&...buffers)
{
    std::vector<Buffer> all;
    (all.push_back(std::move(buffers)), ...);
    return all;
}

template <class F, class... B>
nb::object launch(Comm &comm, const char *what, nb::handle stream, bool wait, F &&call, B &&...buffers)
{
    kolo_comm_t handle = comm.get(what);
    if (!stream.is_none()) {
        queue(comm, stream, call, list(buffers...));
        return nb::none();
    }
    if (!wait) return begin(comm, what, call, list(buffers...));
    Turn turn(comm, what);
    run(handle, [&] { return call(handle, (void *)nullptr); });
    if (in_group()) keep(list(buffers...));
    return nb::none();
}

} // namespace kolocomm
