# The communicators of GPUs, in a build for GPUs; elsewhere src/comm/nccl_missing.cpp replaces them. The vendor's library, NCCL or RCCL,
# is loaded at run time: a build needs no file of it. Included after cuda.cmake, hip.cmake and mpi.cmake. Sets KINTSUGI_GPU_FOUND.
set(KINTSUGI_GPU_FOUND ${KINTSUGI_CUDA_FOUND})
set(library "libnccl.so.2")
if(KINTSUGI_HIP)
  set(KINTSUGI_GPU_FOUND TRUE)
  set(library "librccl.so.1")
endif()
kintsugi_feature(NCCL ${KINTSUGI_GPU_FOUND} "${library}, which several ranks with GPUs load at run time"
                 "no training on several GPUs: it needs CUDA or HIP")

if(NOT KINTSUGI_GPU_FOUND)
  kintsugi_sources(kintsugi_engine src/comm/nccl INCLUDE "/library\\.cpp$")  # its tests need no GPU
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/comm/nccl_missing.cpp)
  return()
endif()
kintsugi_sources(kintsugi_engine src/comm/nccl)

if(KINTSUGI_TESTS AND KINTSUGI_MPI_FOUND)
  include(${CMAKE_CURRENT_LIST_DIR}/nccl_tests.cmake)
endif()
