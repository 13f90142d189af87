# Libraries with the interfaces of ROCm's, in the folder rocm of the build: programs load them in its place. Included by tests.cmake.
set(KINTSUGI_ROCM ${CMAKE_BINARY_DIR}/rocm)
function(kintsugi_stand_in target name folder)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "SOVERSION" "SOURCES;DEFINITIONS;LIBRARIES")
  list(TRANSFORM arg_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
  add_library(${target} SHARED ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${folder} BUILD_RPATH ${folder})
  if(arg_SOVERSION)
    set_target_properties(${target} PROPERTIES SOVERSION ${arg_SOVERSION})
  endif()
  target_compile_definitions(${target} PRIVATE KINTSUGI_WAVE=64 ${arg_DEFINITIONS})
  target_compile_options(${target} PRIVATE -O1)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_include_directories(${target} SYSTEM PRIVATE ${OPENBLAS_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE kintsugi_flags fmt::fmt ${arg_LIBRARIES})
endfunction()

# HIP's runtime takes the emulator of kernels from the program that loads it.
kintsugi_stand_in(stand_in_hip amdhip64 ${KINTSUGI_ROCM} SOVERSION 7 SOURCES tests/emulator/rocm/hip_runtime.cpp)
kintsugi_stand_in(stand_in_hip_5 amdhip64 ${CMAKE_BINARY_DIR}/rocm5 SOVERSION 5 SOURCES tests/emulator/rocm/hip_runtime.cpp
  DEFINITIONS KINTSUGI_STAND_IN_ROCM_5)
kintsugi_stand_in(stand_in_rocblas rocblas ${KINTSUGI_ROCM} SOURCES tests/emulator/rocm/rocblas.cpp
  LIBRARIES stand_in_hip ${OPENBLAS_LIBRARY})
kintsugi_stand_in(stand_in_rocblas_5 rocblas ${CMAKE_BINARY_DIR}/rocm5 SOURCES tests/emulator/rocm/rocblas.cpp
  LIBRARIES stand_in_hip_5 ${OPENBLAS_LIBRARY})
kintsugi_stand_in(stand_in_hipblaslt hipblaslt ${KINTSUGI_ROCM} SOURCES tests/emulator/rocm/hipblaslt.cpp
  LIBRARIES stand_in_hip ${OPENBLAS_LIBRARY})
# Not beside the others: programs find it with ROCM_PATH=${KINTSUGI_ROCM}/aotriton, and have no AOTriton without.
kintsugi_stand_in(stand_in_aotriton aotriton_v2 ${KINTSUGI_ROCM}/aotriton/lib SOURCES tests/emulator/rocm/aotriton.cpp src/tensor/dtype.cpp
  LIBRARIES stand_in_hip)
# Not where programs look by themselves: most tests run without it.
kintsugi_stand_in(stand_in_rocprofiler rocprofiler-sdk ${KINTSUGI_ROCM}/profiler SOVERSION 1
  SOURCES tests/emulator/rocm/rocprofiler_sdk.cpp)

# RCCL for programs that load HIP's stand-in, and for tests that load fake_hip_streams: as it is, and as it was before ROCm 6.0.
set(rccl tests/emulator/rocm/rccl.cpp tests/emulator/rocm/rccl_comm.cpp src/comm/reduce.cpp src/tensor/dtype.cpp)
kintsugi_stand_in(stand_in_rccl rccl ${KINTSUGI_ROCM} SOVERSION 1 SOURCES ${rccl} LIBRARIES stand_in_hip)
kintsugi_stand_in(stand_in_rccl_alone rccl ${KINTSUGI_ROCM}/alone SOVERSION 1 SOURCES ${rccl})
kintsugi_stand_in(stand_in_rccl_old rccl ${KINTSUGI_ROCM}/old SOVERSION 1 SOURCES ${rccl} DEFINITIONS WITHOUT_NEW_FUNCTIONS)
set_target_properties(stand_in_aotriton stand_in_rccl stand_in_rccl_alone stand_in_rccl_old PROPERTIES CXX_VISIBILITY_PRESET hidden)
add_library(fake_hip_streams MODULE tests/fakes/hip_streams.cpp)
set_target_properties(fake_hip_streams PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakes)
add_dependencies(kintsugi_tests stand_in_rccl_alone stand_in_rccl_old fake_hip_streams)
