#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "launch/doctor/measure.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

double wall_seconds() {
  using Clock = std::chrono::system_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Bytes of this user's files in a directory that have not changed for an hour.
double old_bytes(const fs::path& directory) {
  constexpr int kMostFiles = 10000;
  double bytes = 0;
  int seen = 0;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    struct stat status {};
    if (++seen > kMostFiles) break;
    if (::lstat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const bool old = wall_seconds() - static_cast<double>(status.st_mtime) > 3600;
    if (status.st_uid == ::getuid() && old) bytes += static_cast<double>(status.st_blocks) * 512;
  }
  return bytes;
}

void write_and_read(const fs::path& path, std::int64_t bytes, const SecondsClock& now,
                    DirectoryFacts& facts) {
  std::string content(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>(i * 31 + (i >> 9));
  const double begin = now();
  FileWriter writer(path);
  writer.write(content.data(), content.size());
  writer.close();
  facts.write_bytes_per_s = static_cast<double>(bytes) / std::max(now() - begin, 1e-9);
  if (read_text_file(path) != content) failure("{} does not hold what was written", path.string());
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

// ---- binding

constexpr int kMostCpus = 8192;

// The cores of this thread, as the kernel stores them.
class AffinityMask {
 public:
  AffinityMask() : set_(CPU_ALLOC(kMostCpus)), bytes_(CPU_ALLOC_SIZE(kMostCpus)) {
    CPU_ZERO_S(bytes_, set_);
  }
  ~AffinityMask() { CPU_FREE(set_); }
  AffinityMask(const AffinityMask&) = delete;
  AffinityMask& operator=(const AffinityMask&) = delete;

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
  AffinityMask set;
  return set.read() ? set.cpus() : std::vector<int>{};
}

// What the control group allows: a thread that asks for all cores gets those. The thread ends at
// once, and its binding with it.
std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  std::thread([&] {
    AffinityMask all;
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

DirectoryFacts measure_directory(const fs::path& directory, const std::string& file,
                                 std::int64_t bytes, const SecondsClock& now) {
  DirectoryFacts facts{.checked = true, .problem = ""};
  const fs::path path = directory / file;
  try {
    write_and_read(path, bytes, now, facts);
  } catch (const std::exception& error) {
    facts.problem = error.what();
  }
  std::error_code ignored;
  fs::remove(path, ignored);
  const fs::space_info space = fs::space(directory, ignored);
  if (!ignored) facts.free_bytes = static_cast<double>(space.available);
  return facts;
}

fs::path existing_part(const fs::path& path) {
  std::error_code ignored;
  fs::path part = fs::absolute(path, ignored).lexically_normal();
  while (part.has_relative_path() && !fs::exists(part, ignored)) part = part.parent_path();
  return part;
}

HostFacts measure_host(const fs::path& root) {
  HostFacts facts{.wall_clock_s = wall_seconds()};
  std::error_code error;
  const fs::space_info space = fs::space(root / "dev/shm", error);
  if (!error) facts.shared_memory_free = static_cast<double>(space.available);
  facts.old_shared_memory = old_bytes(root / "dev/shm");
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    facts.open_files = static_cast<std::int64_t>(limit.rlim_cur);
  return facts;
}

std::vector<std::pair<std::string, std::string>> network_variables(const char* const* environment) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const char* const* at = environment; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const bool network = starts_with_any(
        entry, {"NCCL_", "RCCL_", "FI_", "CXI_", "UCX_", "MPICH_", "OMPI_MCA_", "HSA_"});
    // Launchers set these, to other values on each rank or node.
    const bool per_rank = starts_with_any(
        entry, {"NCCL_HOSTID", "NCCL_DEBUG_FILE", "OMPI_MCA_orte_", "OMPI_MCA_ess_",
                "OMPI_MCA_pmix", "OMPI_MCA_shmem_RUNTIME", "OMPI_MCA_initial_wdir"});
    const std::size_t equals = entry.find('=');
    if (!network || per_rank || equals == std::string_view::npos) continue;
    found.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

BindingFacts measure_binding(int threads, const std::string& gpu, const fs::path& root) {
  return {.cores = allowed_cpus(),
          .usable = usable_cpus(),
          .threads = threads,
          .gpu = gpu,
          .gpu_cores = cpus_near(gpu, root)};
}

}  // namespace kintsugi
