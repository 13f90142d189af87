#include "emulator/kernels.h"

#include "core/error.h"

namespace kintsugi::emulator {
namespace {

struct Announcement {
  const void* kernel = nullptr;
  BodyMaker maker = nullptr;
  std::source_location where = {};
};
thread_local Announcement announced;

}  // namespace

void announce(const void* kernel, BodyMaker maker, std::source_location where) {
  announced = {kernel, maker, where};
}

AnnouncedLaunch announced_launch(const void* kernel, void** arguments) {
  const Announcement now = std::exchange(announced, {});
  KINTSUGI_CHECK(now.kernel == kernel && kernel != nullptr,
                 "a kernel was launched that was not announced");
  return {now.maker(kernel, arguments), now.where};
}

}  // namespace kintsugi::emulator
