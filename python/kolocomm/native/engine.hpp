// SPDX-License-Identifier: Apache-2.0
//
// The engine: operations on named tensors, submitted in any order (submit.cpp).
#pragma once

#include "launch.hpp"

#include <kolo/engine.h>

namespace kolocomm
{

struct Engine {
    Engine() = default;
    Engine(const Engine &) = delete;
    ~Engine();
    kolo_tensor_engine_t handle = nullptr;
    kolo_engine_place_t place = {};
    int born = forks();
};

// Its handle. Refuses an engine that has ended, or belongs to the parent of a fork.
kolo_tensor_engine_t get(Engine &e);
void bind_submissions(nb::module_ &m, nb::class_<Engine> &e);

} // namespace kolocomm
