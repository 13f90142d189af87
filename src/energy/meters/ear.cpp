#include <signal.h>
#include <time.h>

#include <cstdlib>
#include <map>
#include <string>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/libraries.h"

namespace kintsugi {
namespace {

// EAR's functions write to a pipe: without this, the end of its daemon would end the process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now = {0, 0};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

LibraryNames ear_library() {
  LibraryNames names{.files = {"libear_api.so"}};
  const char* const installed = std::getenv("EAR_INSTALL_PATH");
  // Below the root: a path that begins with / would replace the root.
  if (installed != nullptr && *installed == '/')
    names.folders.push_back(std::string(installed + 1) + "/lib");
  return names;
}

class EarMeter : public Meter {
 public:
  explicit EarMeter(std::shared_ptr<const Ear> ear)
      : Meter({.source = "ear",
               .scope = "node",
               .level = EnergyLevel::Node,
               .detail = "EAR's daemon, whole node"}),
        ear_(std::move(ear)) {}
  MeterReading read() override {
    const Ear::Energy energy = ear_->energy();
    return {.joules = energy.joules, .time_s = energy.time_s};
  }

 private:
  std::shared_ptr<const Ear> ear_;
};

}  // namespace

std::shared_ptr<Ear> Ear::connect(const std::filesystem::path& root) {
  static std::mutex mutex;
  static std::map<std::filesystem::path, std::weak_ptr<Ear>> connections;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Ear> ear = connections[root].lock();
  if (!ear) connections[root] = ear = std::make_shared<Ear>(root);
  return ear;
}

Ear::Ear(const std::filesystem::path& root) : library_(root, ear_library()) {
  const WithoutSigpipe guard;
  const std::optional<int> code = library_.call("ear_connect");
  if (!code || library_.find<int()>("ear_energy") == nullptr)
    failure("{} has no {}", library_.name(), code ? "ear_energy" : "ear_connect");
  if (*code != 0)
    failure("ear_connect: EAR's daemon does not answer (error {}); start the job with --ear=on",
            *code);
}

Ear::~Ear() {
  const WithoutSigpipe guard;
  if (auto* const disconnect = library_.find<void()>("ear_disconnect")) disconnect();
}

Ear::Energy Ear::energy() const {
  const std::lock_guard lock(mutex_);
  const WithoutSigpipe guard;
  unsigned long mj = 0, ms = 0;
  const std::optional<int> code = library_.call("ear_energy", &mj, &ms);
  if (code != 0) failure("ear_energy: error {} of EAR's daemon", code.value_or(-1));
  return {static_cast<double>(mj) * 1e-3, static_cast<double>(ms) * 1e-3};
}

bool Ear::set_gpu_clock(int gpu, double mhz) const {
  const std::lock_guard lock(mutex_);
  const WithoutSigpipe guard;
  return library_.call("ear_set_gpufreq", gpu, static_cast<unsigned long>(mhz * 1e3)) == 0;
}

void add_ear(const MeterSearch& search, FoundMeters& found) {
  try {
    auto ear = Ear::connect(search.root);
    ear->energy();
    found.meters.push_back(std::make_unique<EarMeter>(std::move(ear)));
  } catch (const Failure& error) {
    found.missing.push_back({"ear", error.what()});
  }
}

}  // namespace kintsugi
