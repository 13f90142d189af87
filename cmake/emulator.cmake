# Programs that execute the GPU's kernels on processor cores: kintsugi_emulated_tests_32 and _64, with waves of that many lanes. The
# kernels are compiled as C++, with tests/emulator in the place of a vendor's folder. Included by tests.cmake.
if(NOT Boost_CONTEXT_FOUND)
  return()
endif()

file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/gpu/kernels/*.cu)
file(GLOB host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/gpu/*.cpp)
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulator/*.cpp)
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

foreach(wave 32 64)
  set(program kintsugi_emulated_tests_${wave})
  add_executable(${program} ${units} ${host} ${emulator} $<TARGET_OBJECTS:kintsugi_backend_tests>)
  target_compile_definitions(${program} PRIVATE KINTSUGI_EMULATED_GPU=\"emulator/platform.h\" KINTSUGI_WAVE=${wave})
  target_compile_options(${program} PRIVATE -O1 -fno-strict-aliasing -ffp-contract=off -Wno-unknown-pragmas $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  target_link_libraries(${program} PRIVATE kintsugi_test_support Boost::context nlohmann_json::nlohmann_json GTest::gtest
    GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${program} TEST_PREFIX wave${wave}. TEST_FILTER "*emulated*:Emulator*" DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 300)
endforeach()
