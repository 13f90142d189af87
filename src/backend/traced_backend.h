#pragma once

#include <memory>

#include "backend/backend.h"
#include "core/trace.h"

namespace kintsugi {

// A backend that forwards every call to `inner` and records a span of it in the trace. Operations
// of `inner` must be complete when they return.
std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, Trace& trace);

}  // namespace kintsugi
