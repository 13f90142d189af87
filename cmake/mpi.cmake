# The MPI communicators, where MPI is installed; elsewhere src/comm/mpi_missing.cpp replaces them.
# Included once kintsugi_engine exists. Sets KINTSUGI_MPI_FOUND.
option(KINTSUGI_MPI "Build with MPI where it is found" ON)
set(KINTSUGI_MPI_FOUND FALSE)
if(KINTSUGI_MPI)
  enable_language(C)  # FindMPI asks the C compiler
  find_package(MPI QUIET COMPONENTS C)
  set(KINTSUGI_MPI_FOUND ${MPI_C_FOUND})
endif()

kintsugi_feature(MPI "${KINTSUGI_MPI_FOUND}" "${MPI_C_LIBRARIES}"
                 "one rank only: no MPI was found (Debian: libopenmpi-dev) or it is off")

if(NOT KINTSUGI_MPI_FOUND)
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/comm/mpi_missing.cpp)
  return()
endif()

file(GLOB KINTSUGI_MPI_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/mpi/*.cpp)
add_library(kintsugi_mpi OBJECT ${KINTSUGI_MPI_SOURCES})
target_include_directories(kintsugi_mpi PRIVATE ${CMAKE_SOURCE_DIR}/src)
# Not the C++ bindings of old, which mpi.h would drag in.
target_compile_definitions(kintsugi_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
target_link_libraries(kintsugi_mpi PRIVATE kintsugi_flags fmt::fmt MPI::MPI_C)
target_sources(kintsugi_engine PRIVATE $<TARGET_OBJECTS:kintsugi_mpi>)
target_link_libraries(kintsugi_engine PRIVATE MPI::MPI_C)

if(KINTSUGI_TESTS)
  include(${CMAKE_CURRENT_LIST_DIR}/mpi_tests.cmake)
endif()
