# hwloc, for the topology of nodes (kintsugi launch --topology); where it is not installed,
# src/launch/hwloc_missing.cpp replaces it. Included once kintsugi_engine exists.
option(KINTSUGI_HWLOC "Read topologies with hwloc where it is found" ON)
if(KINTSUGI_HWLOC)
  find_path(HWLOC_INCLUDE_DIR NAMES hwloc.h)
  find_library(HWLOC_LIBRARY NAMES hwloc)
endif()

if(NOT KINTSUGI_HWLOC OR NOT HWLOC_INCLUDE_DIR OR NOT HWLOC_LIBRARY)
  if(KINTSUGI_HWLOC)
    message(STATUS "topologies of hwloc: not readable, the library was not found (Debian: libhwloc-dev)")
  endif()
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/launch/hwloc_missing.cpp)
  return()
endif()
target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/launch/hwloc_topology.cpp)
if(NOT HWLOC_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_engine SYSTEM PRIVATE ${HWLOC_INCLUDE_DIR})
endif()
target_link_libraries(kintsugi_engine PRIVATE ${HWLOC_LIBRARY})
