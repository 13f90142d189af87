# The tests, as one program, and the programs behind make fuzz-layouts, fuzz-parsers, kill-test, fault-test, hostile and mutation-check.
enable_testing()
add_library(kintsugi_test_support STATIC)
# Optimised, unlike most tests: it draws layouts, damages files and adds up what ranks send.
kintsugi_sources(kintsugi_test_support tests/support EXCLUDE "paths\\.cpp" BUSY OPTIONS -O1)
target_sources(kintsugi_test_support PRIVATE tests/support/paths.cpp)
target_include_directories(kintsugi_test_support PUBLIC tests)
set_source_files_properties(tests/support/paths.cpp PROPERTIES COMPILE_DEFINITIONS
  "KINTSUGI_SOURCE=\"${CMAKE_SOURCE_DIR}\";KINTSUGI_BINARY=\"$<TARGET_FILE:kintsugi>\";KINTSUGI_FAKES=\"${CMAKE_BINARY_DIR}/fakes\";KINTSUGI_ROCM=\"${CMAKE_BINARY_DIR}/rocm\"")
# Behind the flags of the engine. What is undefined in a test matters little, and looking for it takes two fifths of the time
# of a sanitizer's build.
add_library(kintsugi_test_flags INTERFACE)
if(KINTSUGI_SANITIZE STREQUAL "address")
  target_compile_options(kintsugi_test_flags INTERFACE -fno-sanitize=undefined)
endif()
target_link_libraries(kintsugi_test_support PUBLIC kintsugi_plan_accuracy kintsugi_replays kintsugi_engine GTest::gtest kintsugi_test_flags
  PRIVATE nlohmann_json::nlohmann_json)

# Libraries with the interfaces of NVML, AMD SMI and EAR, which tests put into trees of their own.
set(fakes fake_nvml fake_nvml_old fake_amdsmi fake_ear)
foreach(fake ${fakes})
  string(REPLACE "_old" "" source ${fake})
  add_library(${fake} MODULE tests/energy/fakes/${source}.cpp)
  set_target_properties(${fake} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakes)
endforeach()
target_compile_definitions(fake_nvml_old PRIVATE WITHOUT_ENERGY)
# Libraries for LD_PRELOAD: a log of calls, slow links, wrong groups, a file system without locks.
foreach(fake call_log slow_link wrong_group no_locks)
  add_library(fake_${fake} MODULE tests/fakes/${fake}.cpp)
  set_target_properties(fake_${fake} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakes)
  target_link_libraries(fake_${fake} PRIVATE ${CMAKE_DL_LIBS})
  list(APPEND fakes fake_${fake})
endforeach()

# The operation tests, which also run on emulated GPUs (emulator.cmake). Optimised: they spend their time in their references.
file(GLOB backend_tests CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/backend/*_test.cpp)
if(KINTSUGI_TEST_FILTER)
  list(FILTER backend_tests INCLUDE REGEX "${KINTSUGI_TEST_FILTER}")
endif()
if(backend_tests)
  add_library(kintsugi_backend_tests OBJECT)
  kintsugi_sources(kintsugi_backend_tests tests/backend INCLUDE "_test\\.cpp$" FILTER "${KINTSUGI_TEST_FILTER}" BATCH 12 BUSY OPTIONS -O1)
  target_link_libraries(kintsugi_backend_tests PRIVATE kintsugi_test_support nlohmann_json::nlohmann_json GTest::gtest GTest::gmock)
  set(backend_tests $<TARGET_OBJECTS:kintsugi_backend_tests>)
endif()

add_executable(kintsugi_tests ${backend_tests})
file(GLOB test_folders CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/* ${CMAKE_SOURCE_DIR}/tests/data/*)
foreach(folder tests ${test_folders})
  if(IS_DIRECTORY ${CMAKE_SOURCE_DIR}/${folder} AND NOT folder MATCHES "^tests/(backend|emulator)$")
    kintsugi_sources(kintsugi_tests ${folder} INCLUDE "_test\\.cpp$" FILTER "${KINTSUGI_TEST_FILTER}" BATCH 12 OPTIONS -O0)
  endif()
endforeach()
target_link_libraries(kintsugi_tests PRIVATE kintsugi_test_support yaml-cpp::yaml-cpp nlohmann_json::nlohmann_json
  GTest::gtest GTest::gmock GTest::gtest_main)
# The engine before the tests: of a template that both instantiate the linker keeps the first copy, and that of a test is not
# optimised. The engine would call it, too.
target_link_options(kintsugi_tests PRIVATE LINKER:--whole-archive $<TARGET_FILE:kintsugi_engine> $<TARGET_FILE:kintsugi_test_support>
  LINKER:--no-whole-archive)
add_dependencies(kintsugi_tests kintsugi plan_accuracy ${fakes})
if(KINTSUGI_SIMGRID_FOUND)
  add_dependencies(kintsugi_tests kintsugi_simulate)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/test_suites.cmake)
kintsugi_suites(kintsugi_tests APART "/(PairsOfFeatures|DocumentTest|EmulatedFamily|Fp8Families|ExcludedNodesOfRank|InterruptTest)$|^(Stages|CheckpointOfManyRanks|TrainOnRanks)$")
include(${CMAKE_CURRENT_LIST_DIR}/rocm_stand_ins.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/emulator.cmake)

# The program for AMD GPUs, whose code tests/gpu_code_test.cpp reads.
if(KINTSUGI_HIP_FOUND AND NOT KINTSUGI_SANITIZE)
  if(NOT KINTSUGI_HIP)
    kintsugi_hip_target(kintsugi_hip_backend)
  endif()
  file(GLOB nccl CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp)
  add_executable(kintsugi_hip src/cli/main.cpp src/cli/processor_check.cpp ${nccl} $<TARGET_OBJECTS:kintsugi_hip_backend>
                 ${kintsugi_hip_backend_KERNELS})
  target_link_libraries(kintsugi_hip PRIVATE kintsugi_engine)
  add_dependencies(kintsugi_hip kintsugi_hip_backend_kernels)
endif()

function(kintsugi_test_program name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE kintsugi_test_support CLI11::CLI11)
endfunction()
kintsugi_test_program(kintsugi_fuzz_layouts tests/fuzz/fuzz_layouts.cpp)
kintsugi_test_program(kintsugi_fuzz_parsers tests/fuzz/fuzz_parsers.cpp)
kintsugi_test_program(kintsugi_kill_runs tests/fuzz/kill_runs.cpp)
target_sources(kintsugi_kill_runs PRIVATE tests/fuzz/kill_data.cpp)
kintsugi_test_program(kintsugi_fault_runs tests/fuzz/fault_runs.cpp)
kintsugi_test_program(kintsugi_hostile_runs tests/fuzz/hostile_runs.cpp)
add_dependencies(kintsugi_kill_runs kintsugi)
add_dependencies(kintsugi_fault_runs kintsugi)
add_dependencies(kintsugi_hostile_runs kintsugi)
# What make mutation-check runs, apart from the other tests because it is built over and over.
kintsugi_test_program(kintsugi_equivalence_tests tests/parallel/equivalence_test.cpp)
target_sources(kintsugi_equivalence_tests PRIVATE tests/parallel/recipes_test.cpp tests/parallel/preference_test.cpp
               tests/parallel/adapters_test.cpp tests/parallel/classifier_test.cpp tests/parallel/experts_test.cpp tests/backend/fp8_test.cpp
               tests/backend/fp8_matmul_test.cpp tests/parallel/fp8_test.cpp)
target_link_libraries(kintsugi_equivalence_tests PRIVATE GTest::gtest_main)
set_target_properties(kintsugi_fuzz_parsers kintsugi_kill_runs kintsugi_fault_runs kintsugi_hostile_runs kintsugi_equivalence_tests PROPERTIES EXCLUDE_FROM_ALL TRUE)
