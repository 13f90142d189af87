# Looks for everything in dependencies.txt that has to be linked. All that is missing is reported at once, with the packages that
# hold it. Optional ones are looked for where they are used (mpi.cmake, dlib.cmake, hwloc.cmake, cuda.cmake, below for
# SentencePiece and xz).
set(KINTSUGI_MISSING "")

macro(kintsugi_need name found)
  if(NOT ${found})
    list(APPEND KINTSUGI_MISSING ${name})
  endif()
endmacro()

# The file that names the packages, as a list of "name need debian rhel".
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/dependencies.txt KINTSUGI_DEPENDENCIES REGEX "^[a-z]")

# For tests that a machine can do without.
function(kintsugi_want name found without)
  if(NOT ${found})
    message(STATUS "${name} was not found: ${without}")
  endif()
endfunction()

function(kintsugi_report_missing)
  if(NOT KINTSUGI_MISSING)
    return()
  endif()
  set(lines "")
  foreach(line ${KINTSUGI_DEPENDENCIES})
    string(REGEX REPLACE " +" ";" fields "${line}")
    list(GET fields 0 name)
    if(name IN_LIST KINTSUGI_MISSING)
      list(GET fields 2 debian)
      list(GET fields 3 rhel)
      string(APPEND lines "\n  ${name}: package ${debian} (Debian, Ubuntu), ${rhel} (RHEL)")
    endif()
  endforeach()
  message(FATAL_ERROR "These libraries were not found:${lines}\nInstall them, or name the directory they are installed in: "
                      "-DCMAKE_PREFIX_PATH=DIR. docs/install.md has the commands for each system.")
endfunction()

# A library without a CMake package, as the target kintsugi_ID. The static one where both are installed: nothing to find at
# run time.
macro(kintsugi_find_library id library header)
  find_library(${id}_LIBRARY NAMES lib${library}.a ${library})
  find_path(${id}_INCLUDE_DIR NAMES ${header})
  set(${id}_FOUND FALSE)
  if(${id}_LIBRARY AND ${id}_INCLUDE_DIR)
    set(${id}_FOUND TRUE)
    add_library(kintsugi_${id} INTERFACE)
    target_link_libraries(kintsugi_${id} INTERFACE ${${id}_LIBRARY})
    if(NOT ${id}_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
      target_include_directories(kintsugi_${id} SYSTEM INTERFACE ${${id}_INCLUDE_DIR})
    endif()
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(fmt QUIET)
kintsugi_need(fmt fmt_FOUND)
find_package(spdlog QUIET)
kintsugi_need(spdlog spdlog_FOUND)
find_package(yaml-cpp QUIET)
kintsugi_need(yaml-cpp yaml-cpp_FOUND)
if(yaml-cpp_FOUND AND NOT TARGET yaml-cpp::yaml-cpp)  # before 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(nlohmann_json QUIET)
kintsugi_need(nlohmann-json nlohmann_json_FOUND)
find_package(CLI11 QUIET)
kintsugi_need(cli11 CLI11_FOUND)
find_package(ZLIB QUIET)
kintsugi_need(zlib ZLIB_FOUND)

find_library(OPENBLAS_LIBRARY NAMES openblas openblasp)
find_path(OPENBLAS_INCLUDE_DIR NAMES openblas_config.h PATH_SUFFIXES openblas openblas-pthread openblas-openmp)
set(OPENBLAS_FOUND FALSE)
if(OPENBLAS_LIBRARY AND OPENBLAS_INCLUDE_DIR)
  set(OPENBLAS_FOUND TRUE)
endif()
kintsugi_need(openblas OPENBLAS_FOUND)
find_path(XXHASH_INCLUDE_DIR NAMES xxhash.h)
kintsugi_need(xxhash XXHASH_INCLUDE_DIR)

kintsugi_find_library(pcre2 pcre2-8 pcre2.h)
kintsugi_need(pcre2 pcre2_FOUND)
kintsugi_find_library(utf8proc utf8proc utf8proc.h)
kintsugi_need(utf8proc utf8proc_FOUND)
kintsugi_find_library(zstd zstd zstd.h)
kintsugi_need(zstd zstd_FOUND)
if(KINTSUGI_TESTS)
  find_package(GTest QUIET)
  kintsugi_need(gtest GTest_FOUND)
  if(GTest_FOUND AND NOT TARGET GTest::gmock)
    list(APPEND KINTSUGI_MISSING gmock)
  endif()
  find_package(Boost 1.71 QUIET COMPONENTS context)
  kintsugi_want(boost Boost_CONTEXT_FOUND "no tests execute the kernels of GPUs without a GPU")
endif()
kintsugi_report_missing()

kintsugi_find_library(sentencepiece sentencepiece sentencepiece_processor.h)
kintsugi_feature(SentencePiece ${sentencepiece_FOUND} "${sentencepiece_LIBRARY}"
                 "tokenizer.model files cannot be read: libsentencepiece-dev was not found")
kintsugi_find_library(lzma lzma lzma.h)
kintsugi_feature(xz ${lzma_FOUND} "${lzma_LIBRARY}" "corpora in .xz cannot be read: liblzma-dev was not found")
