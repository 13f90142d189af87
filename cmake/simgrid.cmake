# kintsugi-simulate, for kintsugi plan --simulate, where SimGrid is found: a program of its own, so that kintsugi does not load SimGrid.
option(KINTSUGI_SIMGRID "Build kintsugi-simulate where SimGrid is found" ON)
if(KINTSUGI_SIMGRID)
  find_path(SIMGRID_INCLUDE_DIR NAMES simgrid/s4u.hpp)
  find_library(SIMGRID_LIBRARY NAMES simgrid)
endif()

set(KINTSUGI_SIMGRID_FOUND FALSE)
if(KINTSUGI_SIMGRID AND SIMGRID_INCLUDE_DIR AND SIMGRID_LIBRARY)
  set(KINTSUGI_SIMGRID_FOUND TRUE)
endif()
kintsugi_feature(SimGrid ${KINTSUGI_SIMGRID_FOUND} "${SIMGRID_LIBRARY}"
                 "no kintsugi plan --simulate: libsimgrid-dev was not found or is off")

# What needs no SimGrid, which tests use.
add_library(kintsugi_replays STATIC)
kintsugi_sources(kintsugi_replays tools/simulate/step OPTIONS -O1)
target_include_directories(kintsugi_replays PUBLIC tools)
target_link_libraries(kintsugi_replays PUBLIC kintsugi_engine PRIVATE nlohmann_json::nlohmann_json)
if(NOT KINTSUGI_TESTS AND NOT KINTSUGI_SIMGRID_FOUND)
  set_target_properties(kintsugi_replays PROPERTIES EXCLUDE_FROM_ALL TRUE)
endif()
if(NOT KINTSUGI_SIMGRID_FOUND)
  return()
endif()

add_executable(kintsugi_simulate)
set_target_properties(kintsugi_simulate PROPERTIES OUTPUT_NAME kintsugi-simulate)
kintsugi_sources(kintsugi_simulate tools/simulate OPTIONS -O1)
if(NOT SIMGRID_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_simulate SYSTEM PRIVATE ${SIMGRID_INCLUDE_DIR})
endif()
target_link_libraries(kintsugi_simulate PRIVATE kintsugi_replays CLI11::CLI11 nlohmann_json::nlohmann_json ${SIMGRID_LIBRARY})
install(TARGETS kintsugi_simulate RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
