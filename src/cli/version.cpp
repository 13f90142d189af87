#include "cli/version.h"

#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_world.h"
#include "core/build_info.h"

namespace kintsugi {
namespace {

std::string or_not_built(const std::string& version) {
  return version.empty() ? "not built" : version;
}

}  // namespace

std::string version_text() {
  return fmt::format(
      "kintsugi {} (commit {})\n"
      "compiler: {}\n"
      "backends: cpu ({}), cuda ({}), sim\n"
      "communication: MPI ({}), NCCL ({})\n"
      "libraries: {}\n"
      "left out: {}",
      program_version(), program_commit(), program_compiler(), cpu_library_versions(),
      or_not_built(cuda_library_versions()), or_not_built(mpi_library_version()),
      or_not_built(nccl_library_version()), program_libraries(),
      program_left_out().empty() ? "nothing" : program_left_out());
}

}  // namespace kintsugi
