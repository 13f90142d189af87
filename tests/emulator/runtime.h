#pragma once

#include <functional>

#include "backend/gpu/runtime.h"

namespace kintsugi::gpu {

// Queues work of the host, for libraries.
void queue_on_host(Stream stream, std::function<void()> work);

}  // namespace kintsugi::gpu
