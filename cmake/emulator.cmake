# Programs that execute the GPU's kernels on processor cores, compiled as C++ with tests/emulator in the place of a vendor's folder:
#   kintsugi_emulated_tests_32  the operation tests on a GPU with waves of 32 lanes
#   kintsugi_emulated_tests_64  the same on AMD's waves of 64, through backend/gpu/hip and the stand-ins for ROCm's libraries
#   kintsugi_emulated           the whole program, likewise
# Included by tests.cmake.
if(NOT Boost_CONTEXT_FOUND OR NOT TARGET kintsugi_backend_tests)
  return()
endif()

file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/gpu/kernels/*.cu ${CMAKE_SOURCE_DIR}/src/backend/gpu/kernels/*/*.cu)
file(GLOB host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/gpu/*.cpp)
file(GLOB hip CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/gpu/hip/*.cpp ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp)
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulator/*.cpp)
file(GLOB emulator_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulator/*_test.cpp)
set(own_runtime ${CMAKE_SOURCE_DIR}/tests/emulator/runtime.cpp ${CMAKE_SOURCE_DIR}/tests/emulator/libraries.cpp
  ${CMAKE_SOURCE_DIR}/tests/emulator/attention_missing.cpp)
list(REMOVE_ITEM emulator ${emulator_tests} ${own_runtime})
set(units "")
foreach(kernel ${kernels})  # a .cu is a source of CUDA: each is included by a C++ file
  get_filename_component(name ${kernel} NAME_WE)
  set(unit ${CMAKE_BINARY_DIR}/units/emulated_${name}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${kernel}\"\n")
  list(APPEND units ${unit})
endforeach()

# The compiler reports the accesses of kernels to tests/emulator/race_check.cpp, in the place of its own library.
option(KINTSUGI_RACE_CHECK "Let the emulated GPUs look for races" OFF)
if(KINTSUGI_RACE_CHECK)
  set_source_files_properties(${units} PROPERTIES COMPILE_OPTIONS -fsanitize=thread)
endif()

add_library(kintsugi_emulated_gpu_32 OBJECT ${units} ${host} ${emulator} ${own_runtime})
add_library(kintsugi_emulated_gpu_64 OBJECT ${units} ${host} ${emulator} ${hip})
foreach(wave 32 64)
  set(gpu kintsugi_emulated_gpu_${wave})
  target_compile_definitions(${gpu} PUBLIC KINTSUGI_EMULATED_GPU=\"emulator/platform.h\" KINTSUGI_WAVE=${wave})
  target_compile_definitions(${gpu} PRIVATE "KINTSUGI_HIP_ARCHITECTURES=\"gfx90a gfx942\"")
  target_compile_options(${gpu} PRIVATE -O1 -fno-strict-aliasing -ffp-contract=off -Wno-unknown-pragmas
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  target_include_directories(${gpu} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${gpu} PRIVATE kintsugi_engine Boost::context)

  set(program kintsugi_emulated_tests_${wave})
  add_executable(${program} ${emulator_tests} $<TARGET_OBJECTS:${gpu}> $<TARGET_OBJECTS:kintsugi_backend_tests>)
  target_compile_definitions(${program} PRIVATE $<TARGET_PROPERTY:${gpu},INTERFACE_COMPILE_DEFINITIONS>)
  target_compile_options(${program} PRIVATE -O1 -Wno-unknown-pragmas)
  target_link_libraries(${program} PRIVATE kintsugi_test_support Boost::context nlohmann_json::nlohmann_json GTest::gtest
    GTest::gmock GTest::gtest_main)
endforeach()

target_sources(kintsugi_emulated_tests_64 PRIVATE tests/emulator/rocm/aotriton_test.cpp)

add_executable(kintsugi_emulated src/cli/main.cpp src/cli/processor_check.cpp $<TARGET_OBJECTS:kintsugi_emulated_gpu_64>)
target_link_libraries(kintsugi_emulated PRIVATE kintsugi_engine Boost::context)
target_link_options(kintsugi_emulated PRIVATE -Wl,--build-id=sha1)
foreach(program kintsugi_emulated kintsugi_emulated_tests_64)
  set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON BUILD_RPATH ${KINTSUGI_ROCM})
  add_dependencies(${program} stand_in_hip stand_in_rocblas stand_in_hipblaslt stand_in_rccl stand_in_hip_5 stand_in_rocblas_5
    stand_in_aotriton stand_in_rocprofiler)
endforeach()

kintsugi_suites(kintsugi_emulated_tests_32 PREFIX wave32. FILTER "*emulated*:Emulator*")
kintsugi_suites(kintsugi_emulated_tests_64 PREFIX wave64. FILTER "*hip*:Emulator*:Aotriton*")
foreach(release 0.10 0.11 0.13)  # the operation tests of attention again, with AOTriton where it can
  kintsugi_suites(kintsugi_emulated_tests_64 PREFIX aotriton_${release}. FILTER "*/Attention*hip_bf16*"
    ENVIRONMENT "ROCM_PATH=${KINTSUGI_ROCM}/aotriton;KINTSUGI_STAND_IN_AOTRITON=${release}")
endforeach()
