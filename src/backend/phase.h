#pragma once

#include "backend/backend.h"

namespace kintsugi {

// Names the operations that a scope queues:
//   Phase phase(backend, [&] { return … });
// Phases nest: the outer one ("forward 3", "optimizer") is in the trace's lane "pipeline", the
// inner one ("layer 5", "head") in its lane "layers". The name is built only while a trace is on.
class Phase {
 public:
  template <class F>
  Phase(Backend& backend, F&& name) : backend_(backend.traces() ? &backend : nullptr) {
    if (backend_ != nullptr) backend_->begin_phase(name());
  }
  ~Phase() {
    if (backend_ != nullptr) backend_->end_phase();
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  Backend* backend_;
};

}  // namespace kintsugi
