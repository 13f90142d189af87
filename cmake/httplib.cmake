# cpp-httplib, for kintsugi serve and dashboard; where it is not installed, src/http/http_server_missing.cpp replaces it. Included once
# kintsugi_engine exists. Only one file includes it. Its flags must be those that the library was built with, which pkg-config
# knows. HttpServer replaces its sockets, so the version must be one whose interfaces for that are known.
option(KINTSUGI_HTTPLIB "Build kintsugi serve and dashboard where cpp-httplib is found" ON)
set(httplib_version "")
if(KINTSUGI_HTTPLIB)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(HTTPLIB QUIET cpp-httplib)
  endif()
  find_path(HTTPLIB_INCLUDE_DIR NAMES httplib.h HINTS ${HTTPLIB_INCLUDE_DIRS})
  if(HTTPLIB_INCLUDE_DIR)
    file(STRINGS ${HTTPLIB_INCLUDE_DIR}/httplib.h httplib_version REGEX "define CPPHTTPLIB_VERSION")
  endif()
endif()

if(NOT httplib_version MATCHES "\"0\\.11\\.")
  if(KINTSUGI_HTTPLIB)
    message(STATUS "kintsugi serve and dashboard: not built, cpp-httplib 0.11 was not found (Debian: libcpp-httplib-dev)")
  endif()
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/http/http_server_missing.cpp)
  return()
endif()

add_library(kintsugi_httplib OBJECT ${CMAKE_SOURCE_DIR}/src/http/http_server.cpp)
target_include_directories(kintsugi_httplib PRIVATE ${CMAKE_SOURCE_DIR}/src)
if(NOT HTTPLIB_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_httplib SYSTEM PRIVATE ${HTTPLIB_INCLUDE_DIR})
endif()
target_compile_options(kintsugi_httplib PRIVATE -O1 ${HTTPLIB_CFLAGS_OTHER})
target_link_libraries(kintsugi_httplib PRIVATE kintsugi_flags fmt::fmt nlohmann_json::nlohmann_json)
target_sources(kintsugi_engine PRIVATE $<TARGET_OBJECTS:kintsugi_httplib>)
target_link_libraries(kintsugi_engine PRIVATE ${HTTPLIB_LINK_LIBRARIES})
