# Libraries with the interfaces of AMD's, in the folder rocm of the build: programs load them in place of ROCm. Included by tests.cmake.

# rocm/librccl.so.1, and rocm/old/librccl.so.1 as it was before ROCm 6.0.
foreach(rccl rocm_rccl rocm_rccl_old)
  add_library(${rccl} MODULE tests/emulator/rocm/rccl.cpp tests/emulator/rocm/rccl_comm.cpp src/comm/reduce.cpp src/tensor/dtype.cpp)
  set_target_properties(${rccl} PROPERTIES PREFIX "" OUTPUT_NAME librccl SUFFIX .so.1 CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/rocm)
  target_include_directories(${rccl} PRIVATE src tests)
  target_link_libraries(${rccl} PRIVATE fmt::fmt)
endforeach()
set_target_properties(rocm_rccl_old PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/rocm/old)
target_compile_definitions(rocm_rccl_old PRIVATE WITHOUT_NEW_FUNCTIONS)

# Streams for the tests of these libraries.
add_library(fake_hip_streams MODULE tests/fakes/hip_streams.cpp)
set_target_properties(fake_hip_streams PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakes)
add_dependencies(kintsugi_tests rocm_rccl rocm_rccl_old fake_hip_streams)
