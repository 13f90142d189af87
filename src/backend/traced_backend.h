#pragma once

#include <memory>

#include "backend/backend.h"
#include "core/trace.h"

namespace kintsugi {

// Passes everything on to a backend whose operations are done when they return, with a span in the
// trace for each.
std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, Trace& trace);

}  // namespace kintsugi
