// Instead of gpu_activity.cpp where the headers of CUPTI are not installed.
#include "backend/cuda/gpu_activity.h"
#include "core/error.h"

namespace kintsugi::cuda {

std::unique_ptr<ActivityRecorder> make_activity_recorder() {
  failure("this program was built without CUPTI (cupti.h)");
}

}  // namespace kintsugi::cuda
