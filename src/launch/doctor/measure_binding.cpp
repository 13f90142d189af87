#include <sched.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "launch/doctor/measure.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr int kMostCpus = 8192;

class CpuSet {
 public:
  CpuSet() : set_(CPU_ALLOC(kMostCpus)), bytes_(CPU_ALLOC_SIZE(kMostCpus)) {
    CPU_ZERO_S(bytes_, set_);
  }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  void add_all() {
    for (int cpu = 0; cpu < kMostCpus; ++cpu)
      CPU_SET_S(static_cast<std::size_t>(cpu), bytes_, set_);
  }
  bool read() { return sched_getaffinity(0, bytes_, set_) == 0; }
  bool apply() const { return sched_setaffinity(0, bytes_, set_) == 0; }
  std::vector<int> cpus() const {
    std::vector<int> list;
    for (int cpu = 0; cpu < kMostCpus; ++cpu)
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes_, set_)) list.push_back(cpu);
    return list;
  }

 private:
  cpu_set_t* set_;
  std::size_t bytes_;
};

std::vector<int> allowed_cpus() {
  CpuSet set;
  return set.read() ? set.cpus() : std::vector<int>{};
}

// What the control group allows: a thread that asks for all cores gets those. The thread ends at
// once, and its binding with it.
std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  std::thread([&] {
    CpuSet all;
    all.add_all();
    all.apply();
    cpus = allowed_cpus();
  }).join();
  return cpus;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<int> cpus_near(const std::string& pci, const fs::path& root) {
  if (pci.empty()) return {};
  std::string address = pci;
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  const std::string numa = first_line(root / "sys/bus/pci/devices" / address / "numa_node");
  if (numa.empty() || numa.front() == '-') return {};  // -1: the machine does not say
  return parse_number_list(
      first_line(root / "sys/devices/system/node" / ("node" + numa) / "cpulist"));
}

}  // namespace

BindingFacts measure_binding(int threads, const std::string& gpu, const fs::path& root) {
  return {.cores = allowed_cpus(),
          .usable = usable_cpus(),
          .threads = threads,
          .gpu = gpu,
          .gpu_cores = cpus_near(gpu, root)};
}

}  // namespace kintsugi
