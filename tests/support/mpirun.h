#pragma once

namespace kintsugi {

// The environment of mpirun in tests, which may run as root, with more ranks than cores.
inline constexpr const char* kOpenMpi =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none ";

}  // namespace kintsugi
