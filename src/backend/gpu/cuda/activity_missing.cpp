// Instead of gpu_activity.cpp where the headers of CUPTI are not installed.
#include "backend/gpu/activity.h"
#include "core/error.h"

namespace kintsugi::gpu {

std::unique_ptr<ActivityRecorder> make_activity_recorder() {
  failure("this program was built without CUPTI (cupti.h)");
}

}  // namespace kintsugi::gpu
