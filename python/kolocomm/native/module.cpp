// SPDX-License-Identifier: Apache-2.0
//
// The module kolocomm._native: kolo.h and its kin for Python. The package kolocomm gives its names to users.
#include "launch.hpp"

NB_MODULE(_native, m)
{
    using namespace kolocomm;
    nb::set_leak_warnings(false); // objects that live until the end of the process are freed by it
    bind_calls(m);
    bind_launch(m);
    nb::class_<Comm> comm(m, "Comm", nb::is_weak_referenceable(),
                          "A communicator: ranks 0 to size - 1, which call the same operations in the same order. "
                          "One thread at a time.");
    bind_comm(m, comm);
    bind_collectives(comm);
    bind_ops(m, comm);
    bind_messages(m, comm);
    bind_tagged(m, comm);
    bind_windows(m, comm);
    bind_engine(m);
    bind_keyed(m);
    bind_state(m);
}
