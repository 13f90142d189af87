# dlib's global search, for kintsugi plan tune; where dlib is not installed,
# src/plan/search/point_search_missing.cpp replaces it. Included once kintsugi_engine exists.
option(KINTSUGI_DLIB "Build kintsugi plan tune where dlib is found" ON)
if(KINTSUGI_DLIB)
  find_path(DLIB_INCLUDE_DIR NAMES dlib/global_optimization.h)
  find_library(DLIB_LIBRARY NAMES libdlib.a dlib)
endif()

set(KINTSUGI_DLIB_FOUND FALSE)
if(KINTSUGI_DLIB AND DLIB_INCLUDE_DIR AND DLIB_LIBRARY)
  set(KINTSUGI_DLIB_FOUND TRUE)
endif()
kintsugi_feature(dlib ${KINTSUGI_DLIB_FOUND} "${DLIB_LIBRARY}" "no kintsugi plan tune: libdlib-dev was not found or is off")

if(NOT KINTSUGI_DLIB_FOUND)
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/plan/search/point_search_missing.cpp)
  return()
endif()

add_library(kintsugi_dlib OBJECT ${CMAKE_SOURCE_DIR}/src/plan/search/point_search_dlib.cpp)
target_include_directories(kintsugi_dlib PRIVATE ${CMAKE_SOURCE_DIR}/src)
if(NOT DLIB_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_dlib SYSTEM PRIVATE ${DLIB_INCLUDE_DIR})
endif()
target_compile_options(kintsugi_dlib PRIVATE -Wno-psabi)  # notes about dlib's headers on ARM
target_link_libraries(kintsugi_dlib PRIVATE kintsugi_flags fmt::fmt)
target_sources(kintsugi_engine PRIVATE $<TARGET_OBJECTS:kintsugi_dlib>)
target_link_libraries(kintsugi_engine PRIVATE ${DLIB_LIBRARY} ${OPENBLAS_LIBRARY})  # dlib calls BLAS and LAPACK
