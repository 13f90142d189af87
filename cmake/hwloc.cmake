# hwloc, for the topology of nodes (kintsugi launch --topology); where it is not installed,
# src/launch/hwloc_missing.cpp replaces it. Included once kintsugi_engine exists.
option(KINTSUGI_HWLOC "Read topologies with hwloc where it is found" ON)
if(KINTSUGI_HWLOC)
  find_path(HWLOC_INCLUDE_DIR NAMES hwloc.h)
  find_library(HWLOC_LIBRARY NAMES hwloc)
endif()

set(KINTSUGI_HWLOC_FOUND FALSE)
if(KINTSUGI_HWLOC AND HWLOC_INCLUDE_DIR AND HWLOC_LIBRARY)
  set(KINTSUGI_HWLOC_FOUND TRUE)
endif()
kintsugi_feature(hwloc ${KINTSUGI_HWLOC_FOUND} "${HWLOC_LIBRARY}"
                 "no topologies in kintsugi launch: libhwloc-dev was not found or is off")

if(NOT KINTSUGI_HWLOC_FOUND)
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/launch/hwloc_missing.cpp)
  return()
endif()
target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/launch/hwloc_topology.cpp)
if(NOT HWLOC_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_engine SYSTEM PRIVATE ${HWLOC_INCLUDE_DIR})
endif()
target_link_libraries(kintsugi_engine PRIVATE ${HWLOC_LIBRARY})
